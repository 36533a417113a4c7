"""A record store that stands still: the reply comes all the same, and says that its output is not recorded."""

from __future__ import annotations

from kernel_process import Launch

from loommux_kernel.protocol import ExecutionEnded

STALL = """\
import threading
from loommux_kernel import output, recordstore
output.STALL_SECONDS = 0.2
go, write = threading.Event(), recordstore.Store.apply
def held(*args, **options):
    go.wait(60)
    return write(*args, **options)
recordstore.Store.apply = held
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
