"""The one writer of a record store; lives on the kernel's IOPub thread.

Owns when what was said reaches the disk: `commit` writes everything since the
last one as one transaction. Knows no ipykernel and no queue: `capture.drain` calls it
in the order in which things are to stand. The finisher uses it for a process
that died.

No method raises because of the disk. While it cannot be written, what is to be
written waits in memory (`WAITING_BYTES`, oldest output goes first, and the records
say so) and every commit tries again. In a forked child nothing does anything.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loommux_kernel.shared.protocol import REPLY_BODY_BYTES, Counts, Origin, State, Stream, now
from loommux_kernel.shared.records.database import CODES, Forgetful, Kind, Row
from loommux_kernel.shared.records.disk import Disk, Unavailable
from loommux_kernel.shared.records.transcript import Transcript
from loommux_kernel.shared.records.written_execution import Execution, load
from loommux_kernel.text.controls import visible

#: Characters of text that are gathered before they go through the terminals.
GATHERED = 1 << 20
#: Characters that wait for a commit before one is made in between.
TRANSACTION = 4 << 20
#: Bytes kept in memory while the store cannot be written.
WAITING_BYTES = 16 << 20
#: Executions kept in memory: those that ended and are stored, and those that cannot be stored.
KEPT_STORED = 32
KEPT_WAITING = 512
LAST_LINE_CHARACTERS = 200
#: Display ids whose displays can be updated.
DISPLAY_IDS = 4096

Run = tuple[Stream, str]


class RecordWriter(Forgetful):
    """See the module. Times are seconds since the epoch."""

    def __init__(self, path: Path, budget_bytes: int, on_trouble: Callable[[str], None]) -> None:
        super().__init__()
        self._ours = True
        self._disk = Disk(path, budget_bytes, on_trouble)
        self._executions: OrderedDict[int, Execution] = OrderedDict()
        self._dirty: dict[int, Execution] = {}
        self._loose: list[Row] = []
        self._descriptors: dict[str, Row] = {}
        #: How many texts of its process it was given, with what it is being given; and how many the store knows of.
        self.taken = 0
        self._stored = 0
        self._queue: list[tuple[int, Stream, str]] = []
        self._queued = 0
        #: Display id -> (serial, ordinal) of the displays that show it.
        self._shown: OrderedDict[str, list[tuple[int, int]]] = OrderedDict()

    @classmethod
    def open(cls, path: Path, budget_bytes: int, on_trouble: Callable[[str], None]) -> RecordWriter:
        """A writer to the store at `path`. `on_trouble` is told once when records will not be complete."""
        return cls(path, budget_bytes, on_trouble)

    # -- executions ------------------------------------------------------------

    def begin(
        self, serial: int, number: int | None, origin: Origin, source: str, submitted_at: float, started_at: float
    ) -> None:
        """An execution starts."""
        if self._ours:
            transcript = self._transcript(serial)
            self._dirty[serial] = Execution(transcript, number, origin, visible(source), submitted_at, started_at)
            self._adopt(self._dirty[serial])
            self._disk.budget.began(serial)

    def end(self, serial: int, state: State, completed_at: float, ename: str | None, evalue: str | None) -> None:
        """An execution has ended; what arrives for it now is late."""
        if self._ours:
            self._change(serial).end(state, completed_at, _visible(ename), _visible(evalue))
            self._disk.budget.finished(serial)

    def mark_told(self, serial: int) -> None:
        """Somebody was told of that execution's end: its output may go when space runs out."""
        if self._ours:
            self._change(serial).told = True
            self._disk.budget.told(serial)

    # -- output ----------------------------------------------------------------

    def text(self, serial: int, stream: Stream, text: str) -> None:
        """Text as it was written to a stream."""
        if text and self._ours:
            self._queue.append((serial, stream, text))
            self._queued += len(text)
            if self._queued >= GATHERED:
                self._feed()

    def said(self, serial: int, combined: str, own: dict[Stream, str]) -> None:
        """Text of several streams: all in order, and each stream's own. Cheaper than `text` for many short ones.

        Long text is cut on its way if one stream has said all of it.
        """
        if not self._ours:
            return
        self._feed()
        transcript = self._touched(serial).receive()
        pieces = [(combined, own)]
        if len(own) == 1 and len(combined) > GATHERED:
            (stream,) = own
            cut = (combined[at : at + GATHERED] for at in range(0, len(combined), GATHERED))
            pieces = ((piece, {stream: piece}) for piece in cut)
        for piece, of_streams in pieces:
            transcript.say(piece, of_streams)
            if transcript.unsaved() >= TRANSACTION:
                self._write_amid()

    def traceback(self, serial: int, text: str, shown: str | None = None) -> None:
        """A traceback; the combined stream gets `shown` when that is given: it is shortened there."""
        if self._ours:
            self._change(serial).receive().traceback(text, shown)

    def display(
        self,
        serial: int,
        *,
        kind: str,
        number: int | None,
        bundle: dict[str, Any],
        metadata: dict[str, Any],
        display_id: str | None,
    ) -> int:
        """A display (`kind` ``display``) or a result (``result``); its ordinal, from 1."""
        if not self._ours:
            return 0
        display_id = _visible(display_id)
        ordinal = self._change(serial).receive().display(kind, number, bundle, metadata, display_id)
        if display_id is not None:
            self._shown.setdefault(display_id, []).append((serial, ordinal))
            self._shown.move_to_end(display_id)
            while len(self._shown) > DISPLAY_IDS:
                self._shown.popitem(last=False)
        return ordinal

    def update_display(
        self, serial: int, display_id: str, bundle: dict[str, Any], metadata: dict[str, Any], *, anew: bool = True
    ) -> set[int]:
        """Every display with that id shows something else.

        One whose text has left the screen is shown anew: at the end of its
        execution if that is `serial`, which updates it, else as a display of `serial`.
        It stays as it is without `anew`. Returns the executions that have changed.
        """
        if not self._ours:
            return set()
        display_id = visible(display_id)
        kept: list[tuple[int, int]] = []
        changed: set[int] = set()
        for owner, ordinal in self._shown.get(display_id, ()):
            execution = self._change(owner)
            if execution.transcript.holds(ordinal) or (anew and owner == serial):
                execution.receive().update(ordinal, bundle, metadata, display_id)
                kept.append((owner, ordinal))
                changed.add(owner)
            elif not anew:
                kept.append((owner, ordinal))
            else:
                execution.transcript.forget(ordinal)
        self._shown[display_id] = kept
        if anew and not kept:
            self.display(serial, kind="display", number=None, bundle=bundle, metadata=metadata, display_id=display_id)
            changed.add(serial)
        return changed

    def clear(self, serial: int, wait: bool) -> None:
        """`clear_output`; with `wait` it happens before the next output."""
        if self._ours:
            self._change(serial).receive().clear(wait)

    def capture(self, serial: int, widget: str, on: bool) -> None:
        """An output widget begins or ends to capture what the execution says; its clears are its own."""
        if self._ours:
            transcript = self._change(serial).transcript
            transcript.capture(widget) if on else transcript.release(widget)

    def close_widget(self, serial: int, widget: str) -> None:
        """An output widget is gone, and what it shows of that execution."""
        if self._ours:
            self._change(serial).transcript.close_widget(widget)

    # -- beside the output -------------------------------------------------------

    def notice(self, serial: int | None, label: str, text: str, at: float) -> None:
        if self._ours:
            self._loose.append((Kind.NOTICE, serial, visible(label), visible(text), at))

    def descriptor(self, serial: int, stream: Stream, path: Path, offset: int) -> None:
        """The file behind a descriptor was taken in up to `offset` bytes; what follows is `serial`'s.

        Bytes of a character that is not complete yet are not taken in.
        """
        if self._ours:
            self._descriptors[str(path)] = (Kind.DESCRIPTOR, os.fsencode(path), serial, CODES[stream], offset)

    # -- what there is -----------------------------------------------------------

    def counts(self, serial: int, stream: Stream = Stream.COMBINED) -> Counts:
        """The size of a stream, with all that was said so far."""
        return self._look(serial).transcript.counts(stream) if self._ours else Counts()

    def late_lines(self, serial: int) -> int:
        """How many lines arrived after the execution's end."""
        return self._look(serial).late_lines() if self._ours else 0

    def last_line(self, serial: int) -> str:
        """The last line that is not blank, at most 200 characters of it."""
        return self._look(serial).transcript.last_line(LAST_LINE_CHARACTERS) if self._ours else ""

    def body(self, serial: int, max_bytes: int = REPLY_BODY_BYTES) -> str | None:
        """The combined text if it is small enough to travel with a reply."""
        return self._look(serial).transcript.text(max_bytes) if self._ours else None

    # -- to the disk -------------------------------------------------------------

    def commit(self) -> None:
        """Write everything since the last commit as one transaction."""
        if self._ours:
            self._feed()
            self._write()

    def close(self) -> None:
        """Commit, and let go of the store."""
        if not self._ours:
            return
        self._disk.try_now()
        self.commit()
        self._ours = False
        self._disk.close()

    @property
    def waiting(self) -> bool:
        """Something could not be written yet: commit again soon."""
        return bool(self._dirty or self._loose or self._descriptors)

    def forget(self) -> None:
        """In a forked child: from now on nothing does anything."""
        self._ours = False
        self._disk.forget()

    # -- inside ------------------------------------------------------------------

    def _change(self, serial: int) -> Execution:
        """An execution to which something happens now, after all text that was said before."""
        self._feed()
        return self._touched(serial)

    def _touched(self, serial: int) -> Execution:
        execution = self._execution(serial)
        if not execution.volatile:
            self._dirty[serial] = execution
        return execution

    def _look(self, serial: int) -> Execution:
        self._feed()
        return self._execution(serial)

    def _execution(self, serial: int) -> Execution:
        execution = self._executions.get(serial)
        if execution is None:
            execution = self._load(serial)
            self._adopt(execution)
        return execution

    def _load(self, serial: int) -> Execution:
        """An execution from the store. While that cannot be read, what happens to it is lost."""
        unknown = Execution.unknown(self._transcript(serial), now())
        try:
            return self._disk.read(lambda store: load(store, self._transcript(serial))) or unknown
        except Unavailable:
            unknown.volatile = True
            return unknown

    def _transcript(self, serial: int) -> Transcript:
        return Transcript(serial, lambda stream, row, part: self._part(serial, stream, row, part), self._write_amid)

    def _adopt(self, execution: Execution) -> None:
        if not execution.volatile:
            self._executions[execution.serial] = execution
        if len(self._executions) > 2 * KEPT_STORED:
            for serial in list(self._executions)[:KEPT_STORED]:
                if serial not in self._dirty and self._executions[serial].ended:
                    del self._executions[serial]

    def _part(self, serial: int, stream: Stream, row: int, part: int) -> str | None:
        try:
            return self._disk.read(lambda store: store.part(serial, CODES[stream], row, part))
        except Unavailable:
            return None

    def _feed(self) -> None:
        """The gathered texts go through the terminals."""
        if not self._queue:
            return
        queue, self._queue, self._queued = self._queue, [], 0
        runs: dict[int, list[Run]] = {}
        for serial, stream, text in queue:
            runs.setdefault(serial, []).append((stream, text))
        for serial, own in runs.items():
            transcript = self._touched(serial).receive()
            for runs_at_once in _bounded(own):
                transcript.write(runs_at_once)
                if transcript.unsaved() >= TRANSACTION:
                    self._write_amid()

    def _write_amid(self) -> None:
        """Write, though more is about to happen to what is written."""
        dirty = dict(self._dirty)
        self._write()
        self._dirty.update(dirty)

    def _write(self) -> None:
        rows = [*self._loose, *self._descriptors.values()]
        at = now()
        for execution in self._dirty.values():
            rows += execution.rows(at)
        taken = self.taken
        if taken != self._stored:
            rows.append((Kind.TAKEN, taken))
        if rows and not self._disk.write(rows):
            self._bound()
            return
        self._stored = taken
        changed = list(self._dirty.values()) if rows else []
        for execution in changed:
            execution.saved()
        for kept in (self._dirty, self._loose, self._descriptors):
            kept.clear()
        for execution in changed:
            self._keep_within_budget(execution)

    def _keep_within_budget(self, execution: Execution) -> None:
        self._disk.budget.grew(execution.serial, execution.transcript.size())
        for relief in self._disk.relief(execution.serial):
            thinner = self._execution(relief.serial)
            thinner.dropped = relief.dropped
            relief.rows.append(thinner.facts())

    def _bound(self) -> None:
        """Give up the oldest output that waits when it is too much."""
        waiting = {serial: e.transcript.unsaved() for serial, e in self._dirty.items()}
        total = sum(waiting.values())
        for serial, size in waiting.items():
            if total <= WAITING_BYTES:
                break
            self._dirty[serial].transcript.shed()
            self._dirty[serial].lost = True
            total -= size
        for serial in list(self._dirty)[: max(0, len(self._dirty) - KEPT_WAITING)]:
            if self._dirty[serial].ended:
                del self._dirty[serial]
                self._executions.pop(serial, None)
        del self._loose[: max(0, len(self._loose) - KEPT_WAITING)]


def _bounded(runs: list[Run]) -> Iterator[list[Run]]:
    """The runs in groups of a bounded size; only runs that are longer than that are cut."""
    group: list[Run] = []
    size = 0
    for stream, text in runs:
        if group and (size + len(text) > 2 * GATHERED or len(text) > GATHERED):
            yield group
            group, size = [], 0
        if len(text) > GATHERED:
            for at in range(0, len(text), GATHERED):
                yield [(stream, text[at : at + GATHERED])]
            continue
        group.append((stream, text))
        size += len(text)
    if group:
        yield group


def _visible(text: str | None) -> str | None:
    return None if text is None else visible(text)
