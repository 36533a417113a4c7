"""A process that dies: what was running is told as killed, once, with how; nothing is run twice."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.e2e.driving import Start, StartLines, until
from tests.e2e.oracle import kernel_of

pytestmark = pytest.mark.anyio

LAST_WORDS = "print('last words', flush=True); import time; time.sleep(0.3); "
DEATHS = {
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": r"ended by SIGKILL; its memory had reached [\d.]+ MiB",
    "import ctypes; ctypes.string_at(0)": r"ended by SIGSEGV",
    "import os; os.abort()": r"ended by SIGABRT",
    "import os; os._exit(3)": r"exited with code 3",
}


@pytest.mark.parametrize("how", DEATHS)
@pytest.mark.case("M09")
async def test_a_cell_whose_process_dies_is_killed_and_says_how(start: Start, how: str) -> None:
    async with start() as agent:
        await agent.run("x = 1")
        text = await agent.run(LAST_WORDS + how)
        assert text.startswith("In [2] · ")
        assert "last words" in text
        assert re.search(f"Killed: process 1 {DEATHS[how]}", text), text
        assert "Out[1]: 2" in await agent.run("1 + 1")
        assert "NameError" in await agent.run("x")
        assert "last words" in await agent.text("read_output", execution=2, process=1)
        assert "killed" in await agent.text("execution_status", execution=2, process=1)


@pytest.mark.parametrize("how", DEATHS)
async def test_a_cell_that_kills_its_process_at_once_is_not_said_to_have_been_left_alone(
    start: Start, how: str
) -> None:
    async with start() as agent:
        await agent.run("1")
        result = await agent.call("run_cell", freeform=how)
        text = result.content[0].text  # pyright: ignore[reportAttributeAccessIssue]
        assert "Nothing was run" not in text
        assert text.startswith("In [2] · ")
        assert re.search(f"Killed: process 1 {DEATHS[how]}", text), (
            "the signal, also when it comes before anything is told"
        )
        assert result.is_error is False


WRITERS = {
    "print('bye', flush=True)": "Python",
    "os.write(1, b'bye\\n')": "a descriptor",
    "os.system('echo bye')": "a child",
}


@pytest.mark.parametrize("writes", WRITERS)
async def test_what_a_cell_wrote_right_before_it_killed_its_process_is_in_its_own_record(
    start: Start, writes: str
) -> None:
    async with start() as agent:
        await agent.run("import os; print('before', flush=True)")
        text = await agent.run(f"{writes}; os._exit(7)")
        assert text.splitlines()[1] == "bye"
        assert "after its end" not in text
        assert (await agent.text("read_output", execution=1, process=1)).splitlines()[1:] == ["before"]


async def test_a_notice_that_was_told_is_not_told_again_by_a_death(start: Start) -> None:
    async with start() as agent:
        assert "once" in await agent.run("import os; loommux.notify('once')")
        assert "once" not in await agent.run("os._exit(1)")
        assert (await agent.text("status")).count("· once") == 1


async def test_a_fatal_signal_leaves_the_python_stacks(start: Start) -> None:
    async with start() as agent:
        text = await agent.run(LAST_WORDS + "\ndef deep(): import ctypes; ctypes.string_at(0)\ndeep()")
        assert "SIGSEGV" in text
        assert "in deep" in text


async def test_a_death_between_cells_is_told_once_before_anything_runs(start: Start) -> None:
    async with start() as agent:
        await agent.run("import os, threading; x = 1")
        _, kernel = await kernel_of(agent)
        await agent.run("threading.Timer(0.2, lambda: os._exit(4)).start()")
        await asyncio.to_thread(kernel.wait, 10)
        told = await agent.refusal("run_cell", freeform="ran = True")
        assert told.startswith("kernel_died: process 1")
        assert "exited with code 4" in told
        assert "send it again" in told
        assert "NameError" in await agent.run("ran")


async def test_other_tools_tell_of_a_death_as_a_notice(start: Start) -> None:
    async with start() as agent:
        await agent.run("import os, threading; threading.Timer(0.2, lambda: os._exit(4)).start()")
        texts: list[str] = []

        async def told() -> bool:
            texts.append(await agent.text("execution_status"))
            return "<loommux-notice>" in texts[-1]

        await until(told, 10)
        assert "Process 1 exited with code 4" in texts[-1]


async def test_a_waiting_call_returns_when_the_process_dies(lines: StartLines) -> None:
    server = await lines().open()
    await server.cell("%%loommux --wait 0.2 --silence 0.2\nimport os, time; time.sleep(1); os._exit(7)")
    began = asyncio.get_running_loop().time()
    answer = await server.ask(
        "tools/call", {"name": "wait", "arguments": {"timeout_seconds": 50, "silence_seconds": 50}}
    )
    assert "exited with code 7" in answer["result"]["content"][0]["text"]
    assert asyncio.get_running_loop().time() - began < 10


async def test_a_server_that_was_killed_leaves_a_clean_place_for_the_next(start: Start, lines: StartLines) -> None:
    server = await lines().open()
    await server.cell("x = 1")
    server.process.kill()
    await server.exit_code()
    async with start() as agent:
        assert "NameError" in await agent.run("x")
        assert "Out[2]: 2" in await agent.run("1 + 1")


async def test_a_kernel_that_dies_again_and_again_keeps_its_last_three_records(start: Start) -> None:
    async with start() as agent:
        for process in range(1, 6):
            assert "Killed" in await agent.run(f"%%loommux --wait 30 --silence 30\n{LAST_WORDS}import os; os._exit(1)")
            assert "last words" in await agent.text("read_output", execution=1, process=process)
        assert (await agent.refusal("read_output", execution=1, process=2)).startswith("process_not_found")
        assert "last words" in await agent.text("read_output", execution=1, process=3)
