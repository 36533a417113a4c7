"""What a kernel has started ends with it, and is counted."""

from __future__ import annotations

import sys

import pytest

from tests.e2e.driving import Agent
from tests.e2e.oracle import is_alive, living_kernel_of, started_by

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="the oracle reads /proc"),
]

#: What a process ends by itself, through its exit handlers, when it is asked to leave.
HANDLED = {
    "a pool": "import multiprocessing\npool = multiprocessing.Pool(4); pool.map(abs, [1])",
    "an executor": (
        "import concurrent.futures\npool = concurrent.futures.ProcessPoolExecutor(4)\nlist(pool.map(abs, range(8)))"
    ),
    "programs that an exit handler ends": (
        "import atexit, subprocess\nprograms = [subprocess.Popen(['sleep', '989']) for _ in range(4)]\n"
        "for program in programs: atexit.register(program.wait); atexit.register(program.kill)"
    ),
    "programs that nobody ends": (
        "import subprocess\nfor i in range(4): subprocess.Popen(['sleep', '990'], start_new_session=i > 1)"
    ),
}


@pytest.mark.case("R08")
@pytest.mark.parametrize("kind", HANDLED)
async def test_a_restart_counts_also_what_the_old_process_ended_itself(agent: Agent, kind: str) -> None:
    _, kernel = await living_kernel_of(agent)
    await agent.run(HANDLED[kind])
    started = started_by(kernel)
    assert len(started) >= 4
    said = await agent.text("restart")
    assert f"\nEnded with it: {len(started)} child processes.\n" in said
    assert [p for p in started if is_alive(p)] == []
    assert "No cell and no other process was running." in await agent.text("restart")
