"""Many at once: calls, kernels, processes of a cell. Each gets what is its own, and nothing stays."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys

import psutil
import pytest

from tests.e2e import http_driving
from tests.e2e.driving import COMMAND, PATIENCE, Agent, Place, text_of, until
from tests.e2e.http_driving import Session, web
from tests.e2e.oracle import descriptors, is_alive, kernel_of, started_by

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="the oracle reads /proc"),
]

KERNELS = 64
LOOKS = ["status", "execution_status", "read_output", "wait"]


async def test_of_results_that_leave_together_one_carries_a_notice(agent: Agent) -> None:
    """Told with one of these or with the next; never with two."""
    said: list[str] = [await agent.run("import threading")]
    for round in range(25):
        notes = "; ".join(f"loommux.notify('{which} {round}')" for which in ("first", "second"))
        said.append(await agent.run(f"def say(): {notes}"))
        calls = [agent.call("run_cell", freeform="threading.Timer(0.002, say).start()")]
        calls += [agent.call(name) for name in LOOKS * 2]
        said += [text_of(result) for result in await asyncio.gather(*calls)]
    said.append(await agent.run("'the last'"))
    envelopes = [text.partition("<loommux-notice>")[2] for text in said]
    told = [word for text in envelopes for word in re.findall(r"\b(?:first|second) \d+$", text, re.M)]
    assert sorted(told) == sorted(f"{which} {round}" for round in range(25) for which in ("first", "second"))


# -- processes that a cell starts through multiprocessing -----------------------------------

IMPORTS = "%%loommux --wait 60 --silence 60\nimport concurrent.futures as cf, multiprocessing as mp\n"
#: A function of a module that children can import, and one that only the kernel knows.
IMPORTABLE = "from operator import neg as work\n"
OWN = "def work(x): return -x\n"
EXECUTOR = (
    "with cf.ProcessPoolExecutor(2, mp_context=mp.get_context({method!r})) as p: print(list(p.map(work, range(3))))"
)
POOL = "with mp.get_context({method!r}).Pool(2) as p: print(p.map(work, range(3)))"


async def workers(agent: Agent) -> set[psutil.Process]:
    """What multiprocessing has started, its helpers left out: they stay for later pools."""
    _, kernel = await kernel_of(agent)
    return {p for p in started_by(kernel) if not is_helper(p)}


def is_helper(process: psutil.Process) -> bool:
    try:
        return bool(re.search(r"multiprocessing\.(resource_tracker|forkserver)", " ".join(process.cmdline())))
    except psutil.Error:
        return True


async def nothing_runs_on(agent: Agent) -> None:
    left: set[psutil.Process] = set()

    async def none() -> bool:
        nonlocal left
        left = await workers(agent)
        return not left

    try:
        await until(none, 20)
    except TimeoutError:
        raise AssertionError(f"left: {[(p, p.cmdline(), p.ppid()) for p in left]}") from None


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
async def test_multiprocessing_works_with_what_its_workers_can_import(agent: Agent, method: str) -> None:
    for pool in (EXECUTOR, POOL):
        assert "[0, -1, -2]" in await agent.run(IMPORTS + IMPORTABLE + pool.format(method=method))
    await nothing_runs_on(agent)


async def test_a_forked_worker_knows_the_functions_of_cells(agent: Agent) -> None:
    for pool in (EXECUTOR, POOL):
        assert "[0, -1, -2]" in await agent.run(IMPORTS + OWN + pool.format(method="fork"))
    await nothing_runs_on(agent)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.case("E09")
async def test_a_worker_that_cannot_know_a_cells_function_says_so_and_is_gone_afterwards(
    agent: Agent, method: str
) -> None:
    cell = IMPORTS + OWN + EXECUTOR.format(method=method)
    for before in ("None", "%reset -f"):
        await agent.run(before)
        text = await agent.run(cell)
        assert "AttributeError: Can't get attribute 'work' on <module '__main__'" in text
        assert "BrokenProcessPool" in text
        assert "__spec__" not in text
    await nothing_runs_on(agent)
    # A Pool starts its workers again for ever: an interrupt ends that too.
    running = asyncio.create_task(agent.run(IMPORTS + OWN + POOL.format(method=method)))

    number = int(text.partition("[")[2].partition("]")[0]) + 1

    async def failed() -> bool:
        return "AttributeError" in text_of(await agent.call("read_output", execution=number, stream="stderr"))

    await until(failed)
    assert (await agent.text("interrupt")).startswith("interrupted: ")
    assert "\nInterrupted." in await asyncio.wait_for(running, PATIENCE)
    await nothing_runs_on(agent)
    assert "Out" in await agent.run("'untouched'")


@pytest.mark.parametrize("ending", ["raise ValueError('in the child')", "import sys; sys.exit(7)", "exit()", "pass"])
async def test_a_forked_child_that_leaves_its_cell_ends_there(agent: Agent, ending: str) -> None:
    text = await agent.run(f"import os\nchild = os.fork()\nif child == 0:\n    {ending}\nchild")
    found = re.search(r"^Out\[\d+\]: ([1-9]\d*)$", text, re.M)  # the child may have said something too
    assert found is not None, text
    child = psutil.Process(int(found[1]))

    async def ended() -> bool:
        return not is_alive(child)

    await until(ended)
    assert "Out" in await agent.run("os.waitpid(child, 0)[1] >= 0")
    assert "In [" in await agent.run("'one kernel'")
    await nothing_runs_on(agent)


# -- kernels -----------------------------------------------------------------------------------


async def pids(sessions: list[Session]) -> set[int]:
    """The kernels of all sessions, by what a program in each says at the same time; all are different."""
    source = "import os, subprocess, time; time.sleep(0.2)\nsubprocess.run(['echo', 'pid', str(os.getpid())])\nNone"
    answers = await asyncio.gather(*(session.cell(source) for session in sessions))
    found = {int(pid) for answer in answers for pid in re.findall(r"pid (\d+)", answer.text)}
    assert len(found) == len(sessions)
    return found


@pytest.mark.timeout(300)
async def test_sixty_four_kernels_of_an_unprivileged_server_work_side_by_side(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = ["prlimit", "--nofile=1024:1024"]
    if os.geteuid() == 0:  # root without capabilities is held to the limits of everybody
        limits += ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    if not all(map(shutil.which, ("prlimit", "setpriv"))):
        pytest.skip("needs prlimit and setpriv")
    monkeypatch.setattr(http_driving, "COMMAND", [*limits, *COMMAND])
    async with web(place) as server, server.http() as http:
        sessions = [await Session.open(http) for _ in range(KERNELS)]
        kernels = await pids(sessions)
        assert await pids(sessions) == kernels
        assert all(is_alive(psutil.Process(pid)) for pid in kernels)
        assert descriptors(psutil.Process(server.process.pid)) < 1024
