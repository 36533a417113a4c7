"""The rows of a search: which lines are shown beside those that match, and how many are kept.

Pure. `search` makes one for each search and hands in texts of whole lines in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from loommux_kernel.text.clipping import clip

#: Characters of rows kept from the beginning and from the end; no answer shows more.
HEAD_CHARACTERS = 400_000
TAIL_CHARACTERS = 100_000

Shown = tuple[int, str, str]


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
        self._recent: deque[tuple[int, str]] = deque(maxlen=before)
        #: Up to which line the context of the last match goes, and which line was shown last.
        self._until = self._shown = 0

    def add(self, first: int, text: str, matching: list[int]) -> None:
        """The lines of `text`, of which those with the indexes `matching` match."""
        if matching or self._until >= first:
            lines = text.split("\n")
            if self._before or self._after:
                self._keep(list(self._with_context(first, lines, matching)))
            else:
                self._keep([(first + index, "M", lines[index]) for index in matching])
        if self._before:
            last = text.rsplit("\n", self._before)[-self._before :]
            self._recent.extend(enumerate(last, first + text.count("\n") + 1 - len(last)))

    def result(self) -> list[Shown]:
        tail = [row for rows in self._tail for row in rows]
        size, kept = 0, 0
        while kept < len(tail) and size <= TAIL_CHARACTERS:
            kept += 1
            size += self._size(tail[-kept])
        self.omitted += len(tail) - kept
        return [(n, kind, clip(line, self._max_chars)) for n, kind, line in self._head + tail[len(tail) - kept :]]

    def _with_context(self, first: int, lines: list[str], matching: list[int]) -> Iterator[Shown]:
        for index in matching:
            number = first + index
            yield from self._between(first, lines, self._shown + 1, min(self._until, number - 1))
            yield from self._between(first, lines, max(number - self._before, self._shown + 1), number - 1)
            yield number, "M", lines[index]
            self._shown, self._until = number, number + self._after
        yield from self._between(first, lines, self._shown + 1, min(self._until, first + len(lines) - 1))

    def _between(self, first: int, lines: list[str], since: int, until: int) -> Iterator[Shown]:
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
        return len(row[2]) if self._max_chars is None else min(len(row[2]), self._max_chars)
