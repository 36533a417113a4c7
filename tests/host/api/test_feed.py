"""The feed of events: numbered, bounded, resumable, and nobody is held up by a slow reader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from loommux_host.api import feed as feed_module
from loommux_host.api.feed import MISSED, Feed, FeedEvent

pytestmark = pytest.mark.anyio


async def take(reading: AsyncIterator[FeedEvent | None], count: int) -> list[FeedEvent]:
    async with asyncio.timeout(5):
        taken = [await anext(reading) for _ in range(count)]
    return [event for event in taken if event is not None]


def numbers(taken: list[FeedEvent]) -> list[int]:
    return [json.loads(event.data)["n"] for event in taken]


def publish(feed: Feed, *range_: int) -> None:
    for n in range(*range_):
        feed.publish("tick", {"n": n})


async def until_waiting(feed: Feed, readers: int = 1) -> None:
    for _ in range(1000):
        if len(feed._waiting) == readers:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{len(feed._waiting)} readers wait, not {readers}")


async def test_a_reader_without_an_id_gets_what_is_to_come() -> None:
    feed = Feed()
    publish(feed, 3)
    async with aclosing(feed.read()) as reading:
        first = asyncio.ensure_future(take(reading, 1))
        await until_waiting(feed)
        publish(feed, 3, 5)
        assert numbers(await first + await take(reading, 1)) == [3, 4]


async def test_a_reader_that_comes_back_gets_everything_after_its_last_event() -> None:
    feed = Feed()
    async with aclosing(feed.read()) as reading:
        first = asyncio.ensure_future(take(reading, 1))
        await until_waiting(feed)
        publish(feed, 10)
        last = (await first)[0].id
    again = await take(feed.read(last), 9)
    assert numbers(again) == list(range(1, 10))
    assert [event.id.rpartition("-")[2] for event in again] == [str(n) for n in range(2, 11)]


async def test_a_reader_that_fell_behind_is_told_how_many_it_has_missed() -> None:
    feed = Feed(kept_events=5)
    async with aclosing(feed.read()) as reading:
        first = asyncio.ensure_future(take(reading, 1))
        await until_waiting(feed)
        publish(feed, 1)
        await first
        publish(feed, 1, 21)
        gap, *rest = await take(reading, 6)
        assert (gap.kind, json.loads(gap.data)["events"]) == (MISSED, 15)
        assert numbers(rest) == [16, 17, 18, 19, 20]
        assert gap.id.rpartition("-")[2] == "16", "resuming from the gap goes on behind it"


@pytest.mark.parametrize(
    "last", ["", "nonsense", "00000000-3", "{start}-", "{start}-99", "{start}-x", "{start}-" + "9" * 99]
)
async def test_an_id_of_another_server_says_that_an_unknown_number_was_missed(last: str) -> None:
    feed = Feed()
    publish(feed, 3)
    start = (await take(feed.read("unknown"), 1))[0].id.partition("-")[0]
    reading = feed.read(last.format(start=start))
    [gap] = await take(reading, 1)
    assert (gap.kind, json.loads(gap.data)["events"]) == (MISSED, None)
    following = asyncio.ensure_future(take(reading, 1))
    await until_waiting(feed)
    publish(feed, 3, 4)
    assert numbers(await following) == [3]


async def test_what_is_kept_is_bounded_by_number_and_by_bytes() -> None:
    feed = Feed(kept_events=100, kept_bytes=1000)
    for n in range(1000):
        feed.publish("big", {"n": n, "text": "x" * 200})
    assert len(feed._kept) <= 5
    assert feed._bytes <= 1000
    feed.publish("huge", {"n": 1000, "text": "x" * 5000})
    assert len(feed._kept) == 1, "the last one is kept whatever its size"


async def test_a_reader_that_does_not_read_holds_up_nobody() -> None:
    feed = Feed(kept_events=10)
    slow = feed.read()
    opening = asyncio.ensure_future(take(slow, 1))
    await until_waiting(feed)
    publish(feed, 1)
    await opening
    fast = feed.read()
    received: list[int] = []
    for n in range(1, 200):
        waiting = asyncio.ensure_future(take(fast, 1))
        await until_waiting(feed)
        publish(feed, n, n + 1)
        received += numbers(await waiting)
    assert received == list(range(1, 200))
    assert (await take(slow, 1))[0].kind == MISSED


async def test_closing_the_feed_ends_readers_after_what_is_there() -> None:
    feed = Feed()

    async def everything() -> list[FeedEvent]:
        return [event async for event in feed.read() if event is not None]

    readers = [asyncio.ensure_future(everything()) for _ in range(3)]
    await until_waiting(feed, 3)
    publish(feed, 2)
    feed.close()
    publish(feed, 2, 4)
    async with asyncio.timeout(5):
        assert [numbers(await reader) for reader in readers] == [[0, 1]] * 3


async def test_a_reader_that_goes_away_leaves_nothing_behind() -> None:
    feed = Feed()
    before = asyncio.all_tasks()
    for _ in range(50):
        reader = asyncio.ensure_future(take(feed.read(), 1))
        await until_waiting(feed)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
    assert not feed._waiting
    assert asyncio.all_tasks() == before
    publish(feed, 1)


async def test_the_stream_is_server_sent_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "KEEP_ALIVE", 0.01)
    feed = Feed()
    publish(feed, 1)
    stream = feed.stream()
    async with asyncio.timeout(5):
        opened = await anext(stream)
        assert opened.startswith(b"id: ")
        assert opened.endswith(b"-1\n\n"), "a client that has seen no event yet can resume from here"
        assert await anext(stream) == b": still here\n\n"
        feed.publish("line", {"text": "two\nlines\r\u2028end"})
        event = await anext(stream)
    fields: dict[str, Any] = dict(line.split(": ", 1) for line in event.decode().rstrip("\n").split("\n"))
    assert event.endswith(b"\n\n")
    assert (fields["id"].rpartition("-")[2], fields["event"]) == ("2", "line")
    assert json.loads(fields["data"])["text"] == "two\nlines\r\u2028end"
    assert await anext(feed.stream(fields["id"])) == b": open\n\n"
