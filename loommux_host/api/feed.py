"""The feed of what happens in a server, for ``GET /api/events``: bounded, numbered, resumable.

Owns the last events and who reads them. A reader is a position in the one ring that
all share, not a queue of its own: a slow one costs nothing and holds up nobody. When
the ring has moved on past it, it is told how many events it has missed and goes on
with the oldest that is there. Nothing here starts a task; one event loop. Knows no
meaning of any event: `usecases.service` and `sessions` publish, the HTTP face and the console read.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from loommux_kernel.shared.protocol import now

#: What is kept for readers that come back: by number, and by bytes of data.
KEPT_EVENTS = 1000
KEPT_BYTES = 4 * 1024 * 1024
#: Seconds of silence after which a comment keeps a connection from being taken for dead.
KEEP_ALIVE = 15.0
#: The kind of the event that stands in for those a reader has missed; it should read the state anew.
MISSED = "missed"


@dataclass(frozen=True)
class FeedEvent:
    """One event. `data` is JSON already: it is encoded once for all readers."""

    id: str
    kind: str
    data: str

    def encode(self) -> bytes:
        """As server-sent events have it; JSON has no line ends of its own."""
        return f"id: {self.id}\nevent: {self.kind}\ndata: {self.data}\n\n".encode()


class Feed:
    """The events of one server. Ids are ``<start of the feed>-<number>``, numbers from 1 without gaps."""

    def __init__(self, *, kept_events: int = KEPT_EVENTS, kept_bytes: int = KEPT_BYTES) -> None:
        self._start = secrets.token_hex(4)
        self._kept: deque[FeedEvent] = deque()
        self._bytes = 0
        self._published = 0
        self._limits = (kept_events, kept_bytes)
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False

    def publish(self, kind: str, data: dict[str, Any]) -> None:
        """Add an event; it carries the time it was published as ``at``. Never waits. Does nothing once closed."""
        if self._closed:
            return
        self._published += 1
        text = json.dumps({"at": now(), **data}, separators=(",", ":"))
        self._kept.append(FeedEvent(f"{self._start}-{self._published}", kind, text))
        self._bytes += len(text)
        while len(self._kept) > self._limits[0] or (self._bytes > self._limits[1] and len(self._kept) > 1):
            self._bytes -= len(self._kept.popleft().data)
        self._wake()

    def close(self) -> None:
        """End every reader once it has had what is there."""
        self._closed = True
        self._wake()

    async def read(
        self, last_event_id: str | None = None, *, recent: int = 0, silence: float | None = None
    ) -> AsyncGenerator[FeedEvent | None]:
        """Events after that one as they come; without an id, so many `recent` ones and those to come.

        Ends when the feed is closed. With `silence`, None comes whenever nothing has happened for so many seconds.
        """
        position, missed = self._position(last_event_id)
        if last_event_id is None:
            position = max(position - recent, self._published - len(self._kept))
        if missed:
            yield self._missed(None, position)
        while True:
            first = self._published - len(self._kept)
            if position < first:
                yield self._missed(first - position, first)
                position = first
            elif position < self._published:
                position += 1
                yield self._kept[position - 1 - first]
            elif self._closed:
                return
            elif not await self._news(silence):
                yield None

    async def stream(self, last_event_id: str | None = None, recent: int = 0) -> AsyncGenerator[bytes]:
        """`read`, encoded as server-sent events, with comments in times of silence."""
        # At once: a client learns that the stream is open, and where to resume if nothing else comes.
        yield f"id: {self._start}-{self._published}\n\n".encode() if last_event_id is None else b": open\n\n"
        async for event in self.read(last_event_id, recent=recent, silence=KEEP_ALIVE):
            yield b": still here\n\n" if event is None else event.encode()

    def _position(self, last_event_id: str | None) -> tuple[int, bool]:
        """How many events the reader has had, and whether that cannot be known."""
        if last_event_id is None:
            return self._published, False
        start, _, number = last_event_id.partition("-")
        if start != self._start or not (number.isascii() and number.isdigit()) or len(number) > 18:
            return self._published, True
        position = int(number)
        return (position, False) if position <= self._published else (self._published, True)

    def _missed(self, count: int | None, position: int) -> FeedEvent:
        return FeedEvent(f"{self._start}-{position}", MISSED, json.dumps({"at": now(), "events": count}))

    async def _news(self, silence: float | None) -> bool:
        """Wait for the next event or the end; False when neither came in time."""
        news = asyncio.get_running_loop().create_future()
        self._waiting.add(news)
        try:
            async with asyncio.timeout(silence):
                await news
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(news)
        return True

    def _wake(self) -> None:
        for reader in self._waiting:
            if not reader.done():
                reader.set_result(None)
