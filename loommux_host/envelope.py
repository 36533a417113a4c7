"""What a caller still has to be told about a kernel, as the lines of a result's envelope (contract 6).

Pure: from a kernel's journal, its late lines and what the caller was told before, to the
notices of one result and the marks to set when it was handed over. Called by `sessions`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from loommux_host.journal import DeathEntry, EndEntry, Journal, NoticeEntry
from loommux_host.phrases import cell, clock, company, how_ended, memory, plural, sender
from loommux_host.results import Notice
from loommux_kernel.protocol import OriginKind

#: Others' cells that are named; the rest is counted.
OTHERS_NAMED = 10

#: (process, serial) of an execution.
Key = tuple[int, int]


@dataclass
class Told:
    """What one caller has had of one kernel: the journal up to `index`, late lines by execution."""

    index: int = 0
    late: dict[Key, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Shown:
    """What a result says by itself. `whole`: its ended execution with all output. `deaths`: processes."""

    execution: Key | None = None
    whole: bool = False
    deaths: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Late:
    """Lines that arrived after an execution's end, in all."""

    key: Key
    number: int | None
    lines: int


@dataclass(frozen=True)
class Envelope:
    """The lines, and what the caller has been told once they were handed over."""

    notices: list[Notice]
    index: int
    late: dict[Key, int]

    def delivered(self, told: Told) -> None:
        told.index = max(told.index, self.index)
        for key, lines in self.late.items():
            told.late[key] = max(told.late.get(key, 0), lines)


def envelope(journal: Journal, late: Iterable[Late], told: Told, caller: str, shown: Shown) -> Envelope:
    """The lines for `caller`, oldest first: notices, deaths, late output, others' cells."""
    notices = [
        Notice(entry.text, label_of(entry, shown.execution))
        for entry in journal.notices(told.index)
        if entry.only_for in (None, caller) and entry.not_for != caller
    ]
    notices += [
        Notice(death_text(entry))
        for entry in journal.deaths(told.index)
        if entry.process not in shown.deaths and entry.not_for != caller
    ]
    late_now = {one.key: one for one in late}
    for key, one in late_now.items():
        new = one.lines - told.late.get(key, 0)
        if new > 0 and not (shown.whole and shown.execution == key):
            notices.append(Notice(f"{plural(new, 'more line')} after its end", cell(one.number)))
    others = [e for e in journal.ends(told.index) if _by_another(e, caller, shown)]
    if others:
        notices.append(Notice(others_text(others)))
    return Envelope(notices, journal.index, {key: one.lines for key, one in late_now.items()})


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
        f" Variables are gone; the next cell runs in a new process. Records: process={death.process}."
    )


def others_text(ends: list[EndEntry]) -> str:
    named = [f"{cell(e.number)} ({e.state}, {sender(e.origin)})" for e in ends[-OTHERS_NAMED:]]
    if len(ends) > OTHERS_NAMED:
        named.insert(0, f"{len(ends) - OTHERS_NAMED:,} more")
    were = "cell was" if len(ends) == 1 else "cells were"
    return f"{len(ends):,} {were} run by others since your last result: {', '.join(named)}. Variables may have changed."


def _by_another(entry: EndEntry, caller: str, shown: Shown) -> bool:
    if entry.origin.kind is OriginKind.STARTUP or (entry.process, entry.serial) == shown.execution:
        return False
    return entry.origin.client != caller
