"""What happened in a kernel that its sessions have to be told: notices, ends, deaths.

Pure. Everything gets an index that rises by one within the kernel, across its processes,
so that one number per session says what that session has had. Only the latest entries of
a kind are kept. `kernel` writes, `sessions.envelope` reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Reversible
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar

from loommux_host.facts.results import Death
from loommux_kernel.shared.protocol import Origin, State

#: Entries of one kind that are kept.
KEPT = 200


@dataclass(frozen=True)
class Entry:
    index: int
    at: float
    process: int


@dataclass(frozen=True)
class NoticeEntry(Entry):
    """Said by a cell (`serial`, `number`), by a startup file, or by the environment.

    `only_for` and `not_for` are caller ids: whom it is for alone, who knows it anyway.
    """

    text: str
    label: str = ""
    serial: int | None = None
    number: int | None = None
    only_for: str | None = None
    not_for: str | None = None


@dataclass(frozen=True)
class EndEntry(Entry):
    """An execution ended."""

    serial: int
    number: int | None
    state: State
    origin: Origin


@dataclass(frozen=True)
class DeathEntry(Entry):
    """The process ended; `lost` is the number of the execution that ended with it.

    `on_purpose`: by a restart, a person or the server, not by itself. `not_for` asked for it.
    """

    death: Death
    lost: int | None
    on_purpose: bool
    not_for: str | None = None


#: Serial, text and time of a notice.
NoticeKey = tuple[int | None, str, float]


@dataclass(frozen=True)
class Journaled:
    """The notices of one process that a journal holds, and since when it holds all."""

    keys: tuple[NoticeKey, ...] = ()
    since: float = 0.0


E = TypeVar("E", bound=Entry)


class Journal:
    """The entries of one kernel."""

    def __init__(self) -> None:
        self.index = 0
        self._notices: deque[NoticeEntry] = deque(maxlen=KEPT)
        self._ends: deque[EndEntry] = deque(maxlen=KEPT)
        self._deaths: deque[DeathEntry] = deque(maxlen=KEPT)
        #: The newest end that is kept no more.
        self._ends_let_go = 0
        #: The newest notice that is kept no more.
        self._notices_let_go = 0

    @classmethod
    def of(
        cls,
        index: int,
        notices: Iterable[NoticeEntry],
        ends: Iterable[EndEntry],
        deaths: Iterable[DeathEntry],
        *,
        ends_let_go: int,
        notices_let_go: int,
    ) -> Journal:
        """A journal that another server has kept."""
        made = cls()
        made.index, made._ends_let_go, made._notices_let_go = index, ends_let_go, notices_let_go
        made._notices.extend(notices)
        made._ends.extend(ends)
        made._deaths.extend(deaths)
        return made

    @property
    def let_go(self) -> tuple[int, int]:
        """The newest end and the newest notice that are kept no more."""
        return self._ends_let_go, self._notices_let_go

    def notice(
        self,
        process: int,
        at: float,
        text: str,
        *,
        label: str = "",
        serial: int | None = None,
        number: int | None = None,
        only_for: str | None = None,
        not_for: str | None = None,
    ) -> None:
        if len(self._notices) == KEPT:
            self._notices_let_go = self._notices[0].index
        entry = NoticeEntry(self._next(), at, process, text, label, serial, number, only_for, not_for)
        self._notices.append(entry)

    def ended(self, process: int, at: float, serial: int, number: int | None, state: State, origin: Origin) -> None:
        if len(self._ends) == KEPT:
            self._ends_let_go = self._ends[0].index
        self._ends.append(EndEntry(self._next(), at, process, serial, number, state, origin))

    def died(self, death: Death, lost: int | None, *, on_purpose: bool, not_for: str | None = None) -> None:
        self._deaths.append(DeathEntry(self._next(), death.at, death.process, death, lost, on_purpose, not_for))

    def notices(self, after: int = 0) -> list[NoticeEntry]:
        return _later(self._notices, after)

    def knows_all_notices(self, after: int) -> bool:
        """Whether every notice behind `after` is kept."""
        return after >= self._notices_let_go

    def ends(self, after: int = 0) -> list[EndEntry]:
        return _later(self._ends, after)

    def knows_all_ends(self, after: int) -> bool:
        """Whether every end behind `after` is kept."""
        return after >= self._ends_let_go

    def deaths(self, after: int = 0) -> list[DeathEntry]:
        return _later(self._deaths, after)

    def before(self, at: float) -> int:
        """The newest entry that is older than that."""
        kept = (entry for entries in (self._notices, self._ends, self._deaths) for entry in entries)
        return max((entry.index for entry in kept if entry.at < at), default=0)

    def last_notices(self, count: int) -> list[NoticeEntry]:
        return list(self._notices)[-count:]

    def _next(self) -> int:
        self.index += 1
        return self.index


def _later(entries: Reversible[E], after: int) -> list[E]:
    """Those behind `after`, oldest first; each call looks only at what it returns."""
    return list(takewhile(lambda entry: entry.index > after, reversed(entries)))[::-1]
