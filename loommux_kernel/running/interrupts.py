"""Interrupts: one signal handler that acts on the execution it is meant for, and the processes of that cell.

Owns the process's SIGINT handler, what a signal does at the point where it catches the
main thread (`interrupt_point`), and the pursuit of an interrupt: signals are sent again until
ours has been felt, once to a handler of the cell's own (`signal_handlers`), and the cell's
processes are ended step by step. Does not know who may interrupt, nor messages. `kernel` arms
and disarms, `control_requests` asks for interrupts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from types import FrameType
from typing import Any

from loommux_kernel.executions import native_threads
from loommux_kernel.executions.contexts import current_execution
from loommux_kernel.executions.gate import Aim
from loommux_kernel.executions.native_threads import Flag, sleep
from loommux_kernel.executions.standby_thread import StandbyThread
from loommux_kernel.running import cell_processes
from loommux_kernel.running.interrupt_point import InterruptPoint, interrupt_point, root_of
from loommux_kernel.running.signal_handlers import CellHandler, Disposition, SignalHandlers
from loommux_kernel.shared.clock import monotonic

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

# before gevent or a cell can replace them
_pthread_kill = getattr(signal, "pthread_kill", None)
_raise_signal = signal.raise_signal


@dataclass
class Pursuit:
    """One interrupt on its way. The pids are of processes that the cell started."""

    serial: int
    began: float
    signalled: list[cell_processes.Process] = field(default_factory=list)
    outside: list[int] = field(default_factory=list)
    #: Whether a handler that is not ours has been sent its one signal.
    given: bool = False
    #: Set once the processes were looked for and the first signals are sent.
    begun: Flag = field(default_factory=Flag)
    over: Flag = field(default_factory=Flag)


class Interrupts:
    """Delivers interrupts to the execution they are meant for.

    `lock` is shared with the gate: a signal is sent only while its execution is armed.
    """

    def __init__(self, lock: threading.Lock, namespace: Callable[[], dict[str, Any]]) -> None:
        self.aim = Aim()
        #: Whether a signal that nobody aimed has reached the armed execution.
        self.unaimed = False
        #: The last execution whose own handler has taken an interrupt.
        self.taken: int | None = None
        #: What has ended the armed execution's `await`: an interrupt, or what a handler has raised.
        self.cancelled_by: BaseException | None = None
        #: The last interrupt that was raised: it may come out of the loop, and is no failure there.
        self.raised: BaseException | None = None
        #: Told of what a handler has raised while nothing ran: the execution that set it, its signal, the error.
        self.stray: Callable[[int | None, int, BaseException], None] = lambda *_: None
        self.handlers = SignalHandlers(self._handle, self._run_handler)
        self.offspring = cell_processes.Offspring(os.getpid())
        self._beside = StandbyThread()
        self._lock = lock
        self._namespace = namespace
        self._main = threading.main_thread().ident
        self._root: FrameType | None = None
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deferred_since: float | None = None
        self._put_off: list[tuple[CellHandler, int]] = []
        self._finishing_at: tuple[int, int] | None = None
        self._born_since: float | None = None
        self._pursuit: Pursuit | None = None

    # -- on the main thread ------------------------------------------------------

    def install(self) -> None:
        """Take SIGINT for good, however this process was started: it may have been ignored."""
        self._beside.start()
        self._root = root_of(sys._getframe())
        self.handlers.install()
        system = os.system
        # in both modules, so that `multiprocessing` can still send it by its name
        os.system = sys.modules[system.__module__].system = self._felt_after(system)  # pyright: ignore

    def _felt_after(self, system: Callable[[Any], int]) -> Callable[[Any], int]:
        """`os.system`: libc throws away the signals that come meanwhile; they act when it returns."""

        @wraps(system)
        def interruptible(command: Any) -> int:
            status = system(command)
            if (self.aim.flying or self.aim.wanted) and native_threads.get_ident() == self._main:
                self._handle(signal.SIGINT, sys._getframe(1))
            return status

        return interruptible

    def arm(self, serial: int) -> None:
        """From here on interrupts of this execution act. Called under the lock."""
        self.unaimed, self._deferred_since, self.cancelled_by = False, None, None
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
            sleep(0)
        self.handlers.restore(self._loop)
        self.aim.flying = False
        self._run_put_off()
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
        """Raise an interrupt that was put off, run handlers that were; called where raising does no harm."""
        self._run_put_off()
        if self._deferred_since is None:
            return
        own = self.handlers.own
        if own is None:
            self._strike()
        else:
            self._give(own, sys._getframe(1))

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.aim.armed is None:
            self.aim.landed()
            return
        aimed = self.aim.flying or self.aim.wanted
        if not self.aim.landed():
            return
        self.unaimed = self.unaimed or not (aimed or self.taken == self.aim.armed)
        moment = interrupt_point(frame, self._namespace(), awaiting=self._task is not None, root=self._root)
        own = self.handlers.own
        if own is not None and (moment is not InterruptPoint.MACHINERY or own.only_wakes):
            self._give(own, frame)
            return
        place = (id(frame), frame.f_lasti) if frame else None
        again = moment is InterruptPoint.FINISHING and (not aimed or place == self._finishing_at or self._only_once())
        if own is None and (
            moment is InterruptPoint.INSIDE or again or (moment is InterruptPoint.MACHINERY and self._overdue())
        ):
            self._strike()
        if moment is InterruptPoint.HOOK:
            self.aim.hit()
            self._deferred_since = monotonic()
            raise self._interrupt()
        if moment in (InterruptPoint.SUSPENDED, InterruptPoint.ELSEWHERE):
            self._cancel_soon()
        if moment is InterruptPoint.ELSEWHERE and self._overdue() and current_execution.get(None) == self.aim.armed:
            raise self._interrupt()  # a task that this cell left on the loop holds it: the loop goes on to cancel
        self._finishing_at = place
        if self._deferred_since is None:
            self._deferred_since = monotonic()

    def _only_once(self) -> bool:  # through a handler that gets only one
        return self._pursuit is not None and self._pursuit.given

    def _overdue(self) -> bool:
        """Whether a signal was put off so long ago that the next one acts anyway."""
        return self._deferred_since is not None and monotonic() - self._deferred_since > FORCE_SECONDS

    def _strike(self) -> None:
        self.aim.hit()
        self._deferred_since = None
        raise self._interrupt()

    def _interrupt(self) -> KeyboardInterrupt:
        self.raised = error = KeyboardInterrupt()
        return error

    def _cancel_soon(self) -> None:
        """Cancel the awaiting coroutine from within its loop, and wake the loop for it."""
        if self._loop is not None and self.aim.armed is not None:
            self._loop.call_soon_threadsafe(self._cancel, self.aim.armed)

    def _cancel(self, serial: int) -> None:
        if self.aim.armed == serial and self._task is not None and self._deferred_since is not None:
            self._deferred_since = None
            self.aim.hit()
            self._cancel_by(serial, KeyboardInterrupt())

    def _cancel_by(self, serial: int, error: BaseException) -> None:
        """End the awaiting coroutine of that execution by this error, if it still waits."""
        if self.aim.armed == serial and self._task is not None:
            self.cancelled_by = error
            self._task.cancel()

    def instead_of(self, error: BaseException | None) -> BaseException | None:
        """What a cell has really ended by: the cancelling of its `await` may stand for something else."""
        if not isinstance(error, asyncio.CancelledError) or self.cancelled_by is None:
            return error
        cause, self_made = self.cancelled_by, isinstance(self.cancelled_by, KeyboardInterrupt)
        if self_made:  # made by us, so it has been nowhere
            cause.__suppress_context__ = True
            return cause.with_traceback(error.__traceback__)
        return cause

    # -- handlers of people's own ----------------------------------------------------

    def _give(self, own: CellHandler, frame: FrameType | None) -> None:
        """The cell's own handler takes this interrupt."""
        __tracebackhide__ = True
        self.aim.hit()
        self.taken, self._deferred_since = self.aim.armed, None
        self._run_handler(own, signal.SIGINT, frame)

    def _run_handler(self, handler: CellHandler, signum: int, frame: FrameType | None) -> None:
        """Run it: where people's code was caught it may raise; what it raises elsewhere goes where it belongs."""
        __tracebackhide__ = True
        armed = self.aim.armed
        awaiting = armed is None or self._task is not None
        moment = interrupt_point(frame, self._namespace(), awaiting=awaiting, root=self._root)
        if moment is InterruptPoint.MACHINERY:
            self._put_off.append((handler, signum))
            return
        theirs = moment is InterruptPoint.ELSEWHERE and (armed is None or current_execution.get(None) == armed)
        if theirs or moment in (InterruptPoint.INSIDE, InterruptPoint.HOOK, InterruptPoint.FINISHING):
            handler.handler(signum, frame)
            return
        try:
            handler.handler(signum, frame)
        except BaseException as error:
            if armed is None or self._loop is None:
                self.stray(handler.serial, signum, error)
            else:
                self._loop.call_soon_threadsafe(self._cancel_by, armed, error)

    def _run_put_off(self) -> None:
        """Those that came while the kernel was at its own work. They raise only while a cell runs."""
        __tracebackhide__ = True
        while self._put_off:
            handler, signum = self._put_off.pop(0)
            try:
                handler.handler(signum, None)
            except BaseException as error:
                if self.aim.armed is not None:
                    raise
                self.stray(handler.serial, signum, error)

    # -- on other threads ----------------------------------------------------------

    def interrupt(self, serial: int) -> Pursuit | None:
        """Interrupt this execution; None when its code does not run (any more). Does not wait."""
        with self._lock:
            if not self.aim.at(serial):
                return None
            felt = self.aim.hits
            pursuit = self._pursuit = Pursuit(serial, monotonic())
            self._send(pursuit)
        if not self._beside.run(partial(self._pursue, pursuit, felt)):  # one signal to each has to do
            try:
                self._signal_processes(pursuit, ESCALATION[0][1])
            finally:
                pursuit.begun.set()
        return pursuit

    def pursues(self, pid: int) -> bool:
        """Whether that process of the running cell gets the signals of an interrupt; waits for the look at them."""
        pursuit = self._pursuit
        if pursuit is None or pursuit.serial != self.aim.armed:
            return False
        pursuit.begun.wait(LAST_LOOK_SECONDS)
        return any(process.pid == pid for process in pursuit.signalled)

    def obstacle(self) -> str | None:
        """Why an interrupt is not felt, as far as that can be seen from outside: ignored or blocked."""
        found = self.handlers.disposition()
        return found.name.lower() if found in (Disposition.IGNORED, Disposition.BLOCKED) else None

    def _send(self, pursuit: Pursuit) -> None:
        """Signal the main thread, if there is somebody to be told (again). Called under the lock."""
        met = self.handlers.disposition()
        if met is Disposition.IGNORED:  # by the cell, or by libc's `system()`; looked at again
            return
        if met is not Disposition.OURS:
            put_off = met is Disposition.CELLS and self._deferred_since is not None
            if pursuit.given and not put_off:
                self._see_whether_taken(pursuit, met)
                return
            pursuit.given = True
        self.aim.sending()
        if _pthread_kill is not None and self._main is not None:
            _pthread_kill(self._main, signal.SIGINT)
        else:
            _raise_signal(signal.SIGINT)
        self.aim.sent()
        self._see_whether_taken(pursuit, met)

    def _see_whether_taken(self, pursuit: Pursuit, met: Disposition) -> None:
        """C code that has been sent a signal has it at once; who waits for one by `sigwait` takes it away."""
        taken = met is Disposition.NATIVE or (met is Disposition.BLOCKED and not self.handlers.pending())
        if taken and self.aim.wanted:
            self.aim.hits += 1  # the aim stays: a library may hand it on to Python
            self.taken = pursuit.serial

    def _pursue(self, pursuit: Pursuit, felt: int) -> None:
        steps = list(ESCALATION)
        try:
            while steps or not pursuit.over.is_set():
                elapsed = monotonic() - pursuit.began
                while steps and steps[0][0] <= elapsed:
                    self._signal_processes(pursuit, steps.pop(0)[1])
                pursuit.begun.set()
                if not self._still_wanted(pursuit, felt) and not cell_processes.some_live(pursuit.signalled):
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
                    self._send(pursuit)
        else:
            sleep(max(0.0, until_step))

    def _still_wanted(self, pursuit: Pursuit, felt: int) -> bool:
        return self.aim.armed == pursuit.serial and self.aim.hits == felt

    def _signal_processes(self, pursuit: Pursuit, signum: int) -> None:
        """Signal the cell's processes; those that came since the last step too, while it runs."""
        if self.aim.armed == pursuit.serial:
            self._look(pursuit)
        else:
            self._await_last_look(pursuit)
        spared = cell_processes.pool_workers() if signum == signal.SIGINT else ()
        with contextlib.suppress(OSError, MemoryError):  # those that cannot be looked at are left to the next step
            cell_processes.send([p for p in pursuit.signalled if p.pid not in spared], signum)

    def _await_last_look(self, pursuit: Pursuit) -> None:
        """The cell is over, and the main thread looks for its processes; on a busy machine that takes its time."""
        until = monotonic() + LAST_LOOK_SECONDS
        while self._pursuit is pursuit and monotonic() < until and not pursuit.over.wait(REPEAT_SECONDS):
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
