"""What a caller still has to be told about a kernel, as the lines of a result's envelope (contract 6).

Pure: from a kernel's journal, its late lines and what the caller was told before, to the
notices of one result. What one result carries no other does, also while it is on its way;
what was not handed over in the end is told again. Called by `sessions`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from loommux_host.facts.phrases import cell, clock, company, how_ended, memory, plural, sender
from loommux_host.facts.results import Notice
from loommux_host.kernels.journal import KEPT, DeathEntry, EndEntry, Journal, NoticeEntry
from loommux_kernel.shared.protocol import OriginKind

#: Others' cells that are named; the rest is counted.
OTHERS_NAMED = 10
EARLIER_GONE = f"Earlier notices are gone; a kernel keeps the last {KEPT}."

#: (process, serial) of an execution.
Key = tuple[int, int]


@dataclass
class Told:
    """What one caller has had of one kernel: the journal up to `index`, late lines by execution.

    All but what is in results on their way, and what was lost with one.
    """

    index: int = 0
    late: dict[Key, int] = field(default_factory=dict)
    on_the_way: list[Envelope] = field(default_factory=list)
    lost: list[range] = field(default_factory=list)

    def owes(self, index: int) -> bool:
        """Whether that entry of the journal is in no result yet."""
        return index > self.index or any(index in entries for entries in self.lost)

    def knows(self, index: int) -> bool:
        """Whether that entry was handed over."""
        return not self.owes(index) and not any(index in e for one in self.on_the_way for e in one.entries)

    @property
    def since(self) -> int:
        """Everything owed lies behind this index."""
        return min([self.index, *(entries.start - 1 for entries in self.lost)])


@dataclass(frozen=True)
class Shown:
    """What a result says by itself. `whole`: its ended execution with all output. `deaths`: processes.

    `since` is when its execution was submitted.
    """

    execution: Key | None = None
    whole: bool = False
    deaths: frozenset[int] = frozenset()
    since: float | None = None


@dataclass(frozen=True)
class Late:
    """Lines that arrived after an execution's end, in all. `label` is what it is called when it has no number."""

    key: Key
    number: int | None
    lines: int
    label: str = ""


@dataclass(eq=False)
class Envelope:
    """The lines of one result, and what they tell: entries of the journal, late lines that are new."""

    notices: list[Notice]
    entries: list[range]
    late: dict[Key, int]

    def sent(self, told: Told, index: int) -> None:
        """The result is on its way; the journal goes up to `index`."""
        told.index, told.lost = max(told.index, index), []
        for key, lines in self.late.items():
            told.late[key] = told.late.get(key, 0) + lines
        told.on_the_way.append(self)

    def delivered(self, told: Told) -> None:
        """It was handed over."""
        if self in told.on_the_way:
            told.on_the_way.remove(self)

    def dropped(self, told: Told) -> None:
        """It was not, and will not be."""
        if self not in told.on_the_way:
            return
        told.on_the_way.remove(self)
        told.lost += self.entries
        for key, lines in self.late.items():
            told.late[key] -= lines


def envelope(journal: Journal, late: Iterable[Late], told: Told, caller: str, shown: Shown) -> Envelope:
    """The lines for `caller`, oldest first: notices, deaths, late output, others' cells."""
    notices = [] if journal.knows_all_notices(told.since) else [Notice(EARLIER_GONE)]
    notices += [
        Notice(entry.text, label_of(entry, shown.execution))
        for entry in journal.notices(told.since)
        if told.owes(entry.index) and entry.only_for in (None, caller) and entry.not_for != caller
    ]
    notices += [
        Notice(death_text(entry))
        for entry in journal.deaths(told.since)
        if told.owes(entry.index) and entry.process not in shown.deaths and entry.not_for != caller
    ]
    new_late: dict[Key, int] = {}
    for one in late:
        new = one.lines - told.late.get(one.key, 0)
        if new <= 0:
            continue
        new_late[one.key] = new
        if not (shown.whole and shown.execution == one.key):
            notices.append(Notice(f"{plural(new, 'more line')} after its end", one.label or cell(one.number)))
    others = [e for e in journal.ends(told.since) if told.owes(e.index) and _by_another(e, caller, shown)]
    if others:
        notices.append(Notice(others_text(others, all_known=journal.knows_all_ends(told.since))))
    return Envelope(notices, [*told.lost, range(told.index + 1, journal.index + 1)], new_late)


def label_of(entry: NoticeEntry, shown: Key | None) -> str:
    """Who speaks; nobody has to be named when it is the execution that the result shows."""
    if entry.label and entry.label != cell(entry.number):  # its number is what the kernel calls it by
        return entry.label
    if entry.serial is None or (entry.process, entry.serial) == shown:
        return ""
    return cell(entry.number)


def death_text(entry: DeathEntry) -> str:
    """A death as other tools than run_cell tell it."""
    death = entry.death
    lost = f" {cell(entry.lost)} was killed." if entry.lost is not None else ""
    return (
        f"Process {death.process} {how_ended(death)} at {clock(death.at)}{memory(death)}.{lost}{company(death)}"
        f" Its variables are gone; cells after that run in a new process. Records: process={death.process}."
    )


def others_text(ends: list[EndEntry], *, all_known: bool = True) -> str:
    """Others' cells, the latest by number; not `all_known` when the journal has let go of some."""
    named = [f"{cell(e.number)} ({e.state}, {sender(e.origin)})" for e in ends[-OTHERS_NAMED:]]
    if len(ends) > OTHERS_NAMED:
        named.insert(0, f"{len(ends) - OTHERS_NAMED:,} more")
    were = "cell was" if len(ends) == 1 else "cells were"
    count = f"{len(ends):,}" if all_known else f"At least {len(ends):,}"
    return f"{count} {were} run by others since your last result: {', '.join(named)}. Variables may have changed."


def _by_another(entry: EndEntry, caller: str, shown: Shown) -> bool:
    if entry.origin.kind is OriginKind.STARTUP or (entry.process, entry.serial) == shown.execution:
        return False
    return entry.origin.client != caller
