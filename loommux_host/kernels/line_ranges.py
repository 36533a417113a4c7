"""Lines of a stream, read no further than a result can carry them.

A read may ask for a million lines or for one of fifty megabytes; the host holds only what
can be shown: the first lines up to the limit, the last ones, and how much all of them are.
Called by `usecases.inspection` in a worker thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from loommux_host.facts.result_limits import BODY_CHARACTERS, EXCERPT_LINE_CHARACTERS
from loommux_kernel.shared.protocol import Counts, Stream
from loommux_kernel.shared.records.reader import RecordReader

#: Lines held at a time.
BATCH = 2_000
#: Lines from the end that may stand in place of the whole.
TAIL = 500


@dataclass(frozen=True)
class Lines:
    """`first` to `last` of a stream; when too many, the first ones, the last ones, and their size."""

    lines: list[str]
    tail: list[str] | None = None
    size: Counts | None = None


@dataclass(frozen=True)
class Range:
    """Which lines: 1-based, both included, none when first > last; `total` is the whole stream's size."""

    serial: int
    stream: Stream
    first: int
    last: int
    total: Counts
    max_chars: int | None
    start_char: int = 1

    @property
    def whole(self) -> bool:
        everything = self.max_chars is None and self.start_char == 1
        return self.first <= 1 and self.last >= self.total.lines and everything


def read(reader: RecordReader, wanted: Range) -> Lines:
    """The lines, as far as a result can carry them."""
    if wanted.whole and wanted.total.characters > BODY_CHARACTERS:
        return _ends(reader, wanted)
    lines: list[str] = []
    size = Counts()
    for start in range(wanted.first, wanted.last + 1, BATCH):
        end = min(wanted.last, start + BATCH - 1)
        batch = reader.lines(wanted.serial, wanted.stream, start, end, wanted.max_chars, wanted.start_char)
        if size.characters <= BODY_CHARACTERS:
            lines += batch
        size = _added(size, batch)
    if size.characters <= BODY_CHARACTERS or len(lines) == size.lines:
        return Lines(lines)
    return Lines(lines, _tail(reader, wanted), size)


def _ends(reader: RecordReader, wanted: Range) -> Lines:
    """Of a whole stream that is too large, whose size is known: its first lines up to the limit, and its last."""
    lines: list[str] = []
    characters = 0
    for start in range(1, wanted.last + 1, BATCH):
        end = min(wanted.last, start + BATCH - 1)
        batch = reader.lines(wanted.serial, wanted.stream, start, end, BODY_CHARACTERS + 1)
        lines += batch
        characters += sum(map(len, batch)) + len(batch)
        if characters > BODY_CHARACTERS:
            break
    return Lines(lines, _tail(reader, wanted), wanted.total)


def _tail(reader: RecordReader, wanted: Range) -> list[str]:
    first = max(wanted.first, wanted.last - TAIL + 1)
    return reader.lines(wanted.serial, wanted.stream, first, wanted.last, EXCERPT_LINE_CHARACTERS, wanted.start_char)


def _added(size: Counts, lines: list[str]) -> Counts:
    return Counts(
        size.lines + len(lines),
        size.characters + sum(map(len, lines)) + len(lines),
        size.utf8_bytes + sum(len(line.encode(errors="replace")) for line in lines) + len(lines),
    )
