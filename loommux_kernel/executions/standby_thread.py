"""A thread that is there already when no other can be started.

A cell may take all the memory, or start as many programs as its account may have; what has to
go on beside it then needs a thread from before. Owns that one thread. `interrupts` uses it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from loommux_kernel.executions import native_threads


class StandbyThread:
    """Work of one kind, each piece in a thread of its own as long as the system gives any."""

    def __init__(self) -> None:
        #: Held while the thread is not there or has work.
        self._busy = native_threads.allocate_lock()
        self._busy.acquire()
        self._handed: SimpleQueue[Callable[[], Any]] = SimpleQueue()

    def start(self) -> None:
        """Have it wait from now on; without it, `run` needs a thread of the system each time."""
        with contextlib.suppress(RuntimeError):
            native_threads.start(self._wait)

    def run(self, work: Callable[[], Any]) -> bool:
        """Have it done beside the caller; False when there is no thread for it."""
        try:
            native_threads.start(work)
        except (RuntimeError, MemoryError):
            if not self._busy.acquire(blocking=False):
                return False
            self._handed.put(work)
        return True

    def _wait(self) -> None:
        while True:
            self._busy.release()
            work = self._handed.get()
            with contextlib.suppress(Exception):  # as in any thread: it ends the work, and not this one
                work()
