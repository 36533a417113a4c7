"""Reads a record store: from any thread or process, beside its writer or after its death.

Owns how stored chunks, long lines and the stored screen make up a stream again.
Its connection is read-only and its transactions short (a long one would make
the writer's log grow): settled text never changes, so a whole stream is read
in many small steps from one snapshot of its screen. The host uses it, for its
tools, for export and for the console.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from loommux_kernel.shared.protocol import Counts, Origin, State, Stream
from loommux_kernel.shared.record_types import DisplayRecord, ExecutionRecord, NoticeRecord, SearchResult
from loommux_kernel.shared.records.database import CODES, STREAMS, Connected
from loommux_kernel.shared.records.stored_line import StoredLine
from loommux_kernel.shared.search import Query
from loommux_kernel.shared.search_windows import LongLine
from loommux_kernel.text.clipping import clip, clipped
from loommux_kernel.text.long_row import LongRow
from loommux_kernel.text.terminal import Terminal

PATIENCE = 5.0
#: Chunks of one step through a stream.
STEP = 16
#: Lines of the first step backwards; each next one takes twice as many.
BACKWARDS = 64
#: How far back a tail looks for lines that are not blank.
LOOKED_BACK = 100_000

LOST = "some output was lost because the record store could not be written"
_FACTS = (
    "SELECT serial, number, origin, source, submitted_at, started_at, state, completed_at, ename, evalue, late_lines,"
    " dropped, lost FROM executions WHERE serial > 0"
)


@dataclass(frozen=True)
class _Log:
    """One stream at one moment. Up to `shared`, its settled lines are the combined stream's."""

    serial: int
    code: int
    shared: int
    settled: int
    rows: list[str | LongRow]

    @property
    def lines(self) -> int:
        return self.settled + len(self.rows) - (self.rows[-1:] == [""])


@dataclass(frozen=True)
class _Piece:
    """Whole lines of a stream. A line that was not joined has its `parts`; lines that are `gone` have no text."""

    first: int
    last: int
    text: str = ""
    long: int | None = None
    code: int = 0
    gone: bool = False


