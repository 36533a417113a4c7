"""However a kernel's process ends: Python's resource tracker removes the shared memory that it has made."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.driving import Agent, Place, StartLines, until
from tests.e2e.oracle import is_alive, kernel_of, started_by

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere shared memory is in no directory"),
]

SPIN = "%%loommux --wait 0.1 --silence 0.1\nwhile True: pass"
#: Ignores the interpreter and every signal that can be ignored.
HELD = "%%loommux --wait 0.1 --silence 0.1\nimport ctypes\nctypes.PyDLL(None).sleep(1000)"
MAKE = """\
from multiprocessing import shared_memory
segment = shared_memory.SharedMemory(create=True, size=1000, name={!r})
import os; os.getpid()"""
#: Workers that have the tracker's pipe too, and a semaphore of theirs.
WORKERS = """\
import multiprocessing
spawn = multiprocessing.get_context("spawn")
pool = spawn.Pool(2); pool.map(abs, [1, 2])"""


@pytest.fixture
def name() -> Iterator[str]:
    made = f"loommux-test-{uuid.uuid4().hex[:12]}"
    yield made
    for path in shared(made):
        path.unlink()


def shared(name: str) -> list[Path]:
    return list(Path("/dev/shm").glob(f"{name}*"))


async def is_gone(name: str) -> None:
    """The segment, soon."""

    async def gone() -> bool:
        return not shared(name)

    await until(gone, 10)


async def tracker_is_there(kernel: psutil.Process) -> None:
    """Python does not wait until the tracker that it has forked is the program that it is to be."""

    async def there() -> bool:
        return any("resource_tracker" in " ".join(p.cmdline()) for p in started_by(kernel))

    await until(there)


@pytest.mark.parametrize("does", ["nothing", "spins", "holds the interpreter", "has workers"])
@pytest.mark.case("N14")
async def test_a_restart_leaves_no_shared_memory(agent: Agent, name: str, does: str) -> None:
    for number in range(3):
        await agent.run(MAKE.format(f"{name}-{number}"))
        if does == "has workers":
            await agent.run(WORKERS)
        elif does != "nothing":
            assert "Running" in await agent.run(SPIN if does == "spins" else HELD)
        assert len(shared(name)) == 1
        assert (await agent.text("restart")).startswith("restarted: ")
        assert shared(name) == []  # when the answer is there, all is gone


@pytest.mark.parametrize("death", ["os.kill(os.getpid(), 9)", "os._exit(3)", "os.abort()"])
@pytest.mark.case("N14")
async def test_a_death_leaves_no_shared_memory(agent: Agent, name: str, death: str) -> None:
    await agent.run(MAKE.format(name))
    assert len(shared(name)) == 1
    assert "Killed: " in await agent.run(death)
    await is_gone(name)


@pytest.mark.parametrize("flags", [[], ["--spawn"]], ids=["forked", "spawned"])
@pytest.mark.parametrize("killed", ["nobody", "server", "init", "guard", "init+guard", "server+init", "server+guard"])
@pytest.mark.case("N14")
async def test_whoever_ends_or_is_killed_no_shared_memory_is_left(
    lines: StartLines, place: Place, name: str, killed: str, flags: list[str]
) -> None:
    server = lines(*flags)
    await server.open()
    kernel = psutil.Process(int((await server.cell(MAKE.format(name))).split()[-1]))
    init, guard = kernel.parents()[:2]
    people = {"server": psutil.Process(server.process.pid), "init": init, "guard": guard}
    assert len(shared(name)) == 1
    await tracker_is_there(kernel)
    if killed == "nobody":
        server.stdin.close()
        assert await server.exit_code() == 0
    else:
        for one in killed.split("+"):
            os.kill(people[one].pid, signal.SIGKILL)
    await is_gone(name)

    async def ended() -> bool:
        return not is_alive(kernel)

    await until(ended)


@pytest.mark.case("N14")
async def test_an_interrupt_leaves_the_tracker_and_what_it_keeps(agent: Agent, name: str) -> None:
    made = f"%%loommux --wait 0.2 --silence 0.2\n{MAKE.format(name)}\nimport time\ntime.sleep(1000)"
    assert "Running" in await agent.run(made)
    await agent.text("interrupt")
    _, kernel = await kernel_of(agent)
    assert [p for p in started_by(kernel) if "resource_tracker" in " ".join(p.cmdline())]
    assert "Out[" in await agent.run("bytes(segment.buf[:1])")
    await agent.text("restart")
    assert shared(name) == []
