"""An interrupt lands in the cell it is meant for or nowhere, however the moments fall."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient

from tests.e2e.driving import Agent, Place, Start, attached, foreign, text_of
from tests.e2e.oracle import recorded

pytestmark = pytest.mark.anyio

CELLS = 1000
#: Long enough for an interrupt to land in it, at its ends too.
CELL = "import time; time.sleep({seconds})\nran.append({mark})"


async def cell(agent: Agent, mark: int, seconds: float) -> tuple[int, str]:
    """Run one cell; returns its number and what came back. A foreign cell may be in the way for a moment."""
    while True:
        result = await agent.call("run_cell", freeform=CELL.format(seconds=seconds, mark=mark))
        text = text_of(result)
        if not result.is_error:
            found = re.match(r"In \[(\d+)\]", text)
            assert found, text
            return int(found[1]), text
        assert text.startswith("busy"), text


async def hammer(agent: Agent, cells: int) -> tuple[set[int], set[int], set[int]]:
    """Run `cells` cells and interrupt at random moments during every second one.

    Returns the marks of the cells that were not aimed at, of those that ended as
    interrupted, and of those that ended otherwise though aimed at.
    """
    chance = random.Random(7)
    spared, hit, missed = set[int](), set[int](), set[int]()
    for mark in range(cells):
        seconds = chance.choice((0.0, 0.0, 0.002, 0.01))
        if mark % 2 == 0:
            _, text = await cell(agent, mark, seconds)
            assert "Interrupted." not in text, text
            spared.add(mark)
            continue
        running = asyncio.create_task(cell(agent, mark, seconds))
        await asyncio.sleep(chance.uniform(0.0, 0.02))
        answer = text_of(await agent.call("interrupt"))
        assert re.match("interrupted|ended|idle|not_running|not_yours", answer), answer
        _, text = await running
        (hit if "Interrupted." in text else missed).add(mark)
    return spared, hit, missed


async def ran(agent: Agent) -> list[int]:
    text = await agent.run("print(*ran)")
    return [int(word) for word in text.splitlines()[1].split()]


def records(place: Place) -> dict[int, str]:
    """The state of each cell by its mark, from the store itself."""
    (store,) = place.stores()
    found = recorded(store, "SELECT source, state FROM executions WHERE source LIKE '%ran.append(%'")
    return {int(str(source).rpartition("(")[2].rstrip(")")): str(state) for source, state in found}


@pytest.mark.case("R05")
async def test_a_thousand_cells_and_every_second_one_is_aimed_at(start: Start, place: Place) -> None:
    async with start() as agent:
        await agent.run("ran = []")
        spared, hit, missed = await hammer(agent, CELLS)
        marks = await ran(agent)
        assert spared <= set(marks)
        assert not hit & set(marks)
        assert missed <= set(marks)
        assert hit
        assert missed
        assert len(marks) == len(set(marks))
        assert "Running:" not in await agent.text("status")
        states = records(place)
        assert {mark for mark, state in states.items() if state == "interrupted"} == hit
        assert {mark for mark, state in states.items() if state == "completed"} == spared | missed


@pytest.mark.timeout(300)
async def test_the_same_with_a_foreign_client_in_between(start: Start, place: Place) -> None:
    async with start() as agent:
        await agent.run("ran, others = [], []")
        async with attached(agent) as client, submitting(client):
            spared, hit, missed = await hammer(agent, CELLS)
        marks = await ran(agent)
        assert spared <= set(marks)
        assert not hit & set(marks)
        states = records(place)
        assert {mark for mark, state in states.items() if state == "interrupted"} == hit
        assert {mark for mark, state in states.items() if state == "completed"} == spared | missed
        (store,) = place.stores()
        assert recorded(store, "SELECT number FROM executions WHERE state = 'running'") == []


@asynccontextmanager
async def submitting(client: AsyncKernelClient) -> AsyncIterator[None]:
    """A foreign client that sends a cell again and again; none of its cells may be hit."""
    stop = asyncio.Event()
    sent = 0

    async def submit() -> None:
        nonlocal sent
        while not stop.is_set():
            await foreign(client, f"others.append({sent})")
            sent += 1
            await asyncio.sleep(0.05)

    task = asyncio.create_task(submit())
    try:
        yield
    finally:
        stop.set()
        await task
        assert sent > 10
        await foreign(client, f"assert others == list(range({sent})), others")
