"""The rows of a search: which lines are shown beside those that match, how many are kept, and how much of each.

Pure. `search` makes one for each search and hands in texts of whole lines in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from loommux_kernel.shared.search_windows import LongLine, Place
from loommux_kernel.text.clipping import around, clipped

#: Characters of rows kept from the beginning and from the end; no answer shows more.
HEAD_CHARACTERS = 400_000
TAIL_CHARACTERS = 100_000

Line = str | LongLine
Shown = tuple[int, str, Line]
#: Where a line that matches has its first match; None when that cannot be told.
Find = Callable[[str], Place | None]


class Rows:
    """Matching lines with their context, each line once, the middle left out when they are too many."""

    def __init__(self, before: int, after: int, max_chars: int | None) -> None:
        self._before = before
        self._after = after
        self._max_chars = max_chars
        self._head: list[Shown] = []
        self._room = HEAD_CHARACTERS
        #: Rows of the last texts, once the head is full.
        self._tail: deque[list[Shown]] = deque()
        self._tail_size = 0
        self.omitted = 0
        #: The last lines of the text before, for the context of matches in the next one.
        self._recent: deque[tuple[int, Line]] = deque(maxlen=before)
        #: Up to which line the context of the last match goes, and which line was shown last.
        self._until = self._shown = 0
        #: The first matches in long lines, by line number.
        self._places: dict[int, Place] = {}

    def add(self, first: int, text: str, matching: list[int]) -> None:
        """The lines of `text`, of which those with the indexes `matching` match."""
        if matching or self._until >= first:
            self._add(first, text.split("\n"), matching)
        if self._before:
            last = text.rsplit("\n", self._before)[-self._before :]
            self._recent.extend(enumerate(last, first + text.count("\n") + 1 - len(last)))

    def add_long(self, number: int, line: LongLine, place: Place | None) -> None:
        """One line that is not held; `place` is its first match, None when it does not match."""
        if place is not None:
            self._places[number] = place
        if place is not None or self._until >= number:
            self._add(number, [line], [] if place is None else [0])
        self._recent.append((number, line))

    def result(self, find: Find) -> tuple[list[tuple[int, str, str]], dict[int, int]]:
        """The rows as they are shown, and the columns of the first matches in those that are cut."""
        tail = [row for rows in self._tail for row in rows]
        size, kept = 0, 0
        while kept < len(tail) and size <= TAIL_CHARACTERS:
            kept += 1
            size += self._size(tail[-kept])
        self.omitted += len(tail) - kept
        columns: dict[int, int] = {}
        rows = [self._row(row, find, columns) for row in self._head + tail[len(tail) - kept :]]
        return rows, columns

    def _row(self, row: Shown, find: Find, columns: dict[int, int]) -> tuple[int, str, str]:
        """A row, cut if it is too long: around its first match, or at its end when that is not known."""
        number, kind, line = row
        length = _length(line)
        most = length if isinstance(line, str) else HEAD_CHARACTERS
        if self._max_chars is not None:
            most = self._max_chars
        if isinstance(line, str) and length <= most:
            return number, kind, line
        piece = line.slice if isinstance(line, LongLine) else lambda begin, end: line[begin:end]
        place = self._places.get(number)
        if kind == "M" and isinstance(line, str):
            place = find(line)
        if kind == "M" and place is not None and length > most:
            columns[number] = place[0] + 1
            return number, kind, around(piece, length, place, most)
        return number, kind, clipped(piece, length, most)

    def _add(self, first: int, lines: Sequence[Line], matching: list[int]) -> None:
        if self._before or self._after:
            self._keep(list(self._with_context(first, lines, matching)))
        else:
            self._keep([(first + index, "M", lines[index]) for index in matching])

    def _with_context(self, first: int, lines: Sequence[Line], matching: list[int]) -> Iterator[Shown]:
        for index in matching:
            number = first + index
            yield from self._between(first, lines, self._shown + 1, min(self._until, number - 1))
            yield from self._between(first, lines, max(number - self._before, self._shown + 1), number - 1)
            yield number, "M", lines[index]
            self._shown, self._until = number, number + self._after
        yield from self._between(first, lines, self._shown + 1, min(self._until, first + len(lines) - 1))

    def _between(self, first: int, lines: Sequence[Line], since: int, until: int) -> Iterator[Shown]:
        if since > until:
            return
        if since < first:
            yield from ((number, "C", line) for number, line in self._recent if since <= number <= until)
        yield from ((number, "C", lines[number - first]) for number in range(max(since, first), until + 1))
        self._shown = until

    def _keep(self, rows: list[Shown]) -> None:
        fit = 0
        if not self._tail:
            while fit < len(rows) and self._room >= self._size(rows[fit]):
                self._room -= self._size(rows[fit])
                fit += 1
            self._head += rows[:fit]
        if fit < len(rows):
            self._tail.append(rows[fit:])
            self._tail_size += self._sizes(rows[fit:])
            while len(self._tail) > 1 and self._tail_size - self._sizes(self._tail[0]) > TAIL_CHARACTERS:
                gone = self._tail.popleft()
                self._tail_size -= self._sizes(gone)
                self.omitted += len(gone)

    def _sizes(self, rows: list[Shown]) -> int:
        return sum([self._size(row) for row in rows])

    def _size(self, row: Shown) -> int:
        length = min(_length(row[2]), HEAD_CHARACTERS)
        return length if self._max_chars is None else min(length, self._max_chars)


def _length(line: Line) -> int:
    return len(line) if isinstance(line, str) else line.length
