"""Whether the loop that cells run on is free to take one, and what holds it when it is not.

Owns the question put to that loop and the place that is named instead of its answer. A task
or a callback that an earlier cell left there and that does not yield keeps the kernel from
running anything, though no cell runs. Asked on the control thread, by `control_requests`.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from types import FrameType
from typing import Any

from loommux_kernel.executions.native_threads import Flag

#: A loop that takes longer than this to come round is held.
ANSWER_SECONDS = 0.1


class HeldLoop:
    """Asks one loop, which runs on the main thread; `shell` knows which cell a code object is of."""

    def __init__(self, loop: asyncio.AbstractEventLoop, shell: Any) -> None:
        self._loop, self._shell = loop, shell
        #: Set by the loop when it comes round: one question is open at a time.
        self._answered: Flag | None = None

    async def holder(self) -> str | None:
        """Where the main thread is, like ``In [3], line 5, in spin``; None when the loop comes round in time."""
        answered = self._answered
        if answered is None or answered.is_set():
            answered = self._answered = Flag()
            self._loop.call_soon_threadsafe(answered.set)
        deadline = asyncio.get_running_loop().time() + ANSWER_SECONDS
        while not answered.is_set():
            if asyncio.get_running_loop().time() > deadline:
                return self._place()
            await asyncio.sleep(0.002)
        return None

    def _place(self) -> str:
        """The innermost frame of a cell, else the innermost frame there is."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        last = frame
        while frame is not None:
            if cell := self._shell.compile.format_code_name(frame.f_code.co_filename):
                return f"{cell[1].replace('In[', 'In [')}, {_where(frame)}"
            frame = frame.f_back
        return f"{last.f_code.co_filename}, {_where(last)}" if last is not None else "its main thread"


def _where(frame: FrameType) -> str:
    name = frame.f_code.co_name
    return f"line {frame.f_lineno}" + ("" if name == "<module>" else f", in {name}")
