"""What happens in the kernels, told as it happens.

Owns the publishing into the `feed`, and waking those who follow a kernel's
output. Listens to the registry; changes nothing. Built by `server.http_app` and `server.private_app`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from loommux_host.api.feed import Feed
from loommux_host.facts.phrases import first_line, one_line
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.mirror import Change, Ended, Noticed, Started, View
from loommux_host.kernels.process_life import Life
from loommux_host.kernels.registry import Registry

#: Characters of a source's first line and of a notice that the feed shows.
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
