"""A cell has taken all that its process may have: it can be interrupted, and the next cell sets things right."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from tests.e2e.driving import COMMAND, Place, Start, StartLines
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


@pytest.fixture
def account(place: Place) -> list[str]:
    """The beginning of a command that runs as an account of its own, which may have 64 processes."""
    if sys.platform != "linux" or os.geteuid() != 0 or not (shutil.which("setpriv") and shutil.which("prlimit")):
        pytest.skip("only root may be another account, whose processes are counted")
    user = str(100_000 + os.getpid())
    for directory in (place.temporary, place.runtime, place.workspace):
        os.chown(directory, int(user), int(user))
    # It reads what it runs wherever that lies, and has no right to more processes.
    rights = ["--inh-caps", "-all,+dac_override", "--ambient-caps", "-all,+dac_override"]
    return ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", *rights, "prlimit", "--nproc=64:64"]


TAKE_ALL = """\
import subprocess
programs = []
try:
    while True: programs.append(subprocess.Popen(["sleep", "1000"]))
except OSError as error: print(error.strerror)"""
PROSE = """\
import random
words = "the quick brown fox jumps over some lazy dog while thinking about other matters".split()
for _ in range(300): print(*random.choices(words, k=12))"""
DRAWN = "display({'image/png': 'iVBORw0KGgo='}, raw=True)"


@pytest.mark.case("X09")
async def test_every_tool_answers_when_cells_have_taken_all_processes(
    lines: StartLines, account: list[str], place: Place
) -> None:
    server = await lines(command=[*account, *COMMAND]).open()

    async def call(tool: str, **arguments: object) -> str:
        answer = await server.ask("tools/call", {"name": tool, "arguments": arguments})
        assert "result" in answer, answer
        return "".join(block.get("text", "") for block in answer["result"]["content"])

    assert "Resource temporarily unavailable" in await server.cell(TAKE_ALL)
    assert "Output omitted: In [2] is completed, 300 lines, " in await server.cell(PROSE)
    assert "cannot be started: " in await call("wait")
    assert (await call("read_output")).startswith("[lines 1–300 of 300]\n")
    assert "matching lines" in await call("search_output", query="fox")
    assert "300 lines" in await call("execution_status")
    assert "not shown" in await server.cell(DRAWN)
    assert "Running" in await server.cell("%%loommux --wait 0.2\nimport time; time.sleep(60)")
    assert "Running" in await call("wait", timeout_seconds=0.1)
    assert "running" in await call("status")
    assert (await call("interrupt")).startswith("interrupted: ")
    assert "Out[5]: 1" in await server.cell("1")
    text = await call("restart")
    assert text.startswith("restarted: process 2 ") and "child processes" in text
    assert len((await server.cell(PROSE)).splitlines()) == 301
    server.stdin.close()
    assert await server.exit_code() == 0
