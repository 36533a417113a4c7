"""Calls that overlap, are cancelled, wait, or report progress: none costs a cell anything."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path

import anyio
import pytest

from tests.e2e.driving import ERAS, Agent, Start, StartLines, text_of, until

pytestmark = pytest.mark.anyio

SLEEP = "%%loommux --wait 60 --silence 60\nimport time; time.sleep({seconds}); print('slept')"


async def running(agent: Agent, execution: int) -> None:
    """Wait until that cell runs."""

    async def runs() -> bool:
        result = await agent.call("execution_status", execution=execution)
        return not result.is_error and "running" in text_of(result)

    await until(runs)


@pytest.mark.parametrize("mode", ERAS)
async def test_of_two_cells_sent_together_one_runs_and_one_is_told(start: Start, tmp_path: Path, mode: str) -> None:
    async with start(mode=mode) as agent:
        await agent.run("import os, time\nran = []")
        for round in range(50):
            refused = tmp_path / str(round)  # the one that runs goes on until the other was answered
            until_then = f"while not os.path.exists({str(refused)!r}): time.sleep(0.001)"
            pair = [f"ran.append(({round}, {one}))\n{until_then}" for one in range(2)]
            calls = [asyncio.create_task(agent.call("run_cell", freeform=source)) for source in pair]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            refused.touch()
            results = await asyncio.gather(*calls)
            assert sorted(result.is_error for result in results) == [False, True]
        assert ": 50" in await agent.run("len(ran)")


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.case("E02")
async def test_a_cancelled_call_leaves_its_cell_running_and_a_second_call_finds_it(start: Start, mode: str) -> None:
    async with start(mode=mode) as agent:
        await agent.run("1")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run, SLEEP.format(seconds=2))
            await running(agent, 2)
            tasks.cancel_scope.cancel()
        assert "running" in await agent.text("execution_status")
        assert "slept" in await agent.text("wait", execution=2, timeout_seconds=30, silence_seconds=30)


@pytest.mark.case("E02")
async def test_a_cancelled_request_is_never_answered(lines: StartLines) -> None:
    server = await lines().open()
    await server.cell("1")
    id = server.begin_cell(SLEEP.format(seconds=1))
    server.notify("notifications/cancelled", {"requestId": id, "reason": "the user pressed escape"})
    server.request("tools/call", {"name": "wait", "arguments": {"execution": 2}}, id="wait")
    await server.answer("wait")
    assert id not in [message.get("id") for message in server.heard]


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.case("E01")
async def test_progress_tells_elapsed_time_and_last_line_at_least_every_five_seconds(start: Start, mode: str) -> None:
    told: list[tuple[float, str | None]] = []
    arrived: list[float] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        arrived.append(anyio.current_time())
        told.append((progress, message))

    async with start(mode=mode) as agent:
        await agent.run("1")
        source = "import time; print('epoch 3', flush=True); time.sleep(11); 'trained'"
        began = anyio.current_time()
        text = text_of(await agent.call("run_cell", progress=progress, freeform=source))
        ended = anyio.current_time()
        assert text.splitlines()[1].startswith("Running, silent for ")
        assert ended - began < 40, "no client gives up before a call that sets no limit has come back by itself"
        assert (await agent.text("wait", execution=2)).splitlines()[1:] == ["epoch 3", "Out[2]: 'trained'"]
    moments = [began, *arrived, ended]
    assert max(b - a for a, b in itertools.pairwise(moments)) < 5.5
    assert [message for _, message in told if not re.fullmatch(r"[\d.]+ s · epoch 3", message or "")] == []
    assert [value for value, _ in told] == sorted(value for value, _ in told)


async def test_a_call_ends_by_silence_or_in_all_and_its_cell_goes_on(start: Start) -> None:
    async with start() as agent:
        quiet = await agent.run("%%loommux --wait 30 --silence 0.3\nimport time; time.sleep(3)")
        assert "Running, silent for" in quiet
        await agent.text("wait", timeout_seconds=20, silence_seconds=20)
        chatty = "%%loommux --wait 0.5 --silence 30\nimport time\nfor i in range(20): print(i); time.sleep(0.1)"
        assert "Running" in await agent.run(chatty)
        assert "19" in await agent.text("wait", timeout_seconds=20, silence_seconds=20)


async def test_an_ended_result_can_be_had_again_any_number_of_times(start: Start) -> None:
    async with start() as agent:
        first = (await agent.run("print('once'); 'result'")).splitlines()[1:]
        for _ in range(3):
            assert (await agent.text("wait", execution=1)).splitlines()[1:] == first


@pytest.mark.case("P08")
async def test_status_answers_while_python_holds_the_interpreter(start: Start) -> None:
    async with start() as agent:
        await agent.run("%%loommux --wait 0.2 --silence 0.2\nwhile True: pass")
        for _ in range(20):
            assert "In [1]" in await agent.text("status")
            assert "running" in await agent.text("execution_status")
        await agent.text("interrupt")
