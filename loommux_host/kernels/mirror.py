"""What the host knows of a kernel process without asking it.

Pure: events, replies and records go in, changes come out. It holds the few latest
executions and no output, and its answers may lag behind the process by what is still on
the way; the record store is the truth it is mended from. Times are seconds since the
epoch and come with what goes in.

Called by `process_life`, which feeds it and acts on the changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from loommux_host.facts.watches import Watches
from loommux_kernel.shared.protocol import (
    Counts,
    Event,
    ExecutionEnded,
    ExecutionStarted,
    InputAwaited,
    NoticeGiven,
    Origin,
    OriginKind,
    OutputArrived,
    Reply,
    State,
    Stream,
    Submission,
    WatchEnded,
    WatchStarted,
)
from loommux_kernel.shared.record_types import ExecutionRecord

#: What startup files are called, which have no number.
STARTUP = "Startup"
#: Executions held; older ones are read from the store.
KEPT = 32
#: Executions whose late lines are held: those that printed late last.
LATE_KEPT = 1000


@dataclass
class View:
    """One execution as it is known. `displays` is None when only the store can tell."""

    serial: int
    number: int | None
    origin: Origin
    source: str
    submitted_at: float
    started_at: float
    updated_at: float
    state: State = State.RUNNING
    completed_at: float | None = None
    counts: Counts = field(default_factory=Counts)
    ename: str | None = None
    evalue: str | None = None
    displays: int | None = None
    last_line: str = ""
    last_output_at: float | None = None
    late_lines: int = 0
    dropped: str | None = None
    #: False as long as the store has not told what an ended execution printed.
    recorded: bool = True

    @property
    def running(self) -> bool:
        return self.state is State.RUNNING


@dataclass(frozen=True)
class Started:
    view: View


@dataclass(frozen=True)
class Ended:
    view: View


@dataclass(frozen=True)
class Printed:
    """Output arrived; `late` when the execution had ended before. `view` is None when that is no longer held."""

    view: View | None
    late: bool


@dataclass(frozen=True)
class Noticed:
    serial: int | None
    number: int | None
    label: str
    text: str
    at: float


@dataclass(frozen=True)
class Began:
    """A process serves requests."""


@dataclass(frozen=True)
class Died:
    """A process has ended, and its account is complete."""


@dataclass(frozen=True)
class Missed:
    """Events were lost: the store has to be read."""


@dataclass(frozen=True)
class WatchesChanged:
    """A watch began or ended."""


Change = Started | Ended | Printed | Noticed | WatchesChanged | Missed | Began | Died


class Mirror:
    """The latest executions of one process, which of them runs, and what was heard last."""

    def __init__(self, ready_at: float) -> None:
        self._views: dict[int, View] = {}
        #: One; more only while the news of an end is still on the way.
        self._running: list[View] = []
        #: Late lines by serial, also of executions that are no longer held.
        self.late: dict[int, tuple[int | None, int]] = {}
        #: Serials of startup files.
        self.startups: set[int] = set()
        self.watches = Watches()
        self.last_serial = 0
        self.last_sequence = 0
        self.idle_since: float = ready_at
        self.waiting_for_input: int | None = None

    @property
    def running(self) -> View | None:
        return self._running[-1] if self._running else None

    @property
    def recent(self) -> View | None:
        """The most recent execution that can be named; startup files and silent cells have no number."""
        return next((v for v in reversed(self._views.values()) if v.number is not None), None)

    @property
    def newest(self) -> View | None:
        """The last that started, whatever it is."""
        return next(self.latest(), None)

    def latest(self) -> Iterator[View]:
        """What is held, newest first."""
        return reversed(self._views.values())

    def by_serial(self, serial: int) -> View | None:
        return self._views.get(serial)

    def by_number(self, number: int) -> View | None:
        return next((v for v in reversed(self._views.values()) if v.number == number), None)

    def label(self, serial: int | None) -> str:
        """What an execution is called beside its number."""
        return STARTUP if serial in self.startups else ""

    # -- what goes in ----------------------------------------------------------

    def caught_up(self, sequence: int, last_serial: int) -> None:
        """Everything up to these was read from the store, or lies before anybody listened."""
        self.last_sequence = max(self.last_sequence, sequence)
        self.last_serial = max(self.last_serial, last_serial)

    def apply(self, event: Event) -> list[Change]:
        changes: list[Change] = []
        if event.sequence <= self.last_sequence:
            return changes
        if event.sequence > self.last_sequence + 1:
            changes.append(Missed())
        self.last_sequence = event.sequence
        match event:
            case ExecutionStarted():
                changes += self._started(event)
            case ExecutionEnded():
                changes += self._ended(event)
            case OutputArrived():
                changes += self._printed(event)
            case NoticeGiven():
                changes.append(Noticed(event.serial, event.number, event.label, event.text, event.at))
            case InputAwaited():
                self.waiting_for_input = event.serial if event.waiting else None
            case WatchStarted():
                self.watches.started(event)
                changes.append(WatchesChanged())
            case WatchEnded():
                self.watches.over(event)
                changes.append(WatchesChanged())
            case _:
                pass
        return changes

    def replied(self, submission: Submission, source: str, reply: Reply) -> list[Change]:
        """The kernel's answer to a submission that ran; it may come before its events."""
        view = View(
            serial=reply.serial,
            number=reply.number,
            origin=submission.origin,
            source=source,
            submitted_at=submission.submitted_at,
            started_at=reply.started_at,
            updated_at=reply.completed_at,
            state=reply.state,
            completed_at=reply.completed_at,
            counts=reply.counts,
            ename=reply.ename,
            evalue=reply.evalue,
            displays=reply.displays,
            recorded=reply.recorded,
        )
        return self._take(view)

    def mend(self, records: Iterable[ExecutionRecord]) -> list[Change]:
        """What the store says, newest first; what is known to have ended stays ended."""
        changes: list[Change] = []
        for record in reversed(list(records)):
            counts = record.counts.get(Stream.COMBINED, Counts())
            view = View(
                serial=record.serial,
                number=record.number,
                origin=record.origin,
                source=record.source,
                submitted_at=record.submitted_at,
                started_at=record.started_at,
                updated_at=record.updated_at,
                state=record.state,
                completed_at=record.completed_at,
                counts=counts,
                ename=record.ename,
                evalue=record.evalue,
                late_lines=record.late_lines,
                dropped=record.dropped,
            )
            changes += self._take(view)
        return changes

    def killed(self, at: float) -> list[Change]:
        """The process is gone: whatever still ran ended with it."""
        self.watches.lost(at)
        ended = [replace(v, state=State.KILLED, completed_at=at, updated_at=at) for v in self._running]
        return [change for view in ended for change in self._take(view)]

    # -- inside ----------------------------------------------------------------

    def _started(self, event: ExecutionStarted) -> list[Change]:
        return self._take(
            View(
                serial=event.serial,
                number=event.number,
                origin=event.origin,
                source=event.source,
                submitted_at=event.submitted_at,
                started_at=event.at,
                updated_at=event.at,
            )
        )

    def _ended(self, event: ExecutionEnded) -> list[Change]:
        known = self._views.get(event.serial)
        if known is None:  # its start was missed, the store has it
            return [Missed()]
        return self._take(
            replace(
                known,
                number=event.number,
                state=event.state,
                counts=event.counts,
                ename=event.ename,
                evalue=event.evalue,
                displays=event.displays,
                completed_at=event.at,
                updated_at=event.at,
            )
        )

    def _printed(self, event: OutputArrived) -> list[Change]:
        if event.late_lines:
            self._hold_late(event.serial, event.number, event.late_lines)
        view = self._views.get(event.serial)
        if view is None:
            return [Printed(None, True)]
        view.counts = event.counts
        view.late_lines = event.late_lines
        view.last_line = event.last_line
        view.updated_at = view.last_output_at = event.at
        return [Printed(view, not view.running)]

    def _take(self, new: View) -> list[Change]:
        """Bring one execution up to what is now known of it, in place."""
        changes: list[Change] = []
        if new.origin.kind is OriginKind.STARTUP:
            self.startups.add(new.serial)
        if new.late_lines:
            self._hold_late(new.serial, new.number, new.late_lines)
        known = self._views.get(new.serial)
        if known is None:
            if new.serial <= self.last_serial - KEPT:
                return changes
            known = self._views[new.serial] = replace(new, state=State.RUNNING)
            self._running.append(known)
            in_order, self.last_serial = new.serial > self.last_serial, max(self.last_serial, new.serial)
            if not in_order:
                self._views = dict(sorted(self._views.items()))
            changes.append(Started(known))
            self._forget_old()
        elif new.counts != known.counts and new.running and known.running:
            known.counts, known.updated_at = new.counts, new.updated_at
            known.last_output_at = new.updated_at
            changes.append(Printed(known, False))
        elif not (new.running or known.running):
            known.recorded = known.recorded or new.recorded
            if new.counts.utf8_bytes > known.counts.utf8_bytes:
                # a disk that stood still held its output back when the reply left
                known.counts, known.displays = new.counts, new.displays
        if known.running and not new.running:
            for name in ("number", "state", "completed_at", "updated_at", "counts", "ename", "evalue", "displays"):
                setattr(known, name, getattr(new, name))
            self._running.remove(known)
            known.late_lines, known.dropped, known.recorded = new.late_lines, new.dropped, new.recorded
            self.idle_since = new.completed_at or new.updated_at
            if self.waiting_for_input == known.serial:
                self.waiting_for_input = None
            changes.append(Ended(known))
        return changes

    def _hold_late(self, serial: int, number: int | None, lines: int) -> None:
        self.late.pop(serial, None)
        self.late[serial] = (number, lines)
        if len(self.late) > LATE_KEPT:
            del self.late[next(iter(self.late))]

    def _forget_old(self) -> None:
        excess = len(self._views) - KEPT
        if excess > 0:
            for serial in [s for s, v in self._views.items() if not v.running][:excess]:
                del self._views[serial]
