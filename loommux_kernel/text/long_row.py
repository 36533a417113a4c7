"""A line too long to be held or rewritten as one string.

Owns how such a line is cut into parts and which of them are in memory; does not
know where the others are: `terminal` hands in a function that fetches them, and
`records.writer` takes the changed ones away to the store. A part is written anew
only when its own columns change, so a line of 50 MB grows at the cost of what is
added, and a carriage return to its beginning fetches one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from loommux_kernel.text.counts import utf8_size

#: Code points in every part but the last.
PART = 16_384
#: A row this long becomes a `LongRow`.
LONG = 2 * PART

#: (row id, part index) -> the part's text, None when it is gone.
Fetch = Callable[[int, int], str | None]

#: What a code point of a part that is gone counts as when others are drawn over it.
GONE = "\ufffd"


def no_parts(row: int, part: int) -> str | None:
    """A `Fetch` for rows that were never taken away."""
    return None


class LongRow:
    """One row of a screen, in parts. `id` names it within its stream."""

    __slots__ = ("_fetch", "_parts", "cut", "dirty", "id", "length", "utf8_bytes")

    def __init__(self, row_id: int, fetch: Fetch, text: str = "") -> None:
        self.id = row_id
        self._fetch = fetch
        self._parts: list[str | None] = []
        self.length = 0
        self.utf8_bytes = 0
        #: Parts that changed since `saved`.
        self.dirty: set[int] = set()
        #: The lowest count of parts since `saved`: stored ones from here on are void.
        self.cut: int | None = None
        self.write(0, text)

    @classmethod
    def stored(cls, row_id: int, fetch: Fetch, length: int, utf8_bytes: int) -> LongRow:
        """The row as it was saved, all of its parts still away."""
        row = cls(row_id, fetch)
        row.length, row.utf8_bytes = length, utf8_bytes
        row._parts = [None] * -(-length // PART)
        return row

    def write(self, column: int, text: str) -> None:
        """Overwrite from `column` on; beyond the end, blanks fill the gap."""
        if column > self.length:
            text = " " * (column - self.length) + text
            column = self.length
        done = 0
        while done < len(text):
            index, offset = divmod(column + done, PART)
            piece = text[done : done + PART - offset]
            old = self.part(index) if index < len(self._parts) else ""
            self._put(index, old, old[:offset] + piece + old[offset + len(piece) :])
            done += len(piece)
        self.length = max(self.length, column + len(text))

    def truncate(self, column: int) -> None:
        """Erase from `column` to the end."""
        if column >= self.length:
            return
        index, offset = divmod(column, PART)
        for gone in range(index + 1, len(self._parts)):
            self.utf8_bytes -= utf8_size(self.part(gone))
        old = self.part(index)
        del self._parts[index + 1 :]
        self._put(index, old, old[:offset])
        if offset == 0:
            self._parts.pop()
            self.dirty.discard(index)
        self.dirty = {i for i in self.dirty if i < len(self._parts)}
        self.cut = min(len(self._parts), len(self._parts) if self.cut is None else self.cut)
        self.length = column

    def trim(self) -> None:
        """Take the blanks off the end."""
        end = self.length
        for index in range(len(self._parts) - 1, -1, -1):
            kept = len(self.part(index).rstrip(" "))
            end = index * PART + kept
            if kept:
                break
        self.truncate(end)

    def part(self, index: int) -> str:
        text = self._find(index)
        return GONE * min(PART, self.length - index * PART) if text is None else text

    def changed(self) -> Iterator[tuple[int, str]]:
        """(index, text) of the parts to store."""
        for index in sorted(self.dirty):
            yield index, self.part(index)

    def saved(self) -> None:
        """The changed parts are stored: keep only the last in memory."""
        self.dirty.clear()
        self.cut = None
        for index in range(len(self._parts) - 1):
            self._parts[index] = None

    def held(self) -> int:
        """Characters in memory that are not stored."""
        return sum(len(self._parts[index] or "") for index in self.dirty)

    def shed(self) -> None:
        """Give up the parts that are not stored, but for the last."""
        self.dirty &= {len(self._parts) - 1}
        for index in range(len(self._parts) - 1):
            self._parts[index] = None

    def text(self) -> str:
        """All of it, with words for what is gone."""
        return "".join(self.texts())

    def texts(self) -> Iterator[str]:
        """All of it in parts."""
        return _worded((index, self._find(index)) for index in range(len(self._parts)))

    def head(self, count: int) -> str:
        """The first `count` code points."""
        return self.slice(0, count)

    def slice(self, begin: int, end: int) -> str:
        """The code points from `begin` up to `end`, as far as there are so many."""
        first = begin // PART
        needed = range(first, min(len(self._parts), -(-end // PART)))
        return "".join(self.part(i) for i in needed)[begin - first * PART : end - first * PART]

    def _find(self, index: int) -> str | None:
        text = self._parts[index]
        return self._fetch(self.id, index) if text is None else text

    def _put(self, index: int, old: str, new: str) -> None:
        if index == len(self._parts):
            self._parts.append(new)
        else:
            self._parts[index] = new
        self.utf8_bytes += utf8_size(new) - utf8_size(old)
        self.dirty.add(index)


def joined(parts: Iterable[tuple[int, str | None]], first: int = 0) -> str:
    """The text of a row's parts from `first` on, in order; words stand for those that are left out or None."""
    return "".join(_worded(parts, first))


def _worded(parts: Iterable[tuple[int, str | None]], first: int = 0) -> Iterator[str]:
    gone, after = 0, first
    for index, text in parts:
        gone += index - after
        after = index + 1
        if text is None:
            gone += 1
            continue
        if gone:
            yield f"…[{gone * PART:,} characters are gone]…"
            gone = 0
        yield text
