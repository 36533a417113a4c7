"""Signals and people's own handlers of them: one interrupt is one signal, and no handler ends the kernel."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from tests.e2e.driving import PATIENCE, Agent, Place, text_of, until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals"),
]

BEGIN = "%%loommux --wait 60 --silence 60\n"
TAKEN = "the cell's own handler of SIGINT has taken the interrupt"
#: How a cell takes SIGINT for itself, and waits until `enough()` or for `ever`.
OWN = {
    "signal.signal": (
        "import signal, time\nhits = []\nsignal.signal(signal.SIGINT, lambda *_: hits.append(1))\n{ready}\n"
        "while not open(go).read(): time.sleep(0.02)"
    ),
    "in a long call": (
        "import signal, subprocess\nhits = []\nsignal.signal(signal.SIGINT, lambda *_: hits.append(1))\n{ready}\n"
        "subprocess.run(['sh', '-c', f\"trap '' INT TERM; until [ -s {{go}} ]; do sleep 0.05; done\"],"
        " start_new_session=True)"
    ),
    "asyncio": (
        "import asyncio, signal\nhits = []\n"
        "asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: hits.append(1))\n{ready}\n"
        "while not open(go).read(): await asyncio.sleep(0.02)"
    ),
    "set_wakeup_fd": (
        "import os, signal, time\nhits = []\nread, write = os.pipe()\nos.set_blocking(read, False)\n"
        "os.set_blocking(write, False)\nsignal.signal(signal.SIGINT, lambda *_: None)\n"
        "before = signal.set_wakeup_fd(write)\n{ready}\n"
        "while not open(go).read(): time.sleep(0.02)\n"
        "signal.set_wakeup_fd(before)\nhits = [n for n in os.read(read, 100) if n == signal.SIGINT]"
    ),
    "sigaction of a library": (
        "import ctypes, time\nhits = []\n"
        "handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda n: hits.append(1))\n"
        "ctypes.CDLL(None).signal(2, handler)\n{ready}\n"
        "while not open(go).read(): time.sleep(0.02)"
    ),
    "sigwait": (
        "import signal\nhits = []\nbefore = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n{ready}\n"
        "while not open(go).read():\n"
        "    if signal.sigtimedwait([signal.SIGINT], 0.02): hits.append(1)"
    ),
}


async def begun(agent: Agent, place: Place, code: str) -> tuple[asyncio.Task[str], Path]:
    """Send a cell that says when it is `ready`; the task, and the file that lets it go on to its end."""
    mark, go = place.workspace / "ready", place.workspace / "go"
    mark.unlink(missing_ok=True)
    go.write_text("")
    ready = f"open({str(mark)!r}, 'w').close()"
    source = code.replace("{ready}", ready).replace("{{", "{").replace("}}", "}")
    task = asyncio.create_task(agent.run(f"{BEGIN}go = {str(go)!r}\n{source}"))

    async def there() -> bool:
        return mark.exists()

    await until(there)
    return task, go


async def can_be_interrupted(agent: Agent, place: Place) -> None:
    """The next cell has the usual handler again."""
    running, _ = await begun(agent, place, "import time\n{ready}\ntime.sleep(600)")
    assert (await agent.text("interrupt")).startswith("interrupted: ")
    assert (await running).endswith("\nInterrupted.")


@pytest.mark.parametrize("how", OWN)
@pytest.mark.case("N04")
async def test_an_interrupt_is_one_signal_to_a_handler_of_the_cells_own(
    agent: Agent, common_place: Place, how: str
) -> None:
    if how == "sigwait" and not sys.platform.startswith("linux"):
        pytest.skip("only Linux tells what a thread blocks")
    running, go = await begun(agent, common_place, OWN[how])
    said = await agent.text("interrupt")
    assert re.match(rf"interrupt_sent: In \[\d+\] still runs after [\d.]+ s; {TAKEN}\. Use wait\(\)", said), said
    go.write_text("on")
    assert "Interrupted" not in await running
    assert (await agent.run("print(len(hits))")).endswith("\n1")
    await can_be_interrupted(agent, common_place)
    assert (await agent.run("print(len(hits))")).endswith("\n1")


@pytest.mark.case("N04")
async def test_uvicorn_ends_gracefully_by_one_interrupt(agent: Agent, common_place: Place) -> None:
    code = (
        "import uvicorn\n"
        "async def app(scope, receive, send):\n    assert scope['type'] == 'http'\n"
        "class Server(uvicorn.Server):\n"
        "    async def startup(self, **options):\n        await super().startup(**options)\n        {ready}\n"
        "server = Server(uvicorn.Config(app, port=0, log_level='critical'))\nawait server.serve()\nnever = 1"
    )
    running, _ = await begun(agent, common_place, code)
    said = await agent.text("interrupt")
    assert re.match(r"interrupted: In \[\d+\] ended by the interrupt ", said), said
    assert TAKEN in said
    text = await asyncio.wait_for(running, PATIENCE)
    assert text.endswith("\nInterrupted."), text  # uvicorn raises the signal again when it is done
    found = await agent.run(
        "'never' in globals(), server.should_exit, server.force_exit, len(server._captured_signals)"
    )
    assert found.endswith("(False, True, False, 1)"), found


@pytest.mark.parametrize("waits", ["time.sleep(0.05)", "await asyncio.sleep(0.05)"])
@pytest.mark.case("N05")
async def test_what_a_handler_raises_is_a_complete_error_record(agent: Agent, common_place: Place, waits: str) -> None:
    code = (
        "import asyncio, signal, time\npresses = 0\n"
        "def handler(signum, frame):\n    global presses\n    presses += 1\n    print('press', presses)\n"
        "    if presses == 2: raise SystemExit('aborted, checkpoint not saved')\n"
        f"signal.signal(signal.SIGINT, handler)\n{{ready}}\nwhile True: {waits}"
    )
    running, _ = await begun(agent, common_place, code)
    assert TAKEN in await agent.text("interrupt")
    said = await agent.text("interrupt")
    assert re.match(rf"ended: In \[\d+\] has ended .* its state is error; {TAKEN}\.", said), said
    text = await asyncio.wait_for(running, PATIENCE)
    assert "press 1\npress 2\n" in text
    assert text.endswith("\nSystemExit: aborted, checkpoint not saved"), text
    traceback = await agent.text("read_output", stream="traceback")
    assert "in handler(signum, frame)" in traceback
    assert traceback.endswith("\nSystemExit: aborted, checkpoint not saved")
    assert traceback.count("Traceback") == 1
    await can_be_interrupted(agent, common_place)


@pytest.mark.case("N04")
async def test_of_a_cell_that_ignores_or_blocks_sigint_just_that_is_said(agent: Agent, common_place: Place) -> None:
    for how, said_so in (
        ("signal.signal(signal.SIGINT, signal.SIG_IGN)", "SIGINT is ignored while it runs"),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])", "the cell blocks SIGINT"),
    ):
        code = f"import signal, time\n{how}\n{{ready}}\nwhile not open(go).read(): time.sleep(0.02)"
        running, go = await begun(agent, common_place, code)
        said = await agent.text("interrupt")
        assert said.startswith("interrupt_sent: "), said
        assert f"; it has not felt the interrupt: {said_so}. " in said, said
        go.write_text("on")
        await running
        await can_be_interrupted(agent, common_place)


@pytest.mark.parametrize("default", ["SIG_DFL", "default_int_handler"])
async def test_the_default_action_ends_the_cell_and_not_the_kernel(
    agent: Agent, common_place: Place, default: str
) -> None:
    code = f"import signal, time\nsignal.signal(signal.SIGINT, signal.{default})\n{{ready}}\ntime.sleep(600)"
    running, _ = await begun(agent, common_place, code)
    assert (await agent.text("interrupt")).startswith("interrupted: ")
    assert (await running).endswith("\nInterrupted.")
    assert (await agent.run("go is None")).endswith("False")


async def test_code_finds_the_handlers_that_it_has_set(agent: Agent) -> None:
    code = (
        "import os, signal\n"
        "def own(*_): pass\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "assert signal.signal(signal.SIGINT, own) is signal.default_int_handler\n"
        "assert signal.getsignal(signal.SIGINT) is own\n"
        "assert signal.signal(signal.SIGINT, signal.SIG_IGN) is own\n"
        "child = os.fork()\n"
        "if not child: os._exit(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1\n"
        "assert signal.signal(signal.SIGINT, own) == signal.SIG_IGN\n"
        "assert signal.signal(signal.SIGUSR1, own) == signal.SIG_DFL\n"
        "assert signal.getsignal(signal.SIGUSR1) is own\n"
        "assert signal.signal(signal.SIGUSR1, signal.SIG_DFL) is own\n"
        "'as set'"
    )
    assert (await agent.run(code)).endswith("'as set'")
    found = await agent.run("signal.getsignal(signal.SIGINT) is signal.default_int_handler")
    assert found.endswith("True")


@pytest.mark.case("N04")
async def test_a_program_of_the_cells_gets_one_sigint_however_the_cell_waits_for_it(
    agent: Agent, common_place: Place
) -> None:
    """It ends gracefully by the first, and would abort by a second one."""
    program = common_place.workspace / "graceful.py"
    program.write_text(
        "import os, signal, sys, time\nhits = []\nsignal.signal(signal.SIGINT, lambda *_: hits.append(1))\n"
        "open(sys.argv[1], 'w').close()\nwhile not hits: time.sleep(0.01)\n"
        "until = time.monotonic() + 0.5\nwhile time.monotonic() < until: time.sleep(0.01)\n"
        "open(sys.argv[2], 'w').write(str(len(hits)))"
    )
    mark, noted = common_place.workspace / "began", common_place.workspace / "noted"
    line = f"{sys.executable} {program} {mark} {noted}"
    for cell in (f"!{line}", f"%%bash\n{line}", f"x = !{line}", f"import os; os.system({line!r})"):
        mark.unlink(missing_ok=True)
        noted.unlink(missing_ok=True)
        running = asyncio.create_task(agent.run(f"{BEGIN}{cell}"))

        async def there() -> bool:
            return mark.exists()

        await until(there)
        await agent.text("interrupt")
        await asyncio.wait_for(running, PATIENCE)
        assert noted.read_text() == "1", cell


STRAY = {
    "SIGALRM": (
        "import signal\ndef late(*_): raise TimeoutError('took too long')\n"
        "before = signal.signal(signal.SIGALRM, late); signal.setitimer(signal.ITIMER_REAL, 0.2)[0]",
        "the handler of SIGALRM failed while no cell ran: TimeoutError: took too long",
    ),
    "SystemExit in a handler": (
        "import os, signal, threading\ndef leave(*_): raise SystemExit('bye')\n"
        "before = signal.signal(signal.SIGUSR1, leave)\n"
        "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()",
        "the handler of SIGUSR1 failed while no cell ran: SystemExit: bye",
    ),
    "a callback": (
        "import asyncio\ndef later(): 1 / 0\ntimer = asyncio.get_running_loop().call_later(0.2, later)",
        "the callback later failed after the cell ended: ZeroDivisionError: division by zero",
    ),
    "SystemExit in a callback": (
        "import asyncio\ndef leave(): raise SystemExit('bye')\n"
        "timer = asyncio.get_running_loop().call_later(0.2, leave)",
        "the callback leave failed: SystemExit: bye",
    ),
    "KeyboardInterrupt in a callback": (
        "import asyncio\ndef leave(): raise KeyboardInterrupt\n"
        "timer = asyncio.get_running_loop().call_later(0.2, leave)",
        "the callback leave failed: KeyboardInterrupt",
    ),
    "SystemExit in a task": (
        "import asyncio\nasync def leave():\n    await asyncio.sleep(0.2)\n    raise SystemExit('bye')\n"
        "task = asyncio.create_task(leave())",
        "the task leave failed after the cell ended: SystemExit: bye",
    ),
}


@pytest.mark.parametrize("what", STRAY)
@pytest.mark.case("N13")
async def test_what_fails_between_cells_is_told_with_its_traceback_and_does_not_end_the_kernel(
    agent: Agent, what: str
) -> None:
    code, notice = STRAY[what]
    text = await agent.run(code)
    number = int(text.partition("[")[2].partition("]")[0])

    async def told() -> bool:
        return notice.partition(": ")[2].partition(":")[0] in await agent.text(
            "read_output", execution=number, stream="traceback"
        )

    await until(told)
    heard = text + await agent.run("'alive'")
    assert "'alive'" in heard
    status = await agent.text("status")
    assert f"In [{number}] · {notice}" in status, status


@pytest.mark.case("N13")
async def test_a_time_limit_by_an_alarm_ends_an_await(agent: Agent) -> None:
    code = (
        "import asyncio, signal\ndef late(*_): raise TimeoutError('took too long')\n"
        "signal.signal(signal.SIGALRM, late); signal.setitimer(signal.ITIMER_REAL, 0.2)\nawait asyncio.sleep(600)"
    )
    assert (await agent.run(f"{BEGIN}{code}")).endswith("\nTimeoutError: took too long")


@pytest.mark.parametrize(
    "call", ["kernel.do_shutdown(True)", "kernel.stop()", "kernel.parent.exit()", "kernel.parent.close()"]
)
@pytest.mark.case("N17")
async def test_code_that_would_restart_its_kernel_is_told_the_way(agent: Agent, call: str) -> None:
    await agent.run("kept = 41")
    text = text_of(await agent.call("run_cell", freeform=f"get_ipython().{call}\nkept = 0"))
    assert "SystemExit: this ended the cell, not the kernel" in text
    assert "use `restart`" in text
    assert (await agent.run("kept")).endswith(": 41")
