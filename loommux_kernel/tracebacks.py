"""How a traceback is shown: shortened in the middle.

Pure text. `messages` shortens what goes to the combined stream; `shell` renders.
"""

from __future__ import annotations

import re

#: A traceback of more lines is shortened to about this many (contract 3.7).
SHOWN_LINES = 200
_HEAD_LINES = 120
#: What begins a frame, in IPython's and in Python's own format.
_FRAME = re.compile(r"^\s*(?:[+|]\s*)*(?:File |Cell |\[\.\.\. skipping)")


def shortened(text: str) -> str | None:
    """The traceback with its middle left out, or None when it is short enough.

    Cuts at the beginning of a frame where one is near, and says how many frames
    and lines are missing.
    """
    lines = text.split("\n")
    if len(lines) <= SHOWN_LINES:
        return None
    head = _at_frame(lines, _HEAD_LINES, -1)
    tail = _at_frame(lines, len(lines) - (SHOWN_LINES - _HEAD_LINES - 2), 1)
    left_out = lines[head:tail]
    frames = sum(1 for line in left_out if _FRAME.match(line))
    words = f"[{frames} frames left out ({len(left_out)} lines); the traceback stream has them]"
    return "\n".join([*lines[:head], "", words, "", *lines[tail:]])


def _at_frame(lines: list[str], at: int, step: int) -> int:
    """The nearest line that begins a frame, within 20 lines in the given direction."""
    for offset in range(20):
        index = at + offset * step
        if 0 < index < len(lines) and _FRAME.match(lines[index]):
            return index
    return at
