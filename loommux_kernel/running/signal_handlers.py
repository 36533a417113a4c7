"""The signal handlers that people's code sets: kept, and run where what they raise does no harm.

Owns `signal.signal` and `signal.getsignal` in this process. Code finds what it has set; behind it
stands a handler of ours, which asks `Place` where the main thread was caught: in code of people's
the handler runs as in any program. In the kernel's own work, where an exception would leave a cell
half recorded, it is put off; between cells what it raises is told and ends nothing. SIGINT is the
interrupt's, so a handler for it lasts for its cell. Also knows what stands behind Python's back: a
handler that a library has set by `sigaction`, a signal that is ignored or blocked. Does not know
who interrupts. `interrupts` installs it.
"""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports]
import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from enum import Enum, auto
from functools import wraps
from types import FrameType
from typing import Any

from loommux_kernel.executions.contexts import current_execution
from loommux_kernel.executions.native_threads import get_ident

Handler = Callable[[int, FrameType | None], Any]

_MAIN = threading.main_thread().ident
_IGNORED_ADDRESS = 1  # C's SIG_IGN
#: Where Linux says of the main thread which signals it blocks, and which are on their way to it.
_STATUS = "/proc/self/status"


class Disposition(Enum):
    """What a SIGINT sent now would meet."""

    #: The interrupt's own handler.
    OURS = auto()
    #: A handler that code has set by `signal.signal`; asyncio's is one.
    CELLS = auto()
    #: A handler that Python does not know of.
    NATIVE = auto()
    IGNORED = auto()
    #: The main thread holds it back, or waits for it by `sigwait`.
    BLOCKED = auto()


class CellHandler:
    """What Python calls instead of a handler that code has set. `serial` is the execution whose code it was."""

    def __init__(self, handler: Handler, serial: int | None, run: Callable[[CellHandler, int, Any], None]) -> None:
        self.handler, self.serial, self._run = handler, serial, run
        #: asyncio's: it does nothing, and what was asked for is called by the loop.
        self.only_wakes = getattr(handler, "__module__", "") == "asyncio.unix_events"

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self._run(self, signum, frame)


