"""What fails on the kernel's loop while no cell waits for it: told, and no reason to end the process.

Owns what becomes of an exception that a signal handler has raised between cells, that a callback
has raised, and that has come out of the loop itself (`SystemExit` and `KeyboardInterrupt` do). Tasks
are `capture.failed_tasks`'s. Does not know how it is recorded: `failed` is told the execution whose
code it was, the error, and what it was. `app` runs the loop with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from asyncio.events import Handle
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from loommux_kernel.executions.contexts import current_execution
from loommux_kernel.shared.clock import monotonic

#: A loop that fails as often within a second does nothing else: code has closed what it stands on.
MOST_FAILURES = 50

_RUN_HANDLE = Handle._run.__code__


class StrayFailures:
    """See the module. `running` is the execution whose code runs, None between cells."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[int | None, BaseException, str], None],
        running: Callable[[], int | None],
    ) -> None:
        self._loop, self._failed, self._running = loop, failed, running
        self._recent: deque[float] = deque(maxlen=MOST_FAILURES)
        loop.set_exception_handler(self._in_callback)

    def of_handler(self, serial: int | None, signum: int, error: BaseException) -> None:
        """A signal handler has raised this between cells. Called inside the handler."""
        self._later(serial, error, f"the handler of {_name(signum)} failed while no cell ran")

    def out_of_loop(self, error: BaseException) -> None:
        """This has left the loop, which is started again. Raises it when the loop does nothing but fail."""
        at = monotonic()
        if len(self._recent) == MOST_FAILURES and at - self._recent[0] < 1.0:
            raise error
        self._recent.append(at)
        handle = _handle_of(error.__traceback__)
        if handle is None:
            self._later(None, error, "the event loop was left by an error")
        elif not isinstance(getattr(handle._callback, "__self__", None), asyncio.Task):  # type: ignore[attr-defined]
            self._later(_serial_of(handle), error, f"the callback {_callback(handle)} failed")

    def _in_callback(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """asyncio's own words while the cell runs whose callback it was, or when it is no callback's failure."""
        error, handle = context.get("exception"), context.get("handle")
        serial = _serial_of(handle) if isinstance(handle, Handle) else None
        if not isinstance(handle, Handle) or error is None or serial is None or serial == self._running():
            loop.default_exception_handler(context)
            return
        self._later(serial, error, f"the callback {_callback(handle)} failed after the cell ended")

    def _later(self, serial: int | None, error: BaseException, what: str) -> None:
        """Not here: a handler may have caught the main thread with the record's locks in its hands."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(self._failed, serial, error, what)


def _handle_of(trace: TracebackType | None) -> Handle | None:
    """Which callback of the loop's was running."""
    while trace is not None:
        if trace.tb_frame.f_code is _RUN_HANDLE:
            return trace.tb_frame.f_locals.get("self")
        trace = trace.tb_next
    return None


def _serial_of(handle: Handle) -> int | None:
    """The execution whose code has asked for it."""
    context = getattr(handle, "_context", None)
    return context.get(current_execution) if context is not None else None


def _callback(handle: Handle) -> str:
    callback: Any = getattr(handle, "_callback", None)
    while hasattr(callback, "func"):  # a `functools.partial`
        callback = callback.func
    return str(getattr(callback, "__qualname__", None) or "of the loop")


def _name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # a real-time signal
        return f"signal {signum}"
