"""Lines cut to a length: from their beginning, saying how much was left out, or around a place in them. Pure."""

from __future__ import annotations

from collections.abc import Callable

#: The code points of a line from one place up to another.
Slice = Callable[[int, int], str]


def clip(line: str, max_chars: int | None, start_char: int = 1) -> str:
    """`max_chars` characters of `line` from column `start_char` on, and how many behind them were left out."""
    return clipped(lambda begin, end: line[begin:end], len(line), max_chars, start_char)


def clipped(piece: Slice, length: int, max_chars: int | None, start_char: int = 1) -> str:
    """As `clip`, of a line of `length` characters that need not be held."""
    begin = min(start_char - 1, length)
    end = length if max_chars is None else min(length, begin + max_chars)
    omitted = f"…[{length - end:,} chars omitted]" if end < length else ""
    return piece(begin, end) + omitted


def around(piece: Slice, length: int, place: tuple[int, int], max_chars: int) -> str:
    """`max_chars` characters of a line with what stands at `place` (where, how long) in their middle."""
    where, size = place
    begin = max(0, where - max(0, max_chars - size) // 2)
    end = min(length, begin + max_chars)
    begin = max(0, end - max_chars)
    return f"{'…' * (begin > 0)}{piece(begin, end)}{'…' * (end < length)}"
