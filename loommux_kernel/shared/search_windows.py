"""Searching a line that is too long to be held: window by window, with the same matches as in the whole.

Owns how windows overlap, and for which patterns they can: those of which no match is long
and whose surroundings matter by one character. A line is held whole for any other.
Pure. `search` calls; `records.reader` makes the lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from loommux_kernel.text.clipping import Slice

#: Characters of a window, at the least.
WINDOW = 1 << 20
#: The longest matches that windows may overlap by.
MOST_OVERLAP = 1 << 16
#: Constructs of unbounded width, that look further than one character, or that refer to something else.
_FAR = re.compile(r"[*+]|\{(?!\d+(?:,\d+)?\})|\(\?(?![:imsau])|\\[1-9XGRLKgk]|\(\*")
_COUNT = re.compile(r"\{(?:\d+,)?(\d+)\}")

#: A match: where it begins and how long it is.
Place = tuple[int, int]
#: How many matches, and the first of them.
Matches = tuple[int, Place | None]
#: (text, from where on, matches that begin from here on do not count) -> the matches, and where the search goes on.
CountIn = Callable[[str, int, int], tuple[Matches, int]]


@dataclass(frozen=True)
class LongLine:
    """One line: its length, any piece of it, and all of its text in parts."""

    length: int
    slice: Slice
    parts: Callable[[], Iterable[str]]

    def text(self) -> str:
        """All of it in one string."""
        return "".join(self.parts())


def width(pattern: str) -> int | None:
    """A length that no match of the pattern exceeds; None where that is not plain to see, or is too long."""
    if _FAR.search(pattern):
        return None
    longest = len(pattern)
    for count in _COUNT.findall(pattern):
        longest *= max(1, int(count))
        if longest > MOST_OVERLAP:
            return None
    return longest


def count_literal(line: LongLine, literal: str) -> Matches:
    """How often the text occurs, occurrences that overlap counted once; as `str.count`."""
    found, rest, gone = 0, "", 0
    first: Place | None = None
    for part, _ in _windows(line.parts()):
        text = rest + part
        begin = 0
        if count := text.count(literal):
            found += count
            first = first or (gone + text.find(literal), len(literal))
            begin = text.rfind(literal) + len(literal) if len(literal) == 1 else _after_last(text, literal)
        begin = max(begin, len(text) - len(literal) + 1)
        rest, gone = text[begin:], gone + begin
    return found, first


def count_matches(line: LongLine, longest: int, count: CountIn) -> Matches:
    """How often a pattern matches of which no match is longer than `longest`."""
    found, at, rest, gone = 0, 0, "", 0
    first: Place | None = None
    for part, last in _windows(line.parts()):
        text = rest + part
        limit = len(text) + 1 if last else max(at, len(text) - longest - 1)
        (here, place), at = count(text, at, limit)
        found += here
        if first is None and place is not None:
            first = (gone + place[0], place[1])
        begin = max(0, at - 1)
        rest, at, gone = text[begin:], at - begin, gone + begin
    return found, first


def _after_last(text: str, literal: str) -> int:
    """Where the last of the occurrences that `str.count` counts ends."""
    at = end = 0
    while (at := text.find(literal, end)) >= 0:
        end = at + len(literal)
    return end


def _windows(parts: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """The parts joined to windows, and whether it is the last."""
    waiting: list[str] = []
    size = 0
    for part in parts:
        if size >= WINDOW:
            yield "".join(waiting), False
            waiting, size = [], 0
        waiting.append(part)
        size += len(part)
    yield "".join(waiting), True
