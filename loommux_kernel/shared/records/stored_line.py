"""One settled line that is too long to be held, as it lies in the store: any piece of it, all of it in parts.

Pure but for the query function it is given, which is `reader`'s, its only caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from loommux_kernel.text.long_row import GONE, PART, joined

#: Parts that are read at once.
PARTS_READ = 64
_WHERE = "FROM parts WHERE serial = ? AND stream = ? AND long = ?"


@dataclass(frozen=True)
class StoredLine:
    """See the module. `code` is its stream's, `long` its id within that."""

    query: Callable[..., list[Any]]
    serial: int
    code: int
    long: int

    @property
    def length(self) -> int:
        """How many characters it has."""
        last = self._rows("SELECT part, length(text)", "ORDER BY part DESC LIMIT 1")
        return last[0][0] * PART + last[0][1] if last else 0

    def slice(self, begin: int, end: int) -> str:
        """The characters from `begin` up to `end`; what is gone keeps its columns."""
        first, last = begin // PART, -(-end // PART)
        found = dict(self._rows("SELECT part, text", "AND part >= ? AND part < ?", first, last))
        text = "".join(found.get(part, GONE * PART) for part in range(first, last))
        return text[begin - first * PART : end - first * PART]

    def parts(self) -> Iterator[str]:
        """All of it, a few parts at a time, with words for what is gone."""
        last = self._rows("SELECT max(part)")[0][0] or 0
        for first in range(0, last + 1, PARTS_READ):
            between = "AND part >= ? AND part < ? ORDER BY part"
            yield joined(self._rows("SELECT part, text", between, first, first + PARTS_READ), first)

    def text(self) -> str:
        """All of it in one string."""
        return joined(self._rows("SELECT part, text", "ORDER BY part"))

    def _rows(self, select: str, more: str = "", *values: int) -> list[Any]:
        return self.query(f"{select} {_WHERE} {more}", self.serial, self.code, self.long, *values)
