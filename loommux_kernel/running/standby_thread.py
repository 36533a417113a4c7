"""A thread that is there already when no other can be started.

A cell may take all the memory, or start as many programs as its account may have; what has to
go on beside it then needs a thread from before. Owns that one thread. `interrupts` uses it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class StandbyThread:
    """Work of one kind, each piece in a thread of its own as long as the system gives any."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._free = threading.Semaphore(0)
        self._handed: SimpleQueue[Callable[[], Any]] = SimpleQueue()

    def start(self) -> None:
        """Have it wait from now on; without it, `run` needs a thread of the system each time."""
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._wait, name=f"{self._name} (standby)", daemon=True).start()

    def run(self, work: Callable[[], Any]) -> bool:
        """Have it done beside the caller; False when there is no thread for it."""
        try:
            threading.Thread(target=work, name=self._name, daemon=True).start()
        except (RuntimeError, MemoryError):
            if not self._free.acquire(blocking=False):
                return False
            self._handed.put(work)
        return True

    def _wait(self) -> None:
        while True:
            self._free.release()
            work = self._handed.get()
            with contextlib.suppress(Exception):  # as in any thread: it ends the work, and not this one
                work()
