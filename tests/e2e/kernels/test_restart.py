"""restart replaces the process with everything it started, whatever that does, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
import re
import sys
from dataclasses import dataclass

import psutil
import pytest

from tests.e2e.driving import PATIENCE, Agent, Place, attached, foreign, until
from tests.e2e.http_driving import web
from tests.e2e.oracle import descriptors, is_alive, kernel_of, living_kernel_of, recorded, started_by
from tests.e2e.trees import below

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="the oracle reads /proc"),
]

#: The contract says ten seconds, startup not counted; a machine that runs much else gets more.
REPLACED = 60.0
RESTARTS = 100
#: Fifty programs: plain ones, some that left the session, daemons, with a cleared environment, under nohup, deaf ones.
FIFTY = """\
import os, subprocess, sys
for more in ({}, {"start_new_session": True}, {"env": {}}):
    for _ in range(10): subprocess.Popen(["/bin/sleep", "1000"], **more)
for _ in range(10): subprocess.run("nohup setsid sleep 1000 >/dev/null 2>&1 &", shell=True)
daemon = '''
import os, signal
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)
os.closerange(0, 256)
os.execve("/bin/sleep", ["sleep", "1000"], {})
'''
for _ in range(10): subprocess.run([sys.executable, "-c", daemon], env={}, check=True)
"""
DEAF = """\
%%loommux --wait 0.3 --silence 0.3
import signal
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True:
    try:
        while True: pass
    except BaseException: pass"""
#: Two locks of one mutex: the second never returns, with the interpreter in its hands.
STUCK = (
    "%%loommux --wait 0.3 --silence 0.3\nimport ctypes\nlock, mutex = ctypes.PyDLL(None).pthread_mutex_lock,"
    " ctypes.create_string_buffer(64)\nlock(mutex)\nlock(mutex)"
)


async def fifty(agent: Agent) -> set[psutil.Process]:
    """Start them; they are there."""
    await living_kernel_of(agent)
    _, kernel = await kernel_of(agent)
    await agent.run(FIFTY)

    async def all_there() -> bool:
        return len([p for p in started_by(kernel) if p.name() == "sleep"]) == 50

    await until(all_there)
    return started_by(kernel)


@pytest.mark.parametrize("does", ["nothing", "is deaf", "holds the interpreter"])
@pytest.mark.case("R08")
async def test_a_restart_always_works_and_says_how_much_it_ended(agent: Agent, does: str) -> None:
    children = await fifty(agent)
    process, kernel = await kernel_of(agent)
    ended = ""
    if does != "nothing":
        running = await agent.run(DEAF if does == "is deaf" else STUCK)
        assert "Running" in running
        ended = running.partition(" · ")[0]
    async with asyncio.timeout(REPLACED):
        said = await agent.text("restart")
    left = [p for p in (kernel, *children) if is_alive(p)]
    assert left == []
    new, replaced = await kernel_of(agent)
    assert new == process + 1
    first, second, third = said.splitlines()
    assert first == (
        f"restarted: process {new} (pid {replaced.pid}) replaces process {process} (pid {kernel.pid})."
        " Variables are gone; the next cell is In [1]."
    )
    found = re.fullmatch(r"Ended with it: (?:(In \[\d+\]) after [\d.]+ m?s, )?50 child processes\.", second)
    assert found, said
    assert (found[1] or "") == ended
    assert third == f"Records: process={process}."
    assert started_by(replaced) == set()
    assert "NameError" in await agent.run("daemon")


@pytest.mark.case("R24")
async def test_whoever_waits_is_told_that_a_restart_ended_the_cell(agent: Agent) -> None:
    process, _ = await living_kernel_of(agent)
    running = asyncio.create_task(
        agent.run("%%loommux --wait 60 --silence 60\nimport time; print('before', flush=True); time.sleep(600)")
    )

    async def prints() -> bool:
        return "before" in await agent.text("read_output")

    await until(prints)
    waiting = asyncio.create_task(agent.text("wait", timeout_seconds=PATIENCE, silence_seconds=PATIENCE))
    await agent.text("execution_status")  # answered when the call before it waits
    restarting = asyncio.create_task(agent.text("restart"))
    texts = await asyncio.gather(running, waiting)
    how = rf"Killed: process {process} ended by restart \(session mcp-\w+\)\. Variables"
    for text in texts:
        assert re.match(rf"In \[\d+\] · [\d.]+ m?s:\nbefore\n{how}", text), text
    await restarting
    assert "kernel_died" not in await agent.run("1")


async def test_an_idle_process_runs_its_atexit_handlers_and_one_that_hangs_in_them_does_not_stay(
    agent: Agent, common_place: Place
) -> None:
    _, kernel = await living_kernel_of(agent)
    path = common_place.workspace / "handled"
    await agent.run(
        "import atexit, pathlib, time\natexit.register(lambda: time.sleep(600))\n"
        f"atexit.register(lambda: pathlib.Path({str(path)!r}).write_text('here'))"
    )
    async with asyncio.timeout(REPLACED):
        await agent.text("restart")
    assert path.read_text() == "here"
    assert not is_alive(kernel)


async def test_a_program_that_floods_does_not_hold_up_the_end(agent: Agent) -> None:
    _, kernel = await living_kernel_of(agent)
    await agent.run("%%loommux --wait 3 --silence 3\nimport subprocess; subprocess.run('yes', shell=True)")
    children = started_by(kernel)
    async with asyncio.timeout(REPLACED):
        said = await agent.text("restart")
    assert f"{len(children)} child processes" in said
    assert [p for p in (kernel, *children) if is_alive(p)] == []


async def test_an_attached_client_stays_connected_and_is_named(agent: Agent) -> None:
    await living_kernel_of(agent)
    async with attached(agent) as client:
        await foreign(client, "here = 1")
        said = await agent.text("restart")
        assert re.search(r"^Attached clients, which stay connected: .+\.$", said, re.M), said
        await client.wait_for_ready(timeout=PATIENCE)  # its sockets find the new process by themselves
        await foreign(client, "again = 2")
        assert "Out[2]: 2" in await agent.run("again")


#: Prints ever more; a flush after a pause says that what was printed survives, and it is noted what did.
PRINTING = """\
%%loommux --wait 0.05 --silence 10
import os, sys, threading, time
noted = os.open({path!r}, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
def flood():
    while True:
        print("x" * 500, file=sys.stderr)
        time.sleep(0.0005)
threading.Thread(target=flood, daemon=True).start()
for n in range(1, 10**9):
    time.sleep(0.055)
    print(f"line {{n}}", flush=True)
    os.pwrite(noted, b"%d" % n, 0)"""


@dataclass(frozen=True)
class Held:
    """What a server holds of the system."""

    descriptors: int
    processes: int
    files: int
    threads: int
    memory: int

    @classmethod
    async def by(cls, server: psutil.Process, place: Place) -> Held:
        """When it is at rest: what belongs to processes that ended a moment ago is let go of soon."""

        def look() -> Held:
            files = [f for f in place.files() if "/ipython" not in f]
            family = server.children(recursive=True)
            return cls(descriptors(server), len(family), len(files), server.num_threads(), server.memory_info().rss)

        seen = look()
        for _ in range(100):
            await asyncio.sleep(0.05)
            before, seen = seen, look()
            if before == seen:
                break
        return seen


async def restart_in_the_middle_of_writing(agent: Agent, place: Place, name: str, times: int) -> None:
    """Each time, what a flush said is in the record is read from it, and the store is sound."""
    chance, noted = random.Random(name), place.workspace / f"noted {name}"

    async def has_noted() -> bool:
        return noted.exists() and noted.stat().st_size > 0

    for _ in range(times):
        process, _ = await living_kernel_of(agent)
        noted.unlink(missing_ok=True)
        assert "Running" in await agent.run(PRINTING.format(path=str(noted)))
        await until(has_noted)
        await asyncio.sleep(chance.random() * 0.03)
        assert "\nEnded with it: In [2] after " in await agent.text("restart")
        read = await agent.text("read_output", execution=2, process=process, stream="stdout")
        assert f"line {int(noted.read_text())}" in read.splitlines()
        status = await agent.text("status")
        kernel = re.search(r"-([0-9a-f]{8})\.json", status)
        assert kernel is not None
        (store,) = below(place.temporary, f"k-{kernel[1]}/{process}/records.sqlite")
        assert recorded(store, "PRAGMA integrity_check") == [("ok",)]
        assert recorded(store, "SELECT state FROM executions WHERE number = 2") == [("killed",)]


@pytest.mark.timeout(600)
async def test_a_hundred_restarts_in_the_middle_of_writing_lose_nothing_and_leave_all_where_it_was(
    place: Place,
) -> None:
    """Two kernels of one server at a time, because most of a restart is one core's work."""
    async with web(place) as server, server.agent() as one, server.agent() as two:

        async def restart(times: int) -> Held:
            agents = {"one": one, "two": two}
            await asyncio.gather(
                *(restart_in_the_middle_of_writing(a, place, name, times) for name, a in agents.items())
            )
            return await Held.by(psutil.Process(server.process.pid), place)

        first = await restart(5)
        last = await restart(RESTARTS // 2 - 5)
    assert (first.descriptors, first.processes, first.files) == (last.descriptors, last.processes, last.files)
    assert last.threads - first.threads < 10  # workers come and go
    assert last.memory - first.memory < 10 << 20, (first, last)
