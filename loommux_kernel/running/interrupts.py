"""Interrupts: one signal handler that acts on the execution it is meant for, and the processes of that cell.

Owns the process's SIGINT handler, what a signal does at the point where it catches the
main thread (`interrupt_point`), and the pursuit of an interrupt: signals are sent again until
one has been felt, and the cell's processes are ended step by step. Does not know who may
interrupt, nor messages. `kernel` arms and disarms, `control_requests` asks for interrupts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from types import FrameType
from typing import Any

from loommux_kernel.executions.contexts import current_execution
from loommux_kernel.executions.gate import Aim
from loommux_kernel.running import cell_processes
from loommux_kernel.running.interrupt_point import InterruptPoint, interrupt_point
from loommux_kernel.running.standby_thread import StandbyThread

#: What is sent to a cell's processes, and how many seconds after the interrupt.
#: Windows knows no signals for other processes, only their end.
ESCALATION: tuple[tuple[float, int], ...] = (
    ((2.0, signal.SIGTERM),)
    if sys.platform == "win32"
    else ((0.0, signal.SIGINT), (1.0, signal.SIGTERM), (2.0, signal.SIGKILL))
)
#: Pauses between two signals while none was felt: libc's `system()` throws SIGINT away.
REPEAT_SECONDS = 0.03
#: After so long, a signal that was put off because it caught IPython at its own work acts anyway.
FORCE_SECONDS = 0.5
#: How long an interrupt that is not felt is pursued; native code may answer later than that.
PURSUIT_SECONDS = 5.0
#: How long the main thread may take to look for the processes of a cell that is over.
LAST_LOOK_SECONDS = 2.0

_PACKAGE = str(Path(__file__).parent.parent) + os.sep


@dataclass
class Pursuit:
    """One interrupt on its way. The pids are of processes that the cell started."""

    serial: int
    began: float
    signalled: list[cell_processes.Process] = field(default_factory=list)
    outside: list[int] = field(default_factory=list)
    #: Set once the processes were looked for and the first signals are sent.
    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)


class Interrupts:
    """Delivers interrupts to the execution they are meant for.

    `lock` is shared with the gate: a signal is sent only while its execution is armed.
    """

    def __init__(self, lock: threading.Lock, namespace: Callable[[], dict[str, Any]]) -> None:
        self.aim = Aim()
        #: Whether a signal that nobody aimed has reached the armed execution.
        self.unaimed = False
        self.offspring = cell_processes.Offspring(os.getpid())
        self._beside = StandbyThread("Interrupt")
        self._lock = lock
        self._namespace = namespace
        self._main = threading.main_thread().ident
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cancelling = False
        self._deferred_since: float | None = None
        self._finishing_at: tuple[int, int] | None = None
        self._born_since: float | None = None
        self._pursuit: Pursuit | None = None

    # -- on the main thread ------------------------------------------------------

    def install(self) -> None:
        """Take SIGINT for good; a forked child gets Python's own handler back."""
        self._beside.start()
        signal.signal(signal.SIGINT, self._handle)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # whatever started us
        system = os.system
        # in both modules, so that `multiprocessing` can still send it by its name
        os.system = sys.modules[system.__module__].system = self._felt_after(system)  # pyright: ignore
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))

    def _felt_after(self, system: Callable[[Any], int]) -> Callable[[Any], int]:
        """`os.system`: libc throws away the signals that come meanwhile; they act when it returns."""

        @wraps(system)
        def interruptible(command: Any) -> int:
            status = system(command)
            if self.aim.flying and threading.get_ident() == self._main:
                self._handle(signal.SIGINT, sys._getframe(1))
            return status

        return interruptible

    def arm(self, serial: int) -> None:
        """From here on interrupts of this execution act. Called under the lock."""
        self.unaimed, self._deferred_since, self._cancelling = False, None, False
        self._finishing_at = None
        self._born_since = cell_processes.born_now()
        self.aim.arm(serial)

    def disarm(self) -> int:
        """The execution's code is over; how many interrupts it felt. None acts after this."""
        with self._lock:
            self.aim.disarm()
            self._deferred_since = None
        # A signal sent before the lock was ours is pending in this thread: let it land here,
        # before anything else is armed. One that was thrown away on its way never lands.
        for _ in range(3):
            if not self.aim.flying:
                break
            time.sleep(0)
        self.aim.flying = False
        if signal.getsignal(signal.SIGINT) != self._handle:
            signal.signal(signal.SIGINT, self._handle)
        if self._pursuit is not None and not self._pursuit.over.is_set():
            self._look(self._pursuit)  # what it started up to its very end is its own too
            self._pursuit.over.set()
        return self.aim.hits

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        """While this task awaits the cell's coroutine, an interrupt may cancel it."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        try:
            yield
        finally:
            self._task = None

    def check(self) -> None:
        """Raise an interrupt that was put off; called where raising does no harm."""
        if self._deferred_since is not None:
            self._deferred_since = None
            self._strike()

    @property
    def cancelled(self) -> bool:
        """Whether the running coroutine was cancelled by an interrupt."""
        return self._cancelling

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.aim.armed is None:
            self.aim.landed()
            return
        aimed = self.aim.flying
        if not self.aim.landed():
            return
        self.unaimed = self.unaimed or not aimed
        moment = interrupt_point(frame, self._namespace(), awaiting=self._task is not None)
        place = (id(frame), frame.f_lasti) if frame else None
        again = moment is InterruptPoint.FINISHING and (not aimed or place == self._finishing_at)
        if moment is InterruptPoint.INSIDE or again or (moment is InterruptPoint.MACHINERY and self._overdue()):
            self._strike()
        if moment is InterruptPoint.HOOK:
            self.aim.hit()
            self._deferred_since = time.monotonic()
            raise KeyboardInterrupt
        if moment in (InterruptPoint.SUSPENDED, InterruptPoint.ELSEWHERE):
            self._cancel_soon()
        if moment is InterruptPoint.ELSEWHERE and self._overdue() and current_execution.get(None) == self.aim.armed:
            raise KeyboardInterrupt  # a task that this cell left on the loop holds it: the loop goes on to cancel
        self._finishing_at = place
        if self._deferred_since is None:
            self._deferred_since = time.monotonic()

    def _overdue(self) -> bool:
        """Whether a signal was put off so long ago that the next one acts anyway."""
        return self._deferred_since is not None and time.monotonic() - self._deferred_since > FORCE_SECONDS

    def _strike(self) -> None:
        self.aim.hit()
        self._deferred_since = None
        raise KeyboardInterrupt

    def _cancel_soon(self) -> None:
        """Cancel the awaiting coroutine from within its loop, and wake the loop for it."""
        if self._loop is not None and self.aim.armed is not None:
            self._loop.call_soon_threadsafe(self._cancel, self.aim.armed)

    def _cancel(self, serial: int) -> None:
        if self.aim.armed == serial and self._task is not None and self._deferred_since is not None:
            self._deferred_since = None
            self._cancelling = True
            self.aim.hit()
            self._task.cancel()

    # -- on other threads ----------------------------------------------------------

    def interrupt(self, serial: int) -> Pursuit | None:
        """Interrupt this execution; None when its code does not run (any more). Does not wait."""
        with self._lock:
            if not self._send(serial):
                return None
            felt = self.aim.hits
            pursuit = self._pursuit = Pursuit(serial, time.monotonic())
        if not self._beside.run(partial(self._pursue, pursuit, felt)):  # one signal to each has to do
            try:
                self._signal_processes(pursuit, ESCALATION[0][1])
            finally:
                pursuit.begun.set()
        return pursuit

    def _send(self, serial: int) -> bool:
        """Aim and signal the main thread. Called under the lock."""
        if not self.aim.at(serial):
            return False
        if hasattr(signal, "pthread_kill") and self._main is not None:
            signal.pthread_kill(self._main, signal.SIGINT)
        else:
            signal.raise_signal(signal.SIGINT)
        return True

    def _pursue(self, pursuit: Pursuit, felt: int) -> None:
        steps = list(ESCALATION)
        try:
            while steps or not pursuit.over.is_set():
                elapsed = time.monotonic() - pursuit.began
                while steps and steps[0][0] <= elapsed:
                    self._signal_processes(pursuit, steps.pop(0)[1])
                pursuit.begun.set()
                if not self._still_wanted(pursuit, felt) and not _some_live(pursuit):
                    return
                if elapsed > PURSUIT_SECONDS:
                    return
                self._pause(pursuit, felt, steps[0][0] - elapsed if steps else REPEAT_SECONDS)
        finally:
            pursuit.begun.set()

    def _pause(self, pursuit: Pursuit, felt: int, until_step: float) -> None:
        if self._still_wanted(pursuit, felt):
            pursuit.over.wait(min(REPEAT_SECONDS, until_step))
            with self._lock:
                if self._still_wanted(pursuit, felt):
                    self._send(pursuit.serial)
        else:
            time.sleep(max(0.0, until_step))

    def _still_wanted(self, pursuit: Pursuit, felt: int) -> bool:
        return self.aim.armed == pursuit.serial and self.aim.hits == felt

    def _signal_processes(self, pursuit: Pursuit, signum: int) -> None:
        """Signal the cell's processes; those that came since the last step too, while it runs."""
        if self.aim.armed == pursuit.serial:
            self._look(pursuit)
        else:
            self._await_last_look(pursuit)
        with contextlib.suppress(OSError, MemoryError):  # those that cannot be looked at are left to the next step
            cell_processes.send(pursuit.signalled, signum)

    def _await_last_look(self, pursuit: Pursuit) -> None:
        """The cell is over, and the main thread looks for its processes; on a busy machine that takes its time."""
        until = time.monotonic() + LAST_LOOK_SECONDS
        while self._pursuit is pursuit and time.monotonic() < until and not pursuit.over.wait(REPEAT_SECONDS):
            pass

    def _look(self, pursuit: Pursuit) -> None:
        """Find the processes that its cell has started, as long as no later cell has begun."""
        try:
            found = self.offspring.of_cell(self._born_since)
        except (OSError, MemoryError):  # a cell ends by its interrupt, whatever can be known of its processes
            return
        spared = cell_processes.helpers()
        with self._lock:
            if self.aim.armed in (pursuit.serial, None) and self._pursuit is pursuit and not pursuit.over.is_set():
                pursuit.signalled = [p for p in found.inside if p.pid not in spared]
                pursuit.outside = [p.pid for p in found.outside if p.pid not in spared]


def _some_live(pursuit: Pursuit) -> bool:
    """Whether a process of the cell's is left; also when that cannot be looked at."""
    try:
        return bool(cell_processes.alive(pursuit.signalled))
    except (OSError, MemoryError):
        return True


def without_own_frames(error: BaseException) -> None:
    """Let an interrupt's traceback end in the user's code, or what that called, not in this package's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        if trace.tb_next.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            trace.tb_next = None
        trace = trace.tb_next
