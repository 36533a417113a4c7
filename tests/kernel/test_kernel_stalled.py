"""A record store that stands still: the reply comes all the same, and says that its output is not recorded."""

from __future__ import annotations

from loommux_kernel.shared.protocol import ExecutionEnded
from tests.kernel.kernel_process import Launch

STALL = """\
import threading
from loommux_kernel.capture import output
from loommux_kernel.shared.records import database
output.STALL_SECONDS = 0.2
go, write = threading.Event(), database.Store.apply
def held(*args, **options):
    go.wait(60)
    return write(*args, **options)
database.Store.apply = held
print("x" * 6000)
"""


def test_a_reply_that_does_not_wait_for_the_store_says_so(launch: Launch) -> None:
    server = launch().server()
    assert server.run("print('before')").recorded
    stalled = server.run(STALL)
    assert (stalled.recorded, stalled.body) == (False, None)
    server.run("go.set()")
    ended = server.wait_event(ExecutionEnded, serial=stalled.serial)
    assert ended.counts.characters == 6001
    assert server.run("print('after')").recorded
    server.close()
