"""Watches: work beside the cells that holds none of them (contract 8.4).

Owns how it is started (an awaitable on the kernel's loop, a function in a thread of its own),
which are pending, and what is said when one ends: its traceback in the record of the cell that
started it, a notice, and an event for the host, whose `wait` hears of it. A restart ends watches
with the process. Called by `loommux_object`, from any thread; `running.control_requests` asks what is pending.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any, Protocol

from loommux_kernel.capture.notices import shorten
from loommux_kernel.executions.contexts import current_execution
from loommux_kernel.executions.end_states import message_of, safe_text
from loommux_kernel.shared.protocol import Event, Outcome, WatchEnded, WatchStarted, now

NAME_CHARACTERS = 256
#: What `wait` takes for whichever ends first.
NEXT = "next"
#: Watches that may be pending at once.
MOST_PENDING = 100


class Kernel(Protocol):
    """What watches need of their kernel."""

    capture: Any
    notices: Any
    shell: Any

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...


class Watch:
    """Work beside the cells. `outcome` is None as long as it is pending, else completed, error or cancelled."""

    def __init__(self, name: str, serial: int | None, number: int | None) -> None:
        self.name = name
        self.outcome: Outcome | None = None
        #: What it raised.
        self.error: BaseException | None = None
        #: When it began and when it ended, in seconds since the epoch.
        self.at = now()
        self.ended_at: float | None = None
        self._serial = serial
        self._number = number
        self._value: Any = None
        self._cancel: Callable[[], None] | None = None

    @property
    def pending(self) -> bool:
        return self.outcome is None

    def result(self) -> Any:
        """What it returned; raises what it raised, and `RuntimeError` while it is pending or when it was cancelled."""
        if self.error is not None:
            raise self.error
        if self.outcome is not Outcome.COMPLETED:
            raise RuntimeError(f"the watch {self.name!r} {'is pending' if self.pending else 'was cancelled'}")
        return self._value

    def cancel(self) -> bool:
        """Ask an awaitable to end; False when it has ended, and for a function: no thread can be made to."""
        if self._cancel is None or not self.pending:
            return False
        self._cancel()
        return True

    def __repr__(self) -> str:
        if self.outcome is None:
            return f"<watch {self.name!r}, pending for {self._elapsed()}>"
        return f"<watch {self.name!r}, {self._ended()}>"

    def _ended(self) -> str:
        """How, and after how long."""
        after = f"after {self._elapsed()}"
        if self.outcome is Outcome.COMPLETED:
            return f"completed {after}"
        if self.error is None:
            return f"was cancelled {after}"
        return f"failed {after}: {_one_line(self.error)}"

    def _elapsed(self) -> str:
        return _duration((self.ended_at or now()) - self.at)

    def to_wire(self) -> dict[str, Any]:
        return {"name": self.name, "serial": self._serial, "number": self._number, "at": self.at}


class Watches:
    """The watches of one kernel process."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._lock = threading.Lock()
        self._pending: dict[str, Watch] = {}

    def start(self, name: str, work: Awaitable[Any] | Callable[[], Any]) -> Watch:
        """See `loommux_object.Loommux.watch`. Raises `TypeError` and `ValueError`; then nothing was started."""
        try:
            watch = self._begin(name, work)
        except (TypeError, ValueError):
            if inspect.iscoroutine(work):
                work.close()  # or Python would warn that nobody awaits it
            raise
        self._tell(watch, WatchStarted, at=watch.at)
        if inspect.iscoroutinefunction(work):
            work = work()
        if isinstance(work, Awaitable):
            self._on_loop(watch, work)
        else:
            threading.Thread(target=self._call, args=(watch, work), name=f"watch {name}", daemon=True).start()
        return watch

    def pending(self) -> list[Watch]:
        with self._lock:
            return list(self._pending.values())

    def to_wire(self) -> list[dict[str, Any]]:
        return [watch.to_wire() for watch in self.pending()]

    def _begin(self, name: str, work: object) -> Watch:
        _check(name)
        if not (callable(work) or isinstance(work, Awaitable)):
            raise TypeError(f"a watch is an awaitable or a function without arguments, got {type(work).__name__}")
        serial = current_execution.get(None) or self._kernel.capture.latest
        watch = Watch(name, serial, self._kernel.notices.number_of(serial))
        with self._lock:
            other = self._pending.get(name)
            if other is not None:
                by = "" if other._number is None else f", started by In [{other._number}]"
                raise ValueError(f"a watch {name!r} is pending{by}; cancel it, wait for it, or take another name")
            if len(self._pending) >= MOST_PENDING:
                raise ValueError(f"{MOST_PENDING} watches are pending, and more are not kept")
            self._pending[name] = watch
        return watch

    # -- an awaitable --------------------------------------------------------------------

    def _on_loop(self, watch: Watch, work: Awaitable[Any]) -> None:
        """Await it in a task of the kernel's loop, in the context of whoever asked."""
        loop = self._kernel.loop
        tasks: list[asyncio.Task[None]] = []

        def begin() -> None:
            task = loop.create_task(self._await(watch, work), name=f"watch {watch.name}")
            task.add_done_callback(unbegun)
            tasks.append(task)

        def unbegun(task: asyncio.Task[None]) -> None:
            """A task that is cancelled before its first step never runs."""
            if watch.pending:
                if inspect.iscoroutine(work):
                    work.close()
                self._end(watch, Outcome.CANCELLED)

        def cancel() -> None:
            loop.call_soon_threadsafe(lambda: tasks[0].cancel())

        watch._cancel = cancel
        if asyncio._get_running_loop() is loop:
            begin()
        else:
            loop.call_soon_threadsafe(begin, context=copy_context())

    async def _await(self, watch: Watch, work: Awaitable[Any]) -> None:
        try:
            watch._value = await work
        except asyncio.CancelledError:
            self._end(watch, Outcome.CANCELLED)
        except BaseException as error:  # told here, whatever it is; nobody awaits this task
            self._end(watch, Outcome.ERROR, error, self._kernel.shell.rendered(error))
        else:
            self._end(watch, Outcome.COMPLETED)

    # -- a function ------------------------------------------------------------------------

    def _call(self, watch: Watch, function: Callable[[], Any]) -> None:
        try:
            value = function()
        except BaseException as error:  # as above
            self._end(watch, Outcome.ERROR, error, self._kernel.shell.rendered_plainly(error))
            return
        if isinstance(value, Awaitable):
            self._on_loop(watch, value)
            return
        watch._value = value
        self._end(watch, Outcome.COMPLETED)

    # -- the end -----------------------------------------------------------------------------

    def _end(
        self,
        watch: Watch,
        outcome: Outcome,
        error: BaseException | None = None,
        traceback: tuple[str, str | None] | None = None,
    ) -> None:
        watch.ended_at = now()
        with self._lock:
            del self._pending[watch.name]
            watch.error, watch.outcome = error, outcome
        capture, serial = self._kernel.capture, watch._serial
        notice = shorten(f"watch {_quoted(watch.name)} {watch._ended()}")
        if traceback is not None:
            capture.traceback(serial, *traceback, notice)
        else:
            label = "" if watch._number is None else f"In [{watch._number}]"
            capture.notice(serial or None, watch._number, label, notice)
        ename = None if error is None else safe_text(type(error).__name__)
        evalue = None if error is None else message_of(error)
        self._tell(watch, WatchEnded, at=watch.ended_at, outcome=outcome, ename=ename, evalue=evalue)

    def _tell(self, watch: Watch, kind: type[Event], **fields: Any) -> None:
        self._kernel.capture.event(kind, name=watch.name, serial=watch._serial, number=watch._number, **fields)


def _check(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a watch's name is a string, got {type(name).__name__}")
    if not name.strip() or not name.isprintable() or len(name) > NAME_CHARACTERS:
        raise ValueError(f"a watch's name is printable and has at most {NAME_CHARACTERS} characters, got {name!r}")
    if name == NEXT:
        raise ValueError(f"{NEXT!r} is what wait() takes for whichever ends first; take another name")


def _one_line(error: BaseException) -> str:
    words = " ".join(message_of(error).split())
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _quoted(name: str) -> str:
    return name if " " not in name else repr(name)


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"
