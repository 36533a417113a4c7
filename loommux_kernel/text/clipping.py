"""Lines cut to a length, saying how much was left out. Pure."""

from __future__ import annotations

import re

_CLIPPED = re.compile(r"…\[[0-9]{1,3}(?:,[0-9]{3})* chars omitted\]")


def clip(line: str, max_chars: int | None) -> str:
    """The first `max_chars` characters of `line` and how many were left out.

    A line that was clipped to the same length before stays as it is.
    """
    if max_chars is None or len(line) <= max_chars or _CLIPPED.fullmatch(line, max_chars):
        return line
    return f"{line[:max_chars]}…[{len(line) - max_chars:,} chars omitted]"
