"""The threads that a server's blocking work runs in: some are there from the start.

A cell may start as many programs as its account may have processes; then no thread can be
started either, and a server that wants one for each read of a record can answer nobody. Owns
the pool behind `asyncio.to_thread`: it grows as long as the system gives threads, and does with
those that it has when there are no more. Made by `server.host`.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

#: There from the start, and at the most.
AT_START, MOST = 4, 32


class Threads(ThreadPoolExecutor):
    """As the library's, but what no new thread can be started for waits for one that exists."""

    def __init__(self, at_start: int = AT_START, most: int = MOST) -> None:
        super().__init__(most, thread_name_prefix="worker")
        all_there = threading.Event()  # until then none is idle, so each piece of work gets a thread
        try:
            for _ in range(at_start):
                self.submit(all_there.wait)
        finally:
            all_there.set()

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise


def serve(loop: asyncio.AbstractEventLoop) -> None:
    """Have `asyncio.to_thread` use such a pool on that loop from now on."""
    loop.set_default_executor(Threads())
