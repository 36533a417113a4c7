"""Whatever a cell does, an interrupt does what it says: to that cell and its processes, and to nothing else."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator

import psutil
import pytest

from tests.e2e.driving import PATIENCE, Agent, Place, text_of, until
from tests.e2e.oracle import is_alive, kernel_of, started_by

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="the oracle reads /proc"),
]

BEGIN = "%%loommux --wait 60 --silence 60\n"
#: Cells that an interrupt ends, and how many processes they have when they wait for them.
ENDED: dict[str, tuple[str, int]] = {
    "sleep": ("import time; time.sleep(600); never = 1", 0),
    "loop": ("while True: pass", 0),
    "loop after await": ("import asyncio\nawait asyncio.sleep(0)\nwhile True: pass", 0),
    "await": ("import asyncio\nawait asyncio.get_running_loop().create_future()\nnever = 1", 0),
    "queue": ("import queue\nqueue.Queue().get()", 0),
    "native, without the interpreter": ("import ctypes\nwhile True: ctypes.CDLL(None).pause()", 0),
    "subprocess.run": ("import subprocess\nsubprocess.run(['sh', '-c', 'sleep 600; true'])\nnever = 1", 2),
    "os.system": ("import os\nos.system('sleep 600; true')\nnever = 1", 2),
    "os.system again and again": ("import os\nwhile True: os.system('sleep 600')", 1),
    "bash, children": ("%%bash\nbash -c 'sleep 600 & wait'\ntrue", 3),
    "bash, background": ("%%bash\nsleep 600 &\n(trap '' INT; sleep 600) &\nsleep 600\ntrue", 4),
    "bash, deaf": ("%%bash\ntrap '' INT TERM\nwhile true; do sleep 600; done", 2),
    "!": ("!sleep 600\nnever = 1", 1),
    "capturing !": ("never = !sleep 600", 1),
    "pool": ("import multiprocessing, time\nwith multiprocessing.Pool(2) as p: p.map(time.sleep, [600] * 2)", 2),
    "executor": (
        "import concurrent.futures, time\n"
        "with concurrent.futures.ProcessPoolExecutor(2) as p: list(p.map(time.sleep, [600] * 2))\nnever = 1",
        2,
    ),
}


@pytest.fixture(scope="module")
async def server(agent: Agent) -> AsyncIterator[psutil.Process]:
    """A program that an earlier cell has started in the background; it has to outlive every interrupt."""
    await agent.run("import subprocess\nserver = subprocess.Popen(['sleep', '9000'])")
    _, kernel = await kernel_of(agent)
    (program,) = started_by(kernel)
    yield program
    assert is_alive(program)


@pytest.fixture(autouse=True)
async def idle_at_the_end(agent: Agent) -> AsyncIterator[None]:
    """A test that fails does not take the others with it."""
    yield
    if "busy" in (await agent.text("status")).partition("\n")[0]:
        await agent.text("restart")
        raise AssertionError("a cell still ran")


async def cells_processes(agent: Agent) -> set[psutil.Process]:
    """What lives of what the running cell has started: all but the background program."""
    _, kernel = await kernel_of(agent)
    return {p for p in started_by(kernel) if not _is_spared(p)}


def _is_spared(process: psutil.Process) -> bool:
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return True  # gone
    return command == "sleep 9000" or "multiprocessing.resource_tracker" in command


async def begun(agent: Agent, place: Place, code: str, processes: int) -> asyncio.Task[str]:
    """Send a cell and wait until it does what it is about."""
    mark = place.workspace / "began"
    mark.unlink(missing_ok=True)
    touch = f"open({str(mark)!r}, 'w').close()\n"
    in_shell = code.startswith("%%bash")
    source = BEGIN + (code.replace("\n", f"\ntouch {mark}\n", 1) if in_shell else touch + code)
    task = asyncio.create_task(agent.run(source))

    async def there() -> bool:
        return mark.exists() and len(await cells_processes(agent)) >= processes

    await until(there, 20)
    return task


async def is_untouched(agent: Agent) -> None:
    """The next cell runs as if nothing had been, and the kernel has kept what it had."""
    text = await agent.run("assert 'never' not in globals() and server.poll() is None\n'un' + 'touched'")
    assert re.fullmatch(r"In \[(\d+)\] · [\d.]+ m?s:\nOut\[\1\]: 'untouched'", text), text


@pytest.mark.parametrize("what", ENDED)
@pytest.mark.case("R04", "R07")
async def test_an_interrupt_ends_the_cell_and_the_processes_that_it_started(
    agent: Agent, common_place: Place, server: psutil.Process, what: str
) -> None:
    code, processes = ENDED[what]
    running = await begun(agent, common_place, code, processes)
    started = await cells_processes(agent)
    said = await agent.text("interrupt")
    left = [p for p in started if is_alive(p)] + list(await cells_processes(agent))
    assert said.startswith("interrupted: In ["), said
    assert left == [], said
    assert started or "Ended: " not in said
    assert "alive" not in said
    text = await asyncio.wait_for(running, PATIENCE)
    assert text.endswith("\nInterrupted."), text
    await is_untouched(agent)
    assert is_alive(server)


async def test_a_cells_processes_get_sigint_then_sigterm_then_sigkill_a_second_apart(
    agent: Agent, common_place: Place, server: psutil.Process
) -> None:
    noted = common_place.workspace / "signals"
    program = (
        "import os, signal, time\n"
        f"noted = os.open({str(noted)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
        "def note(number, frame): os.write(noted, b'%d %f\\n' % (number, time.monotonic()))\n"
        "for number in (1, 2, 15): signal.signal(number, note)\n"
        "os.write(noted, b'ready\\n')\n"
        "while True: time.sleep(600)"
    )
    code = f"import subprocess, sys\nprogram = subprocess.Popen([sys.executable, '-c', {program!r}])\nprogram.wait()"
    running = await begun(agent, common_place, code, 1)

    async def ready() -> bool:
        return noted.exists() and noted.read_text() == "ready\n"

    await until(ready)
    said = await agent.text("interrupt")
    assert said.endswith("\nEnded: 1 process that it had started."), said
    assert (await running).endswith("\nInterrupted.")
    assert "Out" in await agent.run("assert program.wait() == -9; 'killed'")
    _, *signals = (line.split() for line in noted.read_text().splitlines())
    assert [int(number) for number, _ in signals] == [signal.SIGINT, signal.SIGTERM]
    assert float(signals[1][1]) - float(signals[0][1]) > 0.9
    await is_untouched(agent)


async def test_what_a_cell_starts_up_to_its_very_end_ends_too(
    agent: Agent, common_place: Place, server: psutil.Process
) -> None:
    """Some are started after the interrupt was sent; all of them are deaf to it."""
    code = "import subprocess\nwhile True: subprocess.Popen(['sh', '-c', \"trap '' INT; sleep 600\"])"
    running = await begun(agent, common_place, code, 10)
    assert (await agent.text("interrupt")).startswith("interrupted: ")
    assert (await running).endswith("\nInterrupted.")

    async def all_gone() -> bool:
        return not await cells_processes(agent)

    await until(all_gone, 20)
    await is_untouched(agent)


async def test_processes_that_left_the_session_are_left_alone_and_named(
    agent: Agent, common_place: Place, server: psutil.Process
) -> None:
    code = "import subprocess, time\nsubprocess.Popen(['sleep', '601'], start_new_session=True)\ntime.sleep(600)"
    running = await begun(agent, common_place, code, 1)
    (away,) = await cells_processes(agent)
    said = await agent.text("interrupt")
    assert said.startswith("interrupted: ")
    assert f"Left alone, because they have left the kernel's session: {away.pid} (sleep 601)." in said
    assert is_alive(away)
    away.kill()
    assert (await running).endswith("\nInterrupted.")
    await is_untouched(agent)


async def test_a_cell_that_swallows_interrupts_goes_on_until_it_ends_as_it_does(
    agent: Agent, common_place: Place, server: psutil.Process
) -> None:
    code = (
        "import time\ncaught = 0\n"
        "while caught < 2:\n    try: time.sleep(600)\n    except KeyboardInterrupt: caught += 1"
    )
    running = await begun(agent, common_place, code, 0)
    said = await agent.text("interrupt")
    assert re.match(r"interrupt_sent: In \[\d+\] still runs after [\d.]+ s; it has caught the interrupt", said), said
    assert "restart() always works" in said
    said = await agent.text("interrupt")
    assert re.match(r"ended: In \[\d+\] has ended after [\d.]+ s, not as interrupted; its state is completed", said)
    assert "Interrupted" not in await running
    assert "2" in await agent.run("caught")
    await is_untouched(agent)


async def test_of_native_code_that_nothing_reaches_it_is_said_that_it_still_runs(
    agent: Agent, common_place: Place, server: psutil.Process
) -> None:
    """A mutex that somebody else holds: no signal ends the waiting for it."""
    free = common_place.workspace / "free"
    code = (
        "import ctypes, os, threading, time\nlibc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)\n"
        "libc.pthread_mutex_lock(mutex)\n"
        "def unlock():\n"
        f"    while not os.path.exists({str(free)!r}): time.sleep(0.01)\n"
        "    libc.pthread_mutex_unlock(mutex)\n"
        "threading.Thread(target=unlock).start()\n"
        "libc.pthread_mutex_lock(mutex)\nnever = 1"
    )
    running = await begun(agent, common_place, code, 0)
    said = await agent.text("interrupt")
    not_felt = "it has not felt the interrupt: native code holds it off"
    assert re.match(rf"interrupt_sent: .* {not_felt}\.", said), said
    assert not running.done()
    free.touch()
    assert (await running).endswith("\nInterrupted.")
    await is_untouched(agent)


@pytest.mark.parametrize("first", ["at once", "later"])
@pytest.mark.case("R03")
async def test_of_native_code_that_holds_the_interpreter_the_truth_is_told_also_when_it_is_all_a_cell_does(
    agent: Agent, common_place: Place, server: psutil.Process, first: str
) -> None:
    """Reading from a pipe into which nobody writes, without letting the interpreter go."""
    pipe = common_place.workspace / f"pipe {first}"
    os.mkfifo(pipe)
    await agent.run(f"import ctypes, os\nheld = os.open({str(pipe)!r}, os.O_RDWR)\nread = ctypes.PyDLL(None).read")
    await agent.run("place = ctypes.create_string_buffer(1)")
    code = "read(held, place, 1)\nnever = 1"
    if first == "later":
        code = f"print('said before', flush=True)\n{code}"
    text = await agent.run(f"%%loommux --wait 0.5 --silence 0.5\n{code}")
    assert re.match(r"In \[\d+\] · [\d.]+ m?s:\nRunning, silent for ", text), text
    assert ("said before" in text) == (first == "later")
    number = int(text.partition("[")[2].partition("]")[0])
    assert f"Running: In [{number}] · running" in await agent.text("status")
    assert f"In [{number}] · " in await agent.text("execution_status")
    assert (await agent.refusal("run_cell", freeform="1")).startswith(f"busy: In [{number}] of ")
    said = await agent.text("interrupt")
    assert said.startswith(f"interrupt_sent: In [{number}] still runs after "), said
    assert "the kernel has not taken the interrupt yet: native code holds the interpreter" in said
    with pipe.open("wb") as end:
        end.write(b"x")
    result = await agent.call("wait", execution=number, timeout_seconds=PATIENCE, silence_seconds=PATIENCE)
    assert text_of(result).startswith(f"In [{number}] · ")
    await agent.run("globals().pop('never', None)")  # the interrupt may have come after the end
    await is_untouched(agent)


@pytest.mark.case("R05")
async def test_an_idle_kernel_and_ended_cells_are_not_interrupted(agent: Agent, server: psutil.Process) -> None:
    text = await agent.run("1")
    number = int(text.partition("[")[2].partition("]")[0])
    assert (await agent.refusal("interrupt")).startswith("idle: ")
    assert (await agent.refusal("interrupt", execution=number)).startswith(f"not_running: In [{number}] does not run")
    assert (await agent.refusal("interrupt", execution=9999)).startswith("not_running: ")
    await is_untouched(agent)


async def test_an_interrupt_that_native_code_delays_does_not_hit_the_next_cell(
    agent: Agent, common_place: Place, server: psutil.Process
) -> None:
    """A thread of an idle kernel holds the interpreter when the interrupt is asked for."""
    pipe, go, holds = (common_place.workspace / name for name in ("held", "go", "holds"))
    os.mkfifo(pipe)
    os.mkfifo(go)
    await agent.run(
        f"import ctypes, os, threading\nheld, go = (os.open(p, os.O_RDWR) for p in ({str(pipe)!r}, {str(go)!r}))\n"
        f"def hold():\n    os.read(go, 1)\n    open({str(holds)!r}, 'w').close()\n"
        "    ctypes.PyDLL(None).read(held, ctypes.create_string_buffer(1), 1)\n"
        "thread = threading.Thread(target=hold)"
    )
    await agent.run("thread.start()")
    with go.open("wb") as begin:  # the cell has ended; from here on the kernel is idle
        begin.write(b"x")

    async def is_held() -> bool:
        return holds.exists()

    await until(is_held)
    said = await agent.refusal("interrupt")
    assert re.match(r"kernel_unresponsive: \S+ has not answered for [2-9]\.", said), said
    running = asyncio.create_task(agent.run(BEGIN + "import time\ntime.sleep(0.5)\n'untouched'"))
    await agent.text("status")  # answered when the cell is on its way
    with pipe.open("wb") as end:
        end.write(b"x")
    assert "'untouched'" in await running
    await is_untouched(agent)
