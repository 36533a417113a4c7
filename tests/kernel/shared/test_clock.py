"""Clocks of cells may stand still, be set or be taken away: the kernel's own go on."""

from __future__ import annotations

import pytest

from loommux_kernel.shared.protocol import NoticeGiven, OutputArrived, State
from tests.kernel.kernel_process import Launch

FROZEN = {
    "freezegun": "from freezegun import freeze_time\nfreeze_time('2020-01-01').start(); None",
    "time-machine": "import time_machine\ntime_machine.travel('2020-01-01', tick=False).start(); None",
    "by hand": "import time\ntime.time = time.monotonic = lambda: 1.5e9\ntime.sleep = lambda seconds: None",
}
YEAR = {"freezegun": "2020", "time-machine": "2020"}
#: Prints three lines, each well after the one before, when its cell has ended.
LATE = """\
import threading
pause = threading.Event()
def late():
    for number in range(3):
        pause.wait(0.1)
        print('late', number)
threading.Thread(target=late).start()"""


@pytest.mark.parametrize("frozen", FROZEN)
@pytest.mark.case("N18")
def test_where_clocks_are_frozen_all_is_told_waits_are_true_and_an_interrupt_ends_what_it_should(
    launch: Launch, frozen: str
) -> None:
    server = launch().server()
    assert server.run(FROZEN[frozen]).state is State.COMPLETED
    if frozen in YEAR:
        assert YEAR[frozen] in (server.run("import datetime\nprint(datetime.datetime.now())").body or "")

    printing = server.run(LATE)
    server.wait_event(OutputArrived, serial=printing.serial, late_lines=3)

    slept = server.run("import asyncio\nawait asyncio.sleep(0.2)")
    assert slept.state is State.COMPLETED
    assert 0.2 <= slept.completed_at - slept.started_at < 20

    failing = server.run("async def fails():\n    1 / 0\ntask = asyncio.ensure_future(fails())")
    told = server.wait_event(NoticeGiven, serial=failing.serial)
    assert "ZeroDivisionError" in told.text

    request = server.submit("!trap '' INT TERM; echo deaf; sleep 1000")
    started = server.wait_event(OutputArrived, last_line="deaf")
    server.ask("interrupt", serial=started.serial)
    ended = server.reply(request)
    assert ended.state is State.INTERRUPTED
    assert 1 < ended.completed_at - ended.started_at < 60
