"""The server's control requests, answered by a real kernel also while it is busy."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from loommux_kernel.running.control_requests import Control
from loommux_kernel.shared.protocol import CONTROL_REQUESTS, ExecutionStarted, OutputArrived, State, Stream
from loommux_kernel.shared.records.reader import RecordReader
from tests.kernel.kernel_process import TIMEOUT, Client, KernelProcess


def test_the_status_of_an_idle_kernel(server: Client, kernel: KernelProcess) -> None:
    reply = server.run("1")
    status = server.ask("status")
    assert status["pid"] == kernel.process.pid
    assert (status["serial"], status["number"]) == (None, None)
    assert status["last_serial"] == reply.serial
    assert status["execution_count"] == (reply.number or 0) + 1
    assert status["stream_bytes_pending"] >= 0
    assert status["sequence"] >= 2


#: No cell can end what holds the main thread; a thread does when there is that file.
LET_GO = """\
import pathlib, threading, time
def wait():
    global holds
    while not pathlib.Path({sign!r}).exists(): time.sleep(0.01)
    holds = False
threading.Thread(target=wait).start()"""
LEFT = {
    "a task": """\
import asyncio
async def spin():
    await asyncio.sleep(0.05)
    while holds: pass
holds = True
task = asyncio.create_task(spin())""",
    "a callback that sleeps": """\
import asyncio, time
def spin():
    while holds: time.sleep(0.01)
holds = True
asyncio.get_running_loop().call_soon(spin)""",
}


@pytest.mark.parametrize("what", LEFT)
def test_a_status_says_where_what_an_earlier_cell_left_holds_the_main_thread(
    server: Client, tmp_path: Path, what: str
) -> None:
    server.run("1")
    assert server.ask("status", holder=True)["holder"] is None
    server.run(LET_GO.format(sign=str(tmp_path / "go")))
    number = server.run(LEFT[what]).number
    held = until_true(lambda: server.ask("status", holder=True)["holder"])
    assert re.fullmatch(rf"In \[{number}\], line \d, in spin", held), held
    assert server.ask("status")["serial"] is None
    (tmp_path / "go").touch()
    until_true(lambda: server.ask("status", holder=True)["holder"] is None)
    assert server.run("'free'").state is State.COMPLETED


def test_control_is_answered_while_a_cell_loops_or_sleeps(server: Client) -> None:
    for code in ("while True: pass", "import time; time.sleep(60)", "await __import__('asyncio').sleep(60)"):
        request = server.submit(code)
        started = server.wait_event(ExecutionStarted, serial=server.seen + 1)
        status = server.ask("status", timeout=5)
        assert (status["serial"], status["number"]) == (started.serial, started.number)
        assert server.ask("interrupt", submission=started.submission)["serial"] == started.serial
        assert server.reply(request).state is State.INTERRUPTED


def test_a_flush_brings_what_was_written_into_the_record(server: Client, kernel: KernelProcess) -> None:
    request = server.submit("print('early'); import time; time.sleep(60)")
    started = server.wait_event(ExecutionStarted, serial=server.seen + 1)
    reader = RecordReader(Path(kernel.launch.records))
    try:
        until_printed(server)
        assert server.ask("flush")["sequence"] >= started.sequence
        assert reader.text(started.serial, Stream.COMBINED) == "early\n"
    finally:
        reader.close()
        server.ask("interrupt")
        server.reply(request)


def until_true(asked: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + TIMEOUT
    while not (answer := asked()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return answer


def until_printed(server: Client) -> None:
    server.wait_event(OutputArrived, last_line="early")


def test_a_slow_answer_does_not_hold_up_the_next_one(server: Client) -> None:
    """The second is answered first, or soon after: nobody waits in the control thread."""
    first = server.send(server.control, "loommux_flush", {})
    second = server.send(server.control, "loommux_status", {})
    replies = {server.receive(server.control, 5)["parent_header"]["msg_id"] for _ in range(2)}
    assert replies == {first["header"]["msg_id"], second["header"]["msg_id"]}


def test_a_withdrawal_says_what_became_of_a_submission(server: Client) -> None:
    server.reply(server.submit("1", name="ran"))
    ended = server.ask("withdraw", submission="ran")
    assert (ended["result"], ended["serial"]) == ("ended", server.seen)
    assert server.ask("withdraw", submission="never sent")["result"] == "withdrawn"
    request = server.submit("import time; time.sleep(60)", name="runs")
    server.wait_event(ExecutionStarted, serial=server.seen + 1)
    assert server.ask("withdraw", submission="runs")["result"] == "started"
    server.ask("interrupt", submission="runs")
    server.reply(request)


def test_told_is_taken_without_complaint(server: Client) -> None:
    reply = server.run("1")
    assert server.ask("told", serials=[reply.serial]) == {}
    assert server.run("2").state is State.COMPLETED


def test_a_renamed_kernel_knows_its_name(server: Client) -> None:
    assert server.ask("rename", name="report") == {}
    check = "import os; assert loommux.self.name == os.environ['LOOMMUX_KERNEL_NAME'] == 'report'"
    assert server.run(f"%%loommux --kernel report\n{check}").state is State.COMPLETED
    server.ask("rename", name="test")


def test_what_cannot_be_answered_is_answered_with_a_reason(server: Client) -> None:
    unknown = server.ask("dance")["error"]
    assert "loommux_dance" in unknown
    assert all(name in unknown for name in CONTROL_REQUESTS)
    assert "submission" in server.ask("withdraw")["error"]
    assert "serial" in server.ask("told")["error"]


def test_the_control_thread_needs_no_files_and_leaves_none(server: Client, kernel: KernelProcess) -> None:
    count = "import os; open_files = len(os.listdir('/proc/self/fd'))"
    if not Path("/proc/self/fd").exists():
        return
    server.run(count)
    for _ in range(30):
        for name in ("status", "flush", "interrupt"):
            server.ask(name)
    assert server.run("assert len(os.listdir('/proc/self/fd')) <= open_files + 2").state is State.COMPLETED
    assert os.path.exists(f"/proc/{kernel.process.pid}")  # noqa: PTH110


def test_a_request_that_meets_the_exit_of_its_process_is_answered_by_its_end_alone() -> None:
    async def asked() -> list[dict[str, Any]]:
        control, sent = Control(cast("Any", SimpleNamespace())), list[dict[str, Any]]()
        control._workers.close()  # as Python does when it begins to exit
        control.answer("loommux_flush", {}, server=True, send=sent.append)
        assert control._tasks
        await asyncio.wait(set(control._tasks), timeout=10)
        return sent

    assert asyncio.run(asked()) == []