class RecordReader(Connected):
    """See the module. Raises FileNotFoundError when there is no store, sqlite3.Error when it cannot be read."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise FileNotFoundError(path)
        uri = path.absolute().as_uri() + "?mode=ro"
        super().__init__(_connected(uri))
        self._lock = threading.RLock()
        try:
            if not self.query("SELECT 1 FROM sqlite_schema WHERE name = 'drain'"):
                raise FileNotFoundError(path)
        except BaseException:
            self.close()
            raise

    # -- what ran ----------------------------------------------------------------

    def executions(self, limit: int = 5, before: int | None = None) -> list[ExecutionRecord]:
        """The latest executions, newest first; with `before` those of lower serials."""
        below = "" if before is None else " AND serial < ?"
        with self._snapshot():
            return self._records(f"{below} ORDER BY serial DESC LIMIT ?", *([] if before is None else [before]), limit)

    def by_number(self, number: int) -> ExecutionRecord | None:
        """The execution that IPython counted as `number`; the last one if there are several."""
        with self._snapshot():
            found = self._records(" AND number = ? ORDER BY serial DESC LIMIT 1", number)
        return found[0] if found else None

    def by_serial(self, serial: int) -> ExecutionRecord | None:
        with self._snapshot():
            found = self._records(" AND serial = ?", serial)
        return found[0] if found else None

    def displays(self, serial: int, images: bool = False) -> list[DisplayRecord]:
        """The bundles that are shown, in the order of their places; those with images alone if `images`."""
        chosen = " AND instr(bundle, '\"image/') > 0" if images else ""
        found = self.query(
            "SELECT ordinal, line, kind, bundle, metadata, display_id FROM displays WHERE serial = ?"
            f"{chosen} ORDER BY line, ordinal",
            serial,
        )
        return [DisplayRecord(o, line, kind, json.loads(b), json.loads(m), d) for o, line, kind, b, m, d in found]

    def display_sizes(self, serial: int) -> list[tuple[int, int, int]]:
        """Ordinal, line and size of each bundle that is shown, in the order of their places."""
        return self.query(
            "SELECT ordinal, line, length(bundle) FROM displays WHERE serial = ? ORDER BY line, ordinal", serial
        )

    def display(self, serial: int, ordinal: int) -> DisplayRecord | None:
        found = self.query(
            "SELECT line, kind, bundle, metadata, display_id FROM displays WHERE serial = ? AND ordinal = ?",
            serial, ordinal,
        )  # fmt: skip
        return next((DisplayRecord(ordinal, at, k, json.loads(b), json.loads(m), d) for at, k, b, m, d in found), None)

    def notices(self, after: int = 0) -> list[NoticeRecord]:
        """Notices in order, those with an id above `after`."""
        found = self.query("SELECT id, serial, label, text, at FROM notices WHERE id > ? ORDER BY id", after)
        return [NoticeRecord(*row) for row in found]

    # -- what it said --------------------------------------------------------------

    def lines(
        self, serial: int, stream: Stream, first: int, last: int, max_chars: int | None = None, start_char: int = 1
    ) -> list[str]:
        """Lines `first` to `last`, from 1, both included, as far as they exist; clipped to `max_chars`.

        Each line begins at its column `start_char`. Lines that were dropped are one line that
        says which are gone. With `max_chars` a line of any length costs no more memory than that.
        """
        with self._snapshot():
            log = self._log(serial, stream)
            return [] if log is None else self._lines(log, first, last, max_chars, start_char)

    def line_length(self, serial: int, stream: Stream, number: int) -> int:
        """How many characters a line has; 0 when it does not exist or is gone."""
        with self._snapshot():
            log = self._log(serial, stream)
            if log is None or not 0 < number <= log.lines:
                return 0
            for piece in self._pieces(log, number, number, whole=False):
                if piece.long is not None:
                    return self._line(log.serial, piece).length
                return len(piece.text.removesuffix("\n"))
            row = log.rows[number - log.settled - 1]
            return len(row) if isinstance(row, str) else row.length

    def _lines(self, log: _Log, first: int, last: int, max_chars: int | None, start_char: int = 1) -> list[str]:
        lines: list[str] = []
        for piece in self._pieces(log, max(first, 1), last, whole=max_chars is None and start_char == 1):
            if piece.gone:
                lines.append(f"[lines {piece.first:,}–{piece.last:,} are gone]")
            elif piece.long is not None and not piece.text:
                line = self._line(log.serial, piece)
                lines.append(clipped(line.slice, line.length, max_chars, start_char))
            else:
                lines += [clip(line, max_chars, start_char) for line in piece.text.removesuffix("\n").split("\n")]
        for row in log.rows[max(0, first - log.settled - 1) : max(0, min(last, log.lines) - log.settled)]:
            lines.append(_clipped_row(row, max_chars, start_char))
        return lines

    def text(self, serial: int, stream: Stream) -> str:
        """All of a stream."""
        log = self._log(serial, stream)
        if log is None:
            return ""
        texts = [
            f"[lines {piece.first:,}–{piece.last:,} are gone]\n" if piece.gone else piece.text
            for piece in self._pieces(log, 1, log.settled)
        ]
        return "".join([*texts, _screen(log)])

    def since(self, serial: int, stream: Stream, settled: int, most: int) -> tuple[str, int, str]:
        """For who has had the first `settled` lines: at most so many settled ones more, and what may still change.

        Returns their text, how many settled lines that makes in all, and the screen
        behind them, which is empty as long as settled lines are left.
        """
        with self._snapshot():
            log = self._log(serial, stream)
            if log is None:
                return "", settled, ""
            last = max(settled, min(log.settled, settled + most))
            lines = self._lines(log, settled + 1, last, None) if last > settled else []
            return "".join(f"{line}\n" for line in lines), last, _screen(log) if last == log.settled else ""

    def tail(
        self, serial: int, stream: Stream, count: int, nonblank: bool = False, max_chars: int | None = None
    ) -> list[str]:
        """The last `count` lines, or the last that are not blank."""
        with self._snapshot():
            log = self._log(serial, stream)
            if log is None or count <= 0:
                return []
            found: list[str] = []
            last, step = log.lines, max(BACKWARDS, count) if nonblank else count
            while last > 0 and len(found) < count and log.lines - last < LOOKED_BACK:
                first = max(1, last - step + 1)
                lines = self._lines(log, first, last, max_chars)
                found = [line for line in lines if line.strip() or not nonblank] + found
                if len(lines) < last - first + 1:  # some are gone: nothing before them is at the end
                    break
                last, step = first - 1, step * 2
            return found[-count:]

    def search(
        self, serial: int, stream: Stream, query: Query, before: int, after: int, max_chars: int | None = None
    ) -> SearchResult:
        """The lines that match, with context; rows that are longer are cut. Raises `QueryTooExpensive`."""
        log = self._log(serial, stream)
        if log is None:
            return SearchResult(0, 0, [], 0)
        return query.search(self._texts(log), log.lines, before, after, max_chars)

    def close(self) -> None:
        if self._connection is not None:
            with self._lock:
                super().close()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()

    # -- streams -------------------------------------------------------------------

    def _log(self, serial: int, stream: Stream) -> _Log | None:
        """The stream as it is now; None when nothing was written to it."""
        found = self.query(
            "SELECT stream, lines, shared, settled, state FROM streams WHERE serial = ?"
            " AND (stream = ? OR stream = 0 AND sole = ?)",
            serial, CODES[stream], CODES[stream],
        )  # fmt: skip
        if not found:
            return None
        code, lines, shared, settled, state = found[0]
        if state is None:
            return _Log(serial, code, shared, lines, [])
        terminal = Terminal.from_state(json.loads(state), lambda row, part: self._part(serial, code, row, part))
        return _Log(serial, code, shared, settled, terminal.rows())

    def _texts(self, log: _Log) -> Iterator[tuple[int, str | LongLine]]:
        """The stream in texts of whole lines and long lines by themselves."""
        for piece in self._pieces(log, 1, log.settled, whole=False):
            if piece.long is not None:
                line = self._line(log.serial, piece)
                yield piece.first, LongLine(line.length, line.slice, line.parts)
            elif not piece.gone:
                yield piece.first, piece.text
        first = log.settled + 1
        for long, rows in groupby(log.rows[: log.lines - log.settled], key=lambda row: isinstance(row, LongRow)):
            found = list(rows)
            if not long:
                yield first, "\n".join(map(str, found))
                first += len(found)
                continue
            for row in found:
                assert isinstance(row, LongRow)
                yield first, LongLine(row.length, row.slice, row.texts)
                first += 1

    def _pieces(self, log: _Log, first: int, last: int, whole: bool = True) -> Iterator[_Piece]:
        """Settled lines from `first` to `last`, without what is not stored."""
        last = min(last, log.settled)
        at = first
        while at <= last:
            code, end = (0, min(last, log.shared)) if at <= log.shared else (log.code, last)
            begun = at
            for piece in self._stored(log.serial, code, at, end, whole):
                if piece.first > at:
                    yield _Piece(at, piece.first - 1, gone=True)
                yield piece
                at = piece.last + 1
            if at == begun:
                yield _Piece(at, end, gone=True)
                at = end + 1

    def _stored(self, serial: int, code: int, first: int, last: int, whole: bool) -> Iterator[_Piece]:
        """The next few pieces of what is stored of the lines from `first` to `last`."""
        where = "serial = ? AND stream = ? AND first <= ?"
        begin_of_first = f"ifnull((SELECT max(first) FROM chunks WHERE {where}), ?)"
        chunks = self.query(
            f"SELECT first, lines, long, text FROM chunks WHERE {where} AND first >= {begin_of_first}"
            f" ORDER BY first LIMIT {STEP}",
            serial, code, last, serial, code, first, first,
        )  # fmt: skip
        for begin, count, long, text in chunks:
            end = begin + count - 1
            if end < first:
                continue
            if long is not None:
                text = StoredLine(self.query, serial, code, long).text() + "\n" if whole else ""
            elif begin < first or end > last:
                text = _cut(text, first - begin, end - last)
            yield _Piece(max(begin, first), min(end, last), text, long, code)

    # -- long lines ------------------------------------------------------------------

    def _line(self, serial: int, piece: _Piece) -> StoredLine:
        assert piece.long is not None
        return StoredLine(self.query, serial, piece.code, piece.long)

    def _part(self, serial: int, code: int, row: int, part: int) -> str | None:
        where = "serial = ? AND stream = ? AND long = ? AND part = ?"
        found = self.query(f"SELECT text FROM parts WHERE {where}", serial, code, row, part)
        return found[0][0] if found else None

    # -- rows ------------------------------------------------------------------------

    def _records(self, where: str, *values: Any) -> list[ExecutionRecord]:
        return [self._record(row) for row in self.query(_FACTS + where, *values)]

    def _record(self, row: tuple[Any, ...]) -> ExecutionRecord:
        serial, number, origin, source, submitted, started, state, completed, ename, evalue, late, dropped, lost = row
        counts = dict.fromkeys(Stream, Counts())
        updated = completed or started
        for code, *sizes, sole, at in self.query(
            "SELECT stream, lines, characters, utf8_bytes, sole, at FROM streams WHERE serial = ?", serial
        ):
            counts[STREAMS[code]] = Counts(*sizes)
            updated = max(updated, at)
            if sole is not None:
                counts[STREAMS[sole]] = Counts(*sizes)
        return ExecutionRecord(
            serial, number, Origin.from_wire(json.loads(origin)), source, State(state), submitted, started, updated,
            completed, ename, evalue, counts, late, "; ".join([dropped] * bool(dropped) + [LOST] * lost) or None,
        )  # fmt: skip

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[None]:
        """What is read inside is of one moment."""
        with self._lock:
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                self.connection.execute("COMMIT")

    def query(self, statement: str, *values: Any) -> list[Any]:
        """Rows of the tables; raises sqlite3.Error."""
        with self._lock:
            return self.connection.execute(statement, values).fetchall()


def _connected(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, timeout=PATIENCE, isolation_level=None, check_same_thread=False, uri=True)


def _cut(text: str, before: int, after: int) -> str:
    """The lines of `text` without so many at its beginning and end."""
    lines = text.removesuffix("\n").split("\n")
    return "\n".join([*lines[max(0, before) : len(lines) - max(0, after)], ""])


def _screen(log: _Log) -> str:
    return "\n".join(row if isinstance(row, str) else row.text() for row in log.rows)


def _clipped_row(row: str | LongRow, max_chars: int | None, start_char: int) -> str:
    if isinstance(row, str):
        return clip(row, max_chars, start_char)
    if max_chars is None and start_char == 1:
        return row.text()
    return clipped(row.slice, row.length, max_chars, start_char)
