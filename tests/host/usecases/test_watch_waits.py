"""Waiting for watches, over kernels in memory: by name, for whichever ends first, and when there is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loommux_host.facts.result_limits import Limits
from loommux_host.facts.results import Answer, Refusal, StatusAnswer, WatchAnswer
from loommux_host.rendering.message import TextBlock, render
from loommux_host.rendering.structured_fields import status_of
from loommux_kernel.shared.protocol import Outcome
from tests.host.twins import ME, Server, server, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Server]:
    made = server(tmp_path)
    await made.kernel.ready()
    yield made
    await made.service.close()


def text(answer: Answer) -> str:
    rendered = render(answer, structured=False, limits=Limits(1_000_000, 20, ascii_wire=False))
    return "".join(block.text for block in rendered.blocks if isinstance(block, TextBlock))


async def waited(at: Server, name: str, seconds: float = 20.0) -> WatchAnswer:
    answer = await at.service.wait(ME, watch=name, timeout_seconds=seconds, silence_seconds=seconds)
    assert isinstance(answer, WatchAnswer), answer
    return answer


async def refused(at: Server, **arguments: object) -> str:
    answer = await at.service.wait(ME, **arguments)  # pyright: ignore[reportArgumentType]
    assert isinstance(answer, Refusal), answer
    return text(answer)


async def test_a_watch_is_waited_for_by_name_and_can_be_asked_for_again(at: Server) -> None:
    at.launching.channel.watch("build", 4)
    call = asyncio.create_task(waited(at, "build"))
    await asyncio.sleep(0)
    at.launching.channel.watch_over("build", Outcome.COMPLETED)
    said = text(await call)
    assert said.startswith("Watch build: completed after ")
    assert "Its output is in In [4]: read_output(execution=4)." in said
    assert status_of(await waited(at, "build")) == "watch_completed"


async def test_whichever_ends_first_is_told_and_what_goes_on_is_named(at: Server) -> None:
    for name in ("a", "b", "c"):
        at.launching.channel.watch(name, 1)
    call = asyncio.create_task(waited(at, "next"))
    await asyncio.sleep(0)
    at.launching.channel.watch_over("b", Outcome.ERROR, "ValueError", "bad")
    said = text(await call)
    assert said.startswith("Watch b: failed after ")
    assert "ValueError: bad." in said
    assert "Still pending: a, c" in said
    assert (await waited(at, "next", 0.05)).watch is None


async def test_time_ends_only_the_waiting(at: Server) -> None:
    at.launching.channel.watch("build")
    answer = await waited(at, "build", 0.05)
    assert (status_of(answer), answer.ended_by) == ("watch_running", "silence")
    assert text(answer).startswith("Running: build (")
    status = await at.service.status(ME)
    assert isinstance(status, StatusAnswer) and status.watches == ["build"]


async def test_with_none_pending_it_is_said_at_once_and_what_ended_last(at: Server) -> None:
    assert "no watch is pending in report-cleanup; none has been started" in await refused(at, watch="next")
    at.launching.channel.watch("build")
    assert "there is no watch test in report-cleanup; pending are build" in await refused(at, watch="test")
    at.launching.channel.watch_over("build", Outcome.CANCELLED)
    assert "the last to end was build" in await refused(at, watch="next")
    assert "not for both" in await refused(at, watch="build", execution=1)


async def test_a_process_that_ends_takes_its_watches_with_it(at: Server) -> None:
    at.launching.channel.watch("build", 2)
    call = asyncio.create_task(waited(at, "next"))
    await asyncio.sleep(0)
    at.launching.process.die(signal="SIGKILL")
    assert status_of(await call) == "watch_cancelled"
    status = await at.service.status(ME)
    assert isinstance(status, StatusAnswer) and status.watches == []


async def test_what_was_lost_on_the_way_is_made_good(at: Server) -> None:
    channel = at.launching.channel
    channel.watch("gone")
    channel.lose = 2
    channel.watch("new", 3)
    channel.watch_over("gone", Outcome.COMPLETED)
    channel.noticed(None, None, "something else")
    life = at.kernel.life
    assert life is not None
    await until(lambda: [watch.name for watch in life.mirror.watches.pending] == ["new"])
    assert text(await waited(at, "gone")).startswith("Watch gone: ended after ")
