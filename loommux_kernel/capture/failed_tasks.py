"""Tasks that fail after their cell ended, with nobody left to hear of it.

Owns the watching of tasks that a cell creates on the kernel's main loop. A task's
exception is somebody's to fetch for as long as its cell runs; when that has ended
and nobody fetched it, `failed` is told, once, and asyncio need not complain again.

Knows nothing of records. `output` says when executions end, `capture` which loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable
from typing import Any

from loommux_kernel.executions.contexts import current_execution

#: Seconds that whoever waits for a task has to fetch its exception.
GRACE = 0.1


class TaskWatch:
    """A task factory for one loop, and the failures that wait for the end of their cell.

    `timers` is a loop of another thread whose clock no cell can stop; without one, `loop` has to do.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timers: asyncio.AbstractEventLoop | None,
        failed: Callable[[int, BaseException, str], None],
    ) -> None:
        self._loop, self._timers = loop, timers or loop
        self._failed = failed
        self._running: int | None = None
        self._waiting: list[tuple[int, weakref.ref[asyncio.Future[Any]]]] = []
        self._factory: Any = loop.get_task_factory()
        loop.set_task_factory(self._make)

    def stop(self) -> None:
        """Watch no new tasks; a factory that user code set since stays."""
        if self._loop.get_task_factory() == self._make:
            self._loop.set_task_factory(self._factory)

    def began(self, serial: int) -> None:
        """That execution runs: failures of its tasks wait until it ends. Main thread."""
        self._running = serial

    def ended(self) -> None:
        """No execution runs: look again at the failures that waited. Main thread."""
        self._running = None
        waiting, self._waiting = self._waiting, []
        for serial, reference in waiting:
            task = reference()
            if task is not None:
                self._look_later(task, serial)

    def _make(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        if self._factory is not None:
            task = self._factory(loop, coro, **options)
        else:
            task = asyncio.Task(coro, loop=loop, **options)
        serial = current_execution.get(None)
        if serial is not None:
            task.add_done_callback(lambda done: self._done(done, serial))
        return task

    def _done(self, task: asyncio.Future[Any], serial: int) -> None:
        if not task.cancelled() and _unfetched(task):
            self._look_later(task, serial)

    def _look_later(self, task: asyncio.Future[Any], serial: int) -> None:
        def look() -> None:
            with contextlib.suppress(RuntimeError):  # closed: the process ends
                self._loop.call_soon_threadsafe(self._look, task, serial)

        with contextlib.suppress(RuntimeError):
            self._timers.call_soon_threadsafe(self._timers.call_later, GRACE, look)

    def _look(self, task: asyncio.Future[Any], serial: int) -> None:
        if not _unfetched(task):
            return
        if serial == self._running:
            self._waiting.append((serial, weakref.ref(task)))
            return
        coro = task.get_coro() if isinstance(task, asyncio.Task) else None
        name = getattr(coro, "__qualname__", "")
        error = task.exception()  # fetched now: asyncio says nothing of its own at the task's end
        if error is not None:
            self._failed(serial, error, name)


def _unfetched(task: asyncio.Future[Any]) -> bool:
    """Whether the task failed and nobody has asked for its exception."""
    return bool(getattr(task, "_log_traceback", False))