class SignalHandlers:
    """See the module. `interrupt` is the handler of SIGINT; `run` calls any other one, or puts it off."""

    def __init__(self, interrupt: Handler, run: Callable[[CellHandler, int, Any], None]) -> None:
        self._interrupt, self._run = interrupt, run
        #: What code finds as the handler of SIGINT; there is one of the cell's own when it is neither default.
        self._sigint: Any = signal.default_int_handler
        self._own: CellHandler | None = None
        self._address: int | None = None
        self._status: int | None = None
        #: Whether code has the main thread block SIGINT. While it waits by `sigwait`, the system says that it does not.
        self._blocked = False
        self._forked = False
        self._set, self._get = signal.signal, signal.getsignal

    # -- main thread -----------------------------------------------------------------

    def install(self) -> None:
        """Take SIGINT, and `signal.signal`, for good."""
        self._take_sigint()
        self._address = _address()
        with contextlib.suppress(OSError):
            self._status = os.open(_STATUS, os.O_RDONLY | os.O_CLOEXEC)
        set_handler, get_handler = self._set, self._get

        @wraps(set_handler)
        def replaced_signal(signalnum: Any, handler: Any) -> Any:
            __tracebackhide__ = True
            if self._forked:
                return set_handler(signalnum, handler)
            return self._set_for_code(signalnum, handler)

        @wraps(get_handler)
        def replaced_getsignal(signalnum: Any) -> Any:
            return self._found(signalnum, get_handler(signalnum))

        signal.signal, signal.getsignal = replaced_signal, replaced_getsignal
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask = self._noting_what_is_blocked(signal.pthread_sigmask)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._become_child)

    def _noting_what_is_blocked(self, set_mask: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(set_mask)
        def replaced_pthread_sigmask(how: Any, mask: Any) -> Any:
            before = set_mask(how, mask)
            if get_ident() == _MAIN:
                self._blocked = signal.SIGINT in set_mask(signal.SIG_BLOCK, ())
            return before

        return replaced_pthread_sigmask

    @property
    def own(self) -> CellHandler | None:
        """The running cell's own handler of SIGINT."""
        return self._own

    def restore(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Take SIGINT back from a cell that is over, wherever it had put it."""
        if loop is not None and signal.SIGINT in getattr(loop, "_signal_handlers", ()):
            loop.remove_signal_handler(signal.SIGINT)
        self._sigint, self._own, self._blocked = signal.default_int_handler, None, False
        self._take_sigint()

    def _take_sigint(self) -> None:
        _signal.signal(signal.SIGINT, self._interrupt)  # also undoes `siginterrupt` and what C code has set
        if hasattr(signal, "pthread_sigmask"):
            _signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))

    def _set_for_code(self, signalnum: Any, handler: Any) -> Any:
        __tracebackhide__ = True
        special = handler in (signal.SIG_DFL, signal.SIG_IGN)
        cells = CellHandler(handler, current_execution.get(None), self._run) if callable(handler) else None
        if signalnum != signal.SIGINT or (cells is None and not special):
            return self._found(signalnum, self._set(signalnum, cells or handler))
        before = self._found(signalnum, self._get(signalnum))
        # The default ends a program; here it ends the cell, as `exit()` does.
        self._set(signalnum, handler if handler == signal.SIG_IGN else self._interrupt)
        self._sigint, self._own = handler, None if handler is signal.default_int_handler else cells
        return before

    def _found(self, signalnum: Any, handler: Any) -> Any:
        """What code has set, where Python has ours."""
        if isinstance(handler, CellHandler):
            return handler.handler
        return self._sigint if signalnum == signal.SIGINT and handler == self._interrupt else handler

    def _become_child(self) -> None:
        """A forked child has the handlers that its parent's code has set, as any program's."""
        self._forked = True
        for number in range(1, signal.NSIG):
            handler = _signal.getsignal(number)
            found = self._found(number, handler)
            if found is not handler:
                _signal.signal(number, found)

    # -- any thread ------------------------------------------------------------------------

    def disposition(self) -> Disposition:
        """What a SIGINT would meet. The default action, which would end the process, is replaced first."""
        if self._blocked or self._main_thread_has("SigBlk"):
            return Disposition.BLOCKED
        address = _address()
        if address is None:
            if self._address is not None:  # C's SIG_DFL, set by a library
                _set_address(self._address)
        elif address == _IGNORED_ADDRESS:
            return Disposition.IGNORED
        elif address != self._address:
            return Disposition.NATIVE
        if self._own is not None:
            return Disposition.CELLS
        found = _signal.getsignal(signal.SIGINT)
        if found == signal.SIG_IGN:
            return Disposition.IGNORED
        return Disposition.OURS if found == self._interrupt else Disposition.NATIVE

    def pending(self) -> bool:
        """Whether a SIGINT is on its way to the main thread, which blocks it."""
        return self._main_thread_has("SigPnd")

    def _main_thread_has(self, field: str) -> bool:
        """Whether SIGINT is in that set of the main thread's; False where there is no such word."""
        if self._status is None:
            return False
        try:
            text = os.pread(self._status, 8192, 0)
        except OSError:  # code has closed it, or put something else there
            return False
        _, found, rest = text.partition(f"\n{field}:".encode())
        if not found or not text.startswith(b"Name:"):
            return False
        return bool(int(rest.split(maxsplit=1)[0], 16) & 1 << (signal.SIGINT - 1))


def _address() -> int | None:
    """The handler of SIGINT as C has it: None for the default, and where it cannot be asked."""
    if sys.platform == "win32":
        return None
    return _GETSIG(signal.SIGINT)


def _set_address(address: int) -> None:
    _SETSIG(signal.SIGINT, address)


if sys.platform != "win32":
    _GETSIG = ctypes.pythonapi.PyOS_getsig
    _GETSIG.argtypes, _GETSIG.restype = [ctypes.c_int], ctypes.c_void_p
    _SETSIG = ctypes.pythonapi.PyOS_setsig
    _SETSIG.argtypes, _SETSIG.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
