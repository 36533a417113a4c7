"""How a traceback is written and shortened.

Owns Python's own format with a cell's name in place of its file's, for errors that
IPython's format takes too long for or does not know, and the cut in the middle of
what is too long. Pure text. `capture.messages` shortens what goes to the combined stream;
`running.shell` renders.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType

#: A traceback of more lines is shortened to about this many (contract 3.7).
SHOWN_LINES = 200
_HEAD_LINES = 120
#: IPython's format takes some milliseconds for a frame: more are left to Python's.
ORDINARY_FRAMES = 60
ORDINARY_CHAIN = 8
#: Frames of one exception, and exceptions of one group, that are written at all.
MOST_FRAMES = 2000
MOST_IN_GROUP = 1000
#: What begins a frame, in IPython's and in Python's own format.
_FRAME = re.compile(r"^\s*(?:[+|]\s*)*(?:File |Cell |\[Previous line repeated|\[\.\.\. skipping)")
_PLACE = re.compile(r'^(\s*(?:[+|]\s*)*)File "(.+)", line (\d+)(.*)$', re.MULTILINE)
#: Modules whose frames stand above a cell's first one.
_MACHINERY = ("IPython.", "ipykernel.", "loommux_kernel.")


def shortened(text: str) -> str | None:
    """The traceback with its middle left out, or None when it is short enough.

    Cuts at the beginning of a frame where one is near, and says how many frames
    and lines are missing.
    """
    lines = text.split("\n")
    if len(lines) <= SHOWN_LINES:
        return None
    head = _at_frame(lines, _HEAD_LINES, -1)
    tail = _at_frame(lines, len(lines) - (SHOWN_LINES - _HEAD_LINES - 3), 1)
    left_out = lines[head:tail]
    frames = sum(1 for line in left_out if _FRAME.match(line))
    lines_of = f"{len(left_out)} lines"
    named = f"{frames} frame{'s' if frames > 1 else ''} left out ({lines_of})" if frames else f"{lines_of} left out"
    words = f"[{named}; the traceback stream has them]"
    return "\n".join([*lines[:head], "", words, "", *lines[tail:]])


def is_ordinary(error: BaseException) -> bool:
    """Whether IPython's format can be used: no group in the chain, and not too much of everything."""
    frames = 0
    for chain, link in enumerate(_chain(error), 1):
        frames += sum(1 for _ in _frames(link.__traceback__))
        if isinstance(link, BaseExceptionGroup) or frames > ORDINARY_FRAMES or chain > ORDINARY_CHAIN:
            return False
        try:
            str(link)
        except BaseException:
            return False
    return True


def plain(error: BaseException, trace: TracebackType | None, cell_name: Callable[[str], str | None]) -> list[str]:
    """The lines of Python's own format, bounded, with cells named as IPython names them."""
    trace = _below_machinery(trace)
    left_out = sum(1 for _ in _frames(trace)) - MOST_FRAMES
    formatted = traceback.TracebackException(
        type(error), error, trace, limit=-MOST_FRAMES, compact=True, max_group_width=MOST_IN_GROUP, max_group_depth=50
    )
    text = "".join(formatted.format())
    if left_out > 0:
        text = f"[the outermost {left_out} frames are left out]\n{text}"

    def place(match: re.Match[str]) -> str:
        indent, filename, line, rest = match.groups()
        name = cell_name(filename)
        return match.group() if name is None else f"{indent}{name}, line {line}{rest}"

    return _PLACE.sub(place, text).rstrip("\n").split("\n")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, each once."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _below_machinery(trace: TracebackType | None) -> TracebackType | None:
    """From the first frame that is not IPython's or ours, or all when there is none."""
    for frame in _frames(trace):
        if not str(frame.tb_frame.f_globals.get("__name__", "")).startswith(_MACHINERY):
            return frame
    return trace


def _at_frame(lines: list[str], at: int, step: int) -> int:
    """The nearest line that begins a frame, within 20 lines in the given direction."""
    for offset in range(20):
        index = at + offset * step
        if 0 < index < len(lines) and _FRAME.match(lines[index]):
            return index
    return at
