"""What happens in the kernels and between clients and tools, told as it happens.

Owns the publishing into the feed of `events`, and waking those who follow a kernel's
output. Listens to the registry and stands between a face and its calls; changes nothing.
Built by `http`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from loommux_host.calls import Calls, Outcome, Progress
from loommux_host.events import Feed
from loommux_host.kernel import Kernel
from loommux_host.life import Life
from loommux_host.mirror import Change, Ended, Noticed, Started, View
from loommux_host.phrases import first_line, one_line
from loommux_host.registry import Registry
from loommux_host.sessions import Caller

#: Characters of a result's first line that the feed shows.
SHOWN = 200


class News:
    """Publishes what happens in kernels, and lets followers wait for it."""

    def __init__(self, registry: Registry, feed: Feed) -> None:
        self._feed = feed
        self._waiting: dict[str, set[asyncio.Event]] = {}
        #: No more is told: who follows gets what is there.
        self.over = False
        registry.listen(self._changed)

    def close(self) -> None:
        """Let everybody go who waits."""
        self.over = True
        for waiting in self._waiting.values():
            for news in waiting:
                news.set()

    @contextlib.contextmanager
    def listening(self, kernel: Kernel) -> Iterator[asyncio.Event]:
        """What is set while the block runs, as soon as something happens in the kernel."""
        news = asyncio.Event()
        waiting = self._waiting.setdefault(kernel.id, set())
        waiting.add(news)
        try:
            yield news
        finally:
            waiting.discard(news)
            if not waiting:
                self._waiting.pop(kernel.id, None)

    async def heard(self, news: asyncio.Event, seconds: float) -> None:
        """Until something has happened, at most so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), seconds)

    async def wait(self, kernel: Kernel, seconds: float) -> None:
        """Until something happens in the kernel from now on, at most so long."""
        with self.listening(kernel) as news:
            await self.heard(news, seconds)

    def _changed(self, kernel: Kernel, life: Life, change: Change) -> None:
        for news in self._waiting.get(kernel.id, ()):
            news.set()
        facts = {"kernel": kernel.id, "name": kernel.name, "process": life.process.process}
        match change:
            case Started(view):
                source = first_line(view.source, SHOWN)
                self._feed.publish("execution_started", {**facts, **_cell(view), "source": source})
            case Ended(view):
                self._feed.publish("execution_ended", {**facts, **_cell(view), "state": view.state})
            case Noticed():
                text = one_line(change.text, SHOWN)
                self._feed.publish("notice", {**facts, "execution": change.number, "label": change.label, "text": text})
            case _:
                pass


def _cell(view: View) -> dict[str, Any]:
    origin = view.origin
    return {"execution": view.number, "serial": view.serial, "origin": {"kind": origin.kind, "label": origin.label}}


class WatchedCalls(Calls):
    """Calls of which the feed tells: who, which tool, how long, what came back in one line."""

    feed: Feed | None = None
    #: Calls so far; an end names the call that it ends.
    _number = 0

    async def call(
        self,
        identify: Callable[[], Caller],
        name: str,
        arguments: Mapping[str, object],
        progress: Progress | None = None,
    ) -> Outcome:
        if self.feed is None:
            return await super().call(identify, name, arguments, progress)
        loop, who = asyncio.get_running_loop(), identify()
        # Not the arguments: the kernel may be named by a handle, which is told to nobody else.
        self._number += 1
        began, facts = loop.time(), {"call": self._number, "tool": name, "caller": one_line(who.label)}
        self.feed.publish("call_began", facts)
        said, ok = "cut off", False
        where: dict[str, str] = {}
        try:
            outcome = await super().call(lambda: who, name, arguments, progress)
            said, ok = _first_words(outcome.result), not outcome.result["isError"]
            if outcome.kernel is not None:
                where = {"kernel": outcome.kernel.id, "name": outcome.kernel.name}
            return outcome
        finally:
            seconds = round(loop.time() - began, 3)
            self.feed.publish("call_ended", {**facts, **where, "seconds": seconds, "ok": ok, "result": said})


def _first_words(result: Mapping[str, Any]) -> str:
    texts = (block["text"] for block in result["content"] if block["type"] == "text")
    return one_line(next(texts, "").partition("\n")[0], SHOWN)
