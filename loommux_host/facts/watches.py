"""The watches of one process as its host knows them (contract 8.4).

Pure: events go in, what is pending and what has ended is kept. A process that ends takes
its watches with it without a word. Owned by `kernels.mirror`; read by `usecases.watch_waits` and `usecases.inspection`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from loommux_kernel.shared.protocol import Outcome, WatchEnded, WatchStarted

#: Watches that ended and can be asked for by name.
ENDED_KEPT = 50


@dataclass(eq=False)
class Watch:
    """Work beside the cells. `number` is the cell that started it, whose record has its output.

    `outcome` is None while it is pending, and when nobody knows how it ended.
    """

    name: str
    number: int | None
    started_at: float
    ended_at: float | None = None
    outcome: Outcome | None = None
    ename: str | None = None
    evalue: str | None = None

    @property
    def pending(self) -> bool:
        return self.ended_at is None


class Watches:
    """What is pending, and what ended last, oldest first."""

    def __init__(self) -> None:
        self._pending: dict[str, Watch] = {}
        self.ended: deque[Watch] = deque(maxlen=ENDED_KEPT)

    @property
    def pending(self) -> list[Watch]:
        return list(self._pending.values())

    def named(self, name: str) -> Watch | None:
        """The pending watch of that name, else the last that ended."""
        ended = (watch for watch in reversed(self.ended) if watch.name == name)
        return self._pending.get(name) or next(ended, None)

    def started(self, event: WatchStarted) -> None:
        self._pending[event.name] = Watch(event.name, event.number, event.at)

    def over(self, event: WatchEnded) -> None:
        watch = self._pending.get(event.name) or Watch(event.name, event.number, event.at)
        watch.ename, watch.evalue = event.ename, event.evalue
        self._end(watch, event.at, Outcome(event.outcome))

    def mend(self, pending: Iterable[Mapping[str, Any]], at: float) -> None:
        """What the kernel itself says is pending; what was lost on the way is made good."""
        there = {str(one["name"]): one for one in pending}
        for watch in self.pending:
            if watch.name not in there:
                self._end(watch, at, None)
        for name, one in there.items():
            self._pending.setdefault(name, Watch(name, one.get("number"), float(one["at"])))

    def lost(self, at: float) -> None:
        """The process is gone."""
        for watch in self.pending:
            self._end(watch, at, Outcome.CANCELLED)

    def _end(self, watch: Watch, at: float, outcome: Outcome | None) -> None:
        self._pending.pop(watch.name, None)
        watch.ended_at, watch.outcome = at, outcome
        self.ended.append(watch)
