"""One stream of one execution: its terminal, and its settled text on the way to the store.

Owns how settled text is cut into chunks and which of it is stored already; gives
the rows of the next drain and forgets them only when told that they are
written. Pure. `transcript` holds up to five of them for an execution.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from loommux_kernel.shared.protocol import Counts, Stream
from loommux_kernel.shared.records.database import CODES, END, Kind, Row
from loommux_kernel.text.counts import utf8_size
from loommux_kernel.text.long_row import Fetch, LongRow
from loommux_kernel.text.terminal import Terminal

#: Characters of a chunk, at the least; it ends with a line.
CHUNK = 1 << 16


_encode = json.JSONEncoder(ensure_ascii=False).encode


@dataclass
class _Chunk:
    """Settled lines under one key. A long row's text is in its parts."""

    first: int
    lines: int
    size: int
    text: str
    long: int | None = None


class StreamLog:
    """See the module. Up to `shared` its settled lines are those of the combined stream."""

    def __init__(
        self, stream: Stream, fetch: Fetch, terminal: Terminal | None = None, characters: int = 0, utf8_bytes: int = 0
    ) -> None:
        self.stream = stream
        self.terminal = terminal or Terminal(fetch)
        self.shared = 0
        #: Bytes of the shared lines: stored once, with the combined stream.
        self.shared_bytes = 0
        self.touched = True
        #: The size as of the last `rows`.
        self.written = Counts()
        #: Of the settled lines.
        self._characters = characters
        self._utf8_bytes = utf8_bytes
        #: Settled text that does not fill a chunk yet, and how many of these texts are stored.
        self._open: list[str] = []
        self._open_size = 0
        self._open_first = self.terminal.settled_lines + 1
        self._stored = 0
        self._stored_lines = 0
        self._sealed: list[_Chunk] = []
        #: Stored chunks from this line on are replaced by larger ones.
        self._rewritten: int | None = None
        self._settled_rows: list[LongRow] = []

    def copy(self, stream: Stream, fetch: Fetch) -> StreamLog:
        """A log that goes on from here by itself, for a stream that has been the same so far."""
        self.settle()
        terminal = Terminal.from_state(self.terminal.state(), fetch)
        other = StreamLog(stream, fetch, terminal, self._characters, self._utf8_bytes)
        other.shared = self.terminal.settled_lines
        other.shared_bytes = self._utf8_bytes
        return other

    def counts(self) -> Counts:
        self.settle()
        screen = self.terminal.screen_counts()
        return Counts(
            self.terminal.settled_lines + screen.lines,
            self._characters + screen.characters,
            self._utf8_bytes + screen.utf8_bytes,
        )

    def text(self, max_bytes: int) -> str | None:
        """All of it, if it is small and still in memory."""
        counts = self.counts()
        if counts.utf8_bytes > max_bytes or self._open_first > 1 or self._sealed or self._settled_rows:
            return None
        return "".join(self._open) + self.terminal.screen()

    def settle(self) -> None:
        """Take what has left the screen."""
        for piece in self.terminal.take_settled():
            if isinstance(piece, str):
                self._open.append(piece)
                self._open_size += len(piece)
                self._characters += len(piece)
                self._utf8_bytes += utf8_size(piece)
                if self._open_size >= CHUNK:
                    self._seal(CHUNK)
                continue
            self._seal(1)
            self._sealed.append(_Chunk(self._open_first, 1, piece.utf8_bytes + 1, "", piece.id))
            self._settled_rows.append(piece)
            self._open_first += 1
            self._characters += piece.length + 1
            self._utf8_bytes += piece.utf8_bytes + 1

    def unsaved(self) -> int:
        """Characters that wait to be stored, the screen apart."""
        rows = [*self._settled_rows, *self.terminal.long_rows()]
        return sum(len(c.text) for c in self._sealed) + sum(row.held() for row in rows)

    def shed(self) -> None:
        """Give up what waits to be stored, but for the last lines."""
        self._sealed.clear()
        for row in [*self._settled_rows, *self.terminal.long_rows()]:
            row.shed()
        self._settled_rows.clear()

    def rows(self, serial: int, at: float, sole: Stream | None) -> list[Row]:
        """What is to be written; the same again until `saved`."""
        size = self.written = self.counts()  # first of all: looking at long rows takes the blanks off their ends
        code = CODES[self.stream]
        rows: list[Row] = []
        if self._rewritten is not None:
            rows.append((Kind.CHUNKS_GONE, serial, code, self._rewritten, END))
        rows += [(Kind.CHUNK, serial, code, c.first, c.lines, c.size, c.long, c.text) for c in self._sealed]
        if self._stored < len(self._open):
            text = "".join(self._open[self._stored :])
            first = self._open_first + self._stored_lines
            rows.append((Kind.CHUNK, serial, code, first, text.count("\n"), utf8_size(text), None, text))
        for row in [*self._settled_rows, *self.terminal.long_rows()]:
            if row.cut is not None:
                rows.append((Kind.PARTS_GONE, serial, code, row.id, row.cut, END))
            rows += [(Kind.PART, serial, code, row.id, part, utf8_size(text), text) for part, text in row.changed()]
        rows += [(Kind.PARTS_GONE, serial, code, row_id, 0, END) for row_id in self.terminal.discarded]
        state = _encode(self.terminal.state())
        same = None if sole is None else CODES[sole]
        settled = self.terminal.settled_lines
        counts = (size.lines, size.characters, size.utf8_bytes)
        rows.append((Kind.STREAM, serial, code, *counts, settled, self.shared, same, at, state))
        return rows

    def saved(self) -> None:
        """The last `rows` are written, and nothing was fed since."""
        self._sealed.clear()
        self._rewritten = None
        self._stored = len(self._open)
        self._stored_lines = self.terminal.settled_lines + 1 - self._open_first
        for row in [*self._settled_rows, *self.terminal.long_rows()]:
            row.saved()
        self._settled_rows.clear()
        self.terminal.discarded.clear()
        self.touched = False

    def _seal(self, least: int) -> None:
        """Make chunks of the open text, while there are `least` characters of it."""
        text = "".join(self._open)
        if self._stored and self._rewritten is None:
            self._rewritten = self._open_first
        at = 0
        while len(text) - at >= least:
            end = text.find("\n", at + CHUNK - 1) + 1 or len(text)
            piece = text[at:end]
            chunk = _Chunk(self._open_first, piece.count("\n"), utf8_size(piece), piece)
            self._sealed.append(chunk)
            self._open_first += chunk.lines
            at = end
        self._open = [text[at:]] if at < len(text) else []
        self._open_size = len(text) - at
        self._stored = self._stored_lines = 0
