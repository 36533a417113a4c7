"""A cell has taken all that its process may have: it can be interrupted, and the next cell sets things right."""

from __future__ import annotations

import sys

import pytest

from tests.e2e.driving import Start
from tests.e2e.shown import notices, printed

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX"),
]
LIMIT = """\
import resource, subprocess, tempfile
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
files = []"""
FILL = """\
try:
    while True: files.append({})
except OSError as error: print(error.strerror)"""
OPEN = {"files": "open('/dev/null')", "temporary files": "tempfile.TemporaryFile()"}
RUNNING = {
    "sleeps": "import time; time.sleep(60)",
    "sleeps in a loop": "import time\nwhile True: time.sleep(0.01)",
    "awaits": "import asyncio; await asyncio.sleep(60)",
}


@pytest.mark.case("N01")
@pytest.mark.parametrize("kind", OPEN)
async def test_a_kernel_that_is_out_of_descriptors_is_interrupted_and_repaired(start: Start, kind: str) -> None:
    async with start() as agent:
        await agent.run(LIMIT)
        assert "Too many open files" in await agent.run(FILL.format(OPEN[kind]))
        for source in RUNNING.values():
            assert "Running" in await agent.run(f"%%loommux --wait 0.2\n{source}")
            assert (await agent.text("interrupt")).startswith("interrupted: ")
            assert (await agent.refusal("interrupt")).startswith("idle: ")
        assert (await printed(agent, "1/0")).endswith("ZeroDivisionError: division by zero")
        assert await printed(agent, "files.clear(); print('repaired')") == "repaired"
        assert await printed(agent, "!echo a program") == "a program"


@pytest.mark.case("N02")
async def test_the_cell_that_closes_the_files_runs_when_there_are_no_descriptors(start: Start) -> None:
    async with start() as agent:
        await agent.run(LIMIT)
        await agent.run(FILL.format(OPEN["files"]))
        program = "try: subprocess.run(['true'])\nexcept OSError as error: print(error.strerror)"
        assert await printed(agent, program) == "Too many open files"
        # The reserve is used up by and by: each of these ends by wanting files of its own for the next.
        results = [await agent.run(f"{program}\n{FILL.format(OPEN['files'])}") for _ in range(12)]
        assert all("Too many open files" in text and "KernelFault" not in text for text in results)
        assert await printed(agent, "files.clear(); print('repaired')") == "repaired"
        assert await printed(agent, "!echo a program") == "a program"


@pytest.mark.case("N02")
async def test_where_not_one_descriptor_is_left_cells_run_and_it_is_said_what_that_means(start: Start) -> None:
    async with start() as agent:
        await agent.run(LIMIT)
        hard = "resource.getrlimit(resource.RLIMIT_NOFILE)[1]"
        await agent.run(
            f"resource.setrlimit(resource.RLIMIT_NOFILE, (3, {hard}))\ntry: subprocess.run(['true'])\nexcept OSError: 0"
        )
        results = [await agent.run(f"print({n})") for n in range(3)]
        assert all(f"\n{n}\n" in f"{text}\n" for n, text in enumerate(results))
        said = [line for text in results for line in notices(text)]
        shared = "what programs of earlier cells print now counts for this one: it has no files of its own"
        assert said == [f"{shared} (Too many open files)"]
        assert "Running" in await agent.run("%%loommux --wait 0.2\nimport time; time.sleep(60)")
        assert (await agent.text("interrupt")).startswith("interrupted: ")
        await agent.run(f"resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))")
        assert await printed(agent, "!echo a program") == "a program"
