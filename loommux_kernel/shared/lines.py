"""Lines of a stream: which ones are asked for, and how much of each.

Owns line ranges (contract 3.5) and hands on clipping and searching. Pure. Used by
the host's use-cases and its rendering.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from loommux_kernel.shared.search import QUERY_MODES, Query, QueryTooExpensive
from loommux_kernel.text.clipping import clip

__all__ = ["QUERY_MODES", "LineRange", "Query", "QueryTooExpensive", "clip"]

_RANGE = re.compile(r"\s*(-?[0-9]{1,18})?\s*:\s*(-?[0-9]{1,18})?\s*")


@dataclass(frozen=True)
class LineRange:
    """``start:stop``, both ends included; None is an end that was left out."""

    start: int | None = None
    stop: int | None = None

    @classmethod
    def parse(cls, text: str | None) -> LineRange:
        """`text` as contract 3.5 has it; ValueError says what is allowed.

        A range that is backwards whatever the stream's length (``5:2``, ``-2:-5``) is
        refused as a mistake; one that just lies outside the stream is empty.
        """
        if text is None or not text.strip():
            return cls()
        match = _RANGE.fullmatch(text)
        if match is None:
            raise ValueError(
                "start:stop, line numbers from 1, both ends included, either may be left out, negatives count"
                ' from the end ("1:20", "-20:", ":-3", "3:3")'
            )
        start, stop = (None if end is None else int(end) for end in match.groups())
        if start == 0 or stop == 0:
            raise ValueError("line numbers from 1, or from -1 counting from the end; there is no line 0")
        if start is not None and stop is not None and (start > 0) == (stop > 0) and start > stop:
            raise ValueError(f"a start that is not after the stop, as in {stop}:{start}")
        return cls(start, stop)

    def resolve(self, total: int) -> tuple[int, int]:
        """First and last line, from 1, both included, in a stream of `total` lines; none when first > last."""
        first = 1 if self.start is None else self.start
        last = total if self.stop is None else self.stop
        if first < 0:
            first = max(1, total + first + 1)
        if last < 0:
            last = total + last + 1
        last = min(last, total)
        return (first, last) if first <= last else (first, first - 1)
