"""Threads, locks and sleep as Python has them, whatever a cell has put in their place.

gevent and eventlet replace what `threading`, `time`, `queue` and `_thread` hold: a "thread" of
theirs runs only when the main thread lets it. What the kernel itself needs while a cell runs is
taken from here: taken at import, which is before any cell. Knows nothing of what is done with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from queue import SimpleQueue
from time import sleep
from typing import Any

__all__ = ["Ending", "Flag", "NoThread", "Workers", "allocate_lock", "get_ident", "sleep", "start"]

#: Taken here, and used by name: `contexts` and others replace the one of the module.
_start: Callable[..., Any] = start_new_thread
_allocate = allocate_lock


def start(function: Callable[..., Any], *arguments: Any) -> None:
    """Run it on a thread of its own, which ends with the process. Raises RuntimeError when there can be none."""
    _start(function, arguments)


class NoThread(Exception):
    """No thread could be started; the message is Python's."""


class Ending(Exception):
    """The process is about to exit."""


class Flag:
    """An event that is set once, as `threading.Event`."""

    def __init__(self) -> None:
        self._closed = _allocate()
        self._closed.acquire()
        self._set = False

    def set(self) -> None:
        if not self._set:
            self._set = True
            with contextlib.suppress(RuntimeError):  # another thread was first
                self._closed.release()

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is set, at the latest after `timeout` seconds."""
        if not self._set and self._closed.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            with contextlib.suppress(RuntimeError):
                self._closed.release()
        return self._set


class Workers:
    """At most `most` threads that do work for an event loop; started when there is work for them."""

    def __init__(self, most: int) -> None:
        self._most, self._count, self._busy = most, 0, 0
        self._closed = False
        self._waiting: SimpleQueue[tuple[Callable[[], Any], Callable[[Callable[[], Any]], None]]] = SimpleQueue()
        threading._register_atexit(self.close)  # type: ignore[attr-defined] # when Python waits for its own threads

    def close(self) -> None:
        """Take no more work: the process is about to exit."""
        self._closed = True

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """What `work` returns or raises. `Ending` when the process is; `NoThread` when none can be started."""
        if self._closed:
            raise Ending
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(outcome: Callable[[], Any]) -> None:
            self._busy -= 1
            if future.cancelled():
                return
            try:
                future.set_result(outcome())
            except BaseException as error:
                future.set_exception(error)

        def tell(outcome: Callable[[], Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: the process ends
                loop.call_soon_threadsafe(settle, outcome)

        if self._busy >= self._count and self._count < self._most:
            try:
                start(self._serve)
                self._count += 1
            except RuntimeError as error:
                if not self._count:
                    raise NoThread(str(error)) from error
        self._busy += 1
        self._waiting.put((lambda: work(*arguments), tell))
        return await future

    def _serve(self) -> None:
        while True:
            work, tell = self._waiting.get()
            tell(_done(work))
            del work, tell  # what they hold is not kept until there is more to do


def _done(work: Callable[[], Any]) -> Callable[[], Any]:
    """Do it; what returns its result, or raises what it raised."""
    try:
        result = work()
    except BaseException as error:
        failure = error

        def fail() -> Any:
            raise failure

        return fail
    return lambda: result
