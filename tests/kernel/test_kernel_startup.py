"""Startup files (contract 9.5) and the start and end of a kernel process."""

from __future__ import annotations

from pathlib import Path

import pytest

from loommux_kernel import startup
from loommux_kernel.executions.end_states import End
from loommux_kernel.shared.protocol import ExecutionStarted, Origin, OriginKind, State
from loommux_kernel.shared.records.reader import RecordReader
from tests.kernel.kernel_process import KernelProcess, Launch

WATCHDOG = 30


def test_startup_files_run_in_name_order_in_the_users_namespace_and_take_no_number(launch: Launch) -> None:
    kernel = launch(
        startup={
            "20-second.ipy": "second = first + 1\nhere = !echo from ipy\nimport asyncio\nawait asyncio.sleep(0)",
            "10-first.py": "import os\nfirst = 1\nwhere = os.path.basename(__file__)",
            "notes.txt": "this is no code",
        }
    )
    server = kernel.server()
    server.seen = server.ask("status")["last_serial"]
    reply = server.run("assert (first, second, where) == (1, 2, '10-first.py')\nassert here == ['from ipy']")
    assert (reply.state, reply.number, reply.serial) == (State.COMPLETED, 1, 3)
    assert server.run("assert '__file__' not in globals()").state is State.COMPLETED
    reader = RecordReader(Path(kernel.launch.records))
    try:
        origin = [(r.origin.kind, r.origin.label, r.number) for r in reversed(reader.executions(10))][:2]
        assert origin == [(OriginKind.STARTUP, "10-first.py", None), (OriginKind.STARTUP, "20-second.ipy", None)]
        assert reader.notices() == []
    finally:
        reader.close()


def test_a_failing_startup_file_is_told_and_the_next_one_runs(launch: Launch) -> None:
    kernel = launch(
        startup={
            "10-env.py": "undefined_name",
            "20-bad.ipy": "1/0",
            "30-exit.py": "import sys; sys.exit(0)",
            "40.py": "ok = 1",
        }
    )
    server = kernel.server()
    server.seen = server.ask("status")["last_serial"]
    assert server.run("assert ok == 1").state is State.COMPLETED
    reader = RecordReader(Path(kernel.launch.records))
    try:
        told = [(n.label, n.text) for n in reader.notices()]
        states = [r.state for r in reversed(reader.executions(10))][:4]
    finally:
        reader.close()
    assert told == [
        ("Startup", "10-env.py failed: NameError: name 'undefined_name' is not defined"),
        ("Startup", "20-bad.ipy failed: ZeroDivisionError: division by zero"),
    ]
    assert states == [State.ERROR, State.ERROR, State.COMPLETED, State.COMPLETED]


class Recording:
    """Stands in for the kernel: notes what is run and said."""

    def __init__(self, ends: dict[str, End]) -> None:
        self.ends = ends
        self.ran: list[tuple[str, str]] = []
        self.said: list[str] = []

    async def run_startup(self, path: Path, source: str, origin: Origin, limit: startup.Limit) -> End:
        self.ran.append((path.name, source))
        end = self.ends.get(path.name, End(State.COMPLETED))
        limit.reached = end.state is State.INTERRUPTED
        return end

    def say_startup(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.anyio
async def test_a_file_that_takes_too_long_or_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "1.py").write_text("slow")
    (tmp_path / "2.py").write_bytes(b"\xff\xfe bad")
    (tmp_path / "3.py").write_text("good")
    (tmp_path / "4.py").mkdir()
    runner = Recording({"1.py": End(State.INTERRUPTED, "KeyboardInterrupt", "")})
    await startup.run_all(tmp_path, runner, limit_seconds=60)
    assert runner.ran == [("1.py", "slow"), ("3.py", "good")]
    assert runner.said[0] == "1.py took more than 60 s and was stopped"
    assert runner.said[1].startswith("2.py cannot be read: ")
    await startup.run_all(tmp_path / "missing", runner, limit_seconds=60)
    assert runner.said[2] == "missing cannot be read: No such file or directory"


def test_the_server_ends_the_process_in_order_with_its_atexit_handlers(launch: Launch) -> None:
    kernel: KernelProcess = launch()
    server = kernel.server()
    server.run("import atexit, pathlib\natexit.register(pathlib.Path('ended').write_text, 'in order')")
    assert server.ask("quit") == {}
    assert kernel.process.wait(WATCHDOG) == 0
    assert (kernel.workspace / "ended").read_text() == "in order"


def test_a_quit_during_a_cell_waits_for_it(launch: Launch) -> None:
    kernel: KernelProcess = launch()
    server = kernel.server()
    request = server.submit("import time, pathlib\ntime.sleep(0.3)\npathlib.Path('done').touch()")
    server.wait_event(ExecutionStarted, serial=1)
    server.ask("quit")
    assert server.reply(request).state is State.COMPLETED
    assert kernel.process.wait(WATCHDOG) == 0
    assert (kernel.workspace / "done").exists()


def test_nothing_is_written_into_the_workspace(launch: Launch) -> None:
    kernel: KernelProcess = launch()
    kernel.server().run("1")
    assert list(kernel.workspace.iterdir()) == []


def test_a_startup_file_that_takes_too_long_is_stopped_and_told(launch: Launch) -> None:
    kernel = launch(
        startup={"10-slow.py": "import time; time.sleep(60)", "20-next.py": "after = 1"},
        extra={"startup_seconds": 0.3},
    )
    server = kernel.server()
    server.seen = server.ask("status")["last_serial"]
    assert server.run("assert after == 1").state is State.COMPLETED
    reader = RecordReader(Path(kernel.launch.records))
    try:
        assert [n.text for n in reader.notices()] == ["10-slow.py took more than 0.3 s and was stopped"]
    finally:
        reader.close()


def test_the_stacks_of_a_fatal_signal_are_in_the_process_log(launch: Launch) -> None:
    kernel: KernelProcess = launch()
    kernel.server().submit("def deep():\n    import ctypes; ctypes.string_at(0)\ndeep()")
    assert kernel.process.wait(WATCHDOG) == -11
    log = kernel.log()
    assert "Fatal Python error: Segmentation fault" in log
    assert "in deep" in log


@pytest.mark.case("X20")
def test_a_startup_file_may_begin_with_a_byte_order_mark(launch: Launch) -> None:
    kernel = launch(startup={"10.py": "\ufefffirst = 1", "20.ipy": "\ufeffsecond = 2\n%time third = 3"})
    server = kernel.server()
    server.seen = server.ask("status")["last_serial"]
    assert server.run("assert (first, second, third) == (1, 2, 3)").state is State.COMPLETED
