"""The use-cases over real kernel processes: what the twins cannot show."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient

from loommux_host.config import Config
from loommux_host.facts.results import (
    CellAnswer,
    ExecutionStatusAnswer,
    InterruptAnswer,
    ReadAnswer,
    RestartAnswer,
    StatusAnswer,
)
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.process_factory import ProcessFactory
from loommux_host.kernels.registry import Registry
from loommux_host.processes.launcher import Launcher, create_server_directory
from loommux_host.processes.runtime_files import KernelFiles
from loommux_host.sessions.callers import Caller, OneKernel, Sessions
from loommux_host.token_counting.vocabulary import SHIPPED
from loommux_host.usecases.inspection import Place
from loommux_host.usecases.result_bodies import Bodies
from loommux_host.usecases.service import Service
from loommux_kernel.shared.protocol import State
from tests.host.answers import of, refused

pytestmark = pytest.mark.anyio
ME, OTHER = Caller("me", "claude-11111111"), Caller("other", "claude-22222222")
#: Holds the interpreter in native code, as no Python code can.
HOLD = "import ctypes; ctypes.PyDLL(None).usleep({})"


@dataclass
class Server:
    service: Service
    kernel: Kernel

    async def run(self, source: str, caller: Caller = ME) -> CellAnswer:
        return of(CellAnswer, await self.service.run_cell(caller, source))

    async def body(self, source: str) -> str | None:
        return (await self.run(source)).body


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Server]:
    directory = create_server_directory(tmp_path)
    startup = tmp_path / "startup"
    startup.mkdir()
    (startup / "10-env.py").write_text("begun = True\n1 / 0\n")
    config = Config(workspace=tmp_path, startup_dir=startup)
    launcher = Launcher(config)

    def launching(id: str, name: str) -> ProcessFactory:
        return ProcessFactory(launcher, KernelFiles(directory, id, name), config, "server-session")

    registry = Registry(launching)
    kernel = registry.open("report-cleanup", private=True).kernel
    place = Place(str(tmp_path), "launch_cwd", lambda: (Path(sys.executable), ""))
    sessions = Sessions(registry, OneKernel(registry, kernel))
    service = Service(registry, sessions, Bodies(SHIPPED.within_limit), place)
    yield Server(service, kernel)
    await service.close()
    directory.remove()


def state(answer: CellAnswer | ExecutionStatusAnswer | InterruptAnswer) -> State:
    assert answer.execution is not None
    return answer.execution.state


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Ten times what it takes, and more: a bound that only a wait for the wrong thing breaks."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    yield
    assert loop.time() - began < seconds


async def client_of(at: Server) -> AsyncKernelClient:
    life = await at.kernel.ready()
    client = AsyncKernelClient(connection_file=life.process.launch.connection_file)
    client.load_connection_file()
    client.start_channels()
    await client.wait_for_ready(timeout=30)
    return client


async def test_state_is_kept_between_cells_and_results_carry_their_output(at: Server) -> None:
    assert await at.body("x = 20\nprint('hello')") == "hello\n"
    assert await at.body("x + 1") == "Out[2]: 21\n"
    failed = await at.run("1 / 0")
    assert state(failed) is State.ERROR
    assert failed.execution is not None
    assert failed.execution.ename == "ZeroDivisionError"
    assert failed.body is not None
    assert "ZeroDivisionError: division by zero" in failed.body


async def test_the_failure_of_a_startup_file_is_told_with_the_first_result_and_takes_no_number(at: Server) -> None:
    answer = await at.run("begun")
    assert answer.body == "Out[1]: True\n"
    [notice] = answer.notices
    assert (notice.label, notice.text[:12]) == ("Startup", "10-env.py fa")
    assert (await at.run("1")).notices == []


async def test_large_output_is_counted_and_read_from_the_record(at: Server) -> None:
    answer = await at.run("for n in range(20000): print('line', n)")
    assert (answer.body, answer.body_omitted) == (None, "token_limit_exceeded")
    assert answer.tail == [f"line {n}" for n in range(19980, 20000)]
    read = of(ReadAnswer, await at.service.read_output(ME, line_range="5000:5001"))
    assert (read.lines, read.total.lines) == (["line 4999", "line 5000"], 20000)
    middle = await at.run("for n in range(900): print('line', n)")
    assert middle.body is not None
    assert middle.body.endswith("line 899\n")


async def test_the_displays_that_have_images_are_fetched(at: Server) -> None:
    assert (await at.run("1")).displays == []
    answer = await at.run("from IPython.display import Image, display; display(Image(data=b'x', format='png')); 1")
    [display] = answer.displays
    assert (display.kind, "image/png" in display.bundle) == ("display", True)


async def test_of_two_cells_sent_together_one_runs_and_one_is_told_fifty_times(at: Server) -> None:
    await at.run("ran = []")
    for n in range(50):
        sources = [f"ran.append({n})"] * 2
        answers = await asyncio.gather(*(at.service.run_cell(c, s) for c, s in zip((ME, OTHER), sources, strict=True)))
        kinds = sorted(type(a).__name__ for a in answers)
        assert kinds == ["CellAnswer", "Refusal"], answers
    assert await at.body("print(ran == list(range(50)))") == "True\n"


async def test_a_cancelled_call_leaves_its_cell_running_and_a_second_call_finds_it(at: Server) -> None:
    await at.run("import time")
    call = asyncio.ensure_future(at.service.run_cell(ME, "time.sleep(1); print('done')"))
    await asyncio.sleep(0.3)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert of(CellAnswer, await at.service.wait(ME)).body == "done\n"


async def test_an_interrupt_ends_the_cell_and_the_next_is_untouched(at: Server) -> None:
    answer = await at.run("%%loommux --wait 0.3\nimport time; time.sleep(60)")
    assert (state(answer), answer.ended_by) == (State.RUNNING, "timeout")
    with within(5):
        assert of(InterruptAnswer, await at.service.interrupt(ME)).result == "interrupted"
    assert await at.body("print('next')") == "next\n"
    assert of(InterruptAnswer, await at.service.interrupt(ME)).result == "idle"


async def test_while_native_code_holds_the_interpreter_the_host_still_answers(at: Server) -> None:
    held = f"print('before', flush=True)\n{HOLD.format(6_000_000)}\nimport time; time.sleep(60)"
    answer = await at.run(f"%%loommux --wait 0.3\n{held}")
    assert state(answer) is State.RUNNING
    await asyncio.sleep(2)
    with within(1):
        status = of(StatusAnswer, await at.service.status(ME))
    assert status.kernel is not None
    assert (status.kernel.stale_seconds or 0) > 1
    assert status.state == "unresponsive"
    with within(1):
        assert state(of(ExecutionStatusAnswer, await at.service.execution_status(ME))) is State.RUNNING
    with within(1):
        assert of(ReadAnswer, await at.service.read_output(ME)).lines == ["before"]
    assert refused(await at.service.run_cell(ME, "1"))[0] == "busy"
    sent = of(InterruptAnswer, await at.service.interrupt(ME))
    assert sent.result == "interrupt_sent"
    assert state(of(CellAnswer, await at.service.wait(ME, timeout_seconds=30, silence_seconds=30))) is State.INTERRUPTED
    assert of(StatusAnswer, await at.service.status(ME)).state == "running"


async def test_a_foreign_cell_runs_in_turn_is_told_and_belongs_to_its_client(at: Server) -> None:
    await at.run("x = 1")
    client = await client_of(at)
    try:
        client.execute("x = 2")
        await asyncio.sleep(0.5)
        answer = await at.run("x")
        assert answer.body == "Out[3]: 2\n"
        [notice] = [n.text for n in answer.notices]
        assert notice.startswith("1 cell was run by others since your last result: In [2] (completed, ")
        client.execute("import time; time.sleep(60)")
        await asyncio.sleep(0.5)
        assert refused(await at.service.run_cell(ME, "x"))[0] == "busy"
        assert refused(await at.service.interrupt(ME))[0] == "not_yours"
        assert of(InterruptAnswer, await at.service.interrupt(ME, execution=4)).result == "interrupted"
        assert await at.body("x") == "Out[5]: 2\n"
    finally:
        client.stop_channels()


async def test_a_cell_that_ends_its_process_is_killed_with_what_it_printed(at: Server) -> None:
    await at.run("kept = 1")
    with within(10):
        answer = await at.run("import os, time\nprint('before'); time.sleep(0.5); os._exit(4)")
    assert (state(answer), answer.body) == (State.KILLED, "before\n")
    assert answer.execution is not None
    assert answer.execution.death is not None
    assert (answer.execution.death.cause, answer.execution.death.code) == ("exit", 4)
    again = await at.run("'kept' in globals()")
    assert again.body == "Out[1]: False\n"
    assert again.execution is not None
    assert again.execution.process == 2
    assert of(CellAnswer, await at.service.wait(ME, execution=2, process=1)).body == "before\n"


async def test_a_death_while_idle_is_told_before_the_next_cell_is_run(at: Server) -> None:
    pid = (await at.body("import os; print(os.getpid())") or "").strip()
    killed = await asyncio.create_subprocess_exec("kill", "-9", pid)
    await killed.wait()
    life = at.kernel.life
    assert life is not None
    async with asyncio.timeout(10):
        await life.finished.wait()
    status, message = refused(await at.service.run_cell(ME, "1"))
    assert status == "kernel_died"
    assert "ended by SIGKILL" in message
    assert await at.body("1") == "Out[1]: 1\n"


async def test_a_restart_always_works_and_says_what_it_ended(at: Server) -> None:
    await at.run("import subprocess; child = subprocess.Popen(['sleep', '1000'])")
    await at.run(f"%%loommux --wait 0.3\nprint('holding', flush=True)\n{HOLD.format(60_000_000)}")
    with within(10):
        answer = of(RestartAnswer, await at.service.restart(ME))
    assert answer.ended_execution is not None
    assert answer.ended_execution.state is State.KILLED
    assert (answer.old_process, answer.new_process, answer.ended_processes) == (1, 2, 1)
    assert await at.body("1") == "Out[1]: 1\n"


async def test_an_idle_process_runs_its_atexit_handlers(at: Server, tmp_path: Path) -> None:
    file = tmp_path / "gone"
    await at.run(f"import atexit, pathlib; atexit.register(pathlib.Path({str(file)!r}).touch)")
    await at.service.restart(ME)
    assert file.exists()


async def test_notices_and_late_output_are_told(at: Server) -> None:
    answer = await at.run(
        "import threading, time\nloommux.notify('hello')\n"
        "threading.Thread(target=lambda: (time.sleep(0.5), print('late'))).start()"
    )
    assert [n.text for n in answer.notices if not n.label] == ["hello"]
    await asyncio.sleep(1.5)
    told = of(StatusAnswer, await at.service.status(ME)).notices
    assert [(n.label, n.text) for n in told] == [("In [1]", "1 more line after its end")]
    assert of(CellAnswer, await at.service.wait(ME)).body == "late\n"
