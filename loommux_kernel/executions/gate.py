"""What runs in a kernel process and what may run: pure rules, no clock, no lock, no I/O.

`Gate` gives every recorded execution its serial and its number, admits or refuses the
server's submissions, and knows what was withdrawn. `Aim` knows which execution a signal
is meant for. Neither knows IPython, messages or output. `kernel` asks on the main
thread, `running.control_requests` and `running.interrupts` from others; they share the lock that `kernel` holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from loommux_kernel.shared.protocol import Origin, Submission

#: Submissions remembered to answer a late `withdraw`; the server has one on its way at a time.
REMEMBERED = 256


@dataclass(frozen=True)
class Request:
    """What the gate has to know of a request to run something.

    `counted` is whether IPython will give it a number: not when it is silent, kept out of
    history or blank. `recorded` is whether anything can run at all.
    """

    source: str
    origin: Origin
    submitted_at: float
    submission: Submission | None = None
    counted: bool = True
    recorded: bool = True


@dataclass(frozen=True)
class Execution:
    """One recorded execution. `submission` is the server's id for it, None for foreign ones."""

    serial: int
    number: int | None
    origin: Origin
    submission: str | None
    source: str
    submitted_at: float
    started_at: float


@dataclass(frozen=True)
class Refusal:
    """Nothing was run: something started first (``busy``), or the server took it back (``withdrawn``)."""

    reason: Literal["busy", "withdrawn"]


@dataclass(frozen=True)
class Withdrawal:
    """What became of a submission that the server wants back."""

    result: Literal["withdrawn", "started", "ended"]
    serial: int | None = None
    number: int | None = None


class Gate:
    """Which execution runs, what was given to the earlier ones, and who may start."""

    def __init__(self) -> None:
        self.running: Execution | None = None
        self.last_serial = 0
        #: The highest number that was used, by us or by cells that ran cells.
        self.highest = 0
        self._started: dict[str, Execution] = {}
        self._withdrawn: dict[str, None] = {}

    def admit(self, request: Request, *, count: int, at: float) -> Execution | Refusal | None:
        """Start it, or say why not; None when there is nothing to record.

        `count` is the number that IPython would give now; the execution's own is higher
        when user code has set the counter back.
        """
        if self.running is not None:
            raise RuntimeError(f"execution {self.running.serial} still runs")
        if (refusal := self._refusal(request.submission)) is not None:
            return refusal
        if not request.recorded:
            return None
        self.last_serial += 1
        number = None
        if request.counted:
            number = self.highest = max(count, self.highest + 1)
        execution = Execution(
            serial=self.last_serial,
            number=number,
            origin=request.origin,
            submission=request.submission.id if request.submission else None,
            source=request.source,
            submitted_at=request.submitted_at,
            started_at=at,
        )
        self.running = execution
        if execution.submission is not None:
            self._started[execution.submission] = execution
            _forget(self._started)
        return execution

    def end(self, serial: int, *, count: int) -> None:
        """The running execution is over; `count` is the number IPython would give next."""
        if self.running is None or self.running.serial != serial:
            raise RuntimeError(f"execution {serial} does not run")
        self.running = None
        self.highest = max(self.highest, count - 1)

    def withdraw(self, submission: str) -> Withdrawal:
        """Never run this submission, unless it has started."""
        execution = self._started.get(submission)
        if execution is None:
            self._withdrawn[submission] = None
            _forget(self._withdrawn)
            return Withdrawal("withdrawn")
        running = self.running is not None and self.running.serial == execution.serial
        return Withdrawal("started" if running else "ended", execution.serial, execution.number)

    def find(self, *, serial: int | None = None, submission: str | None = None) -> Execution | None:
        """The running execution, if it is the one that is meant; without a name, whichever runs."""
        running = self.running
        if running is None or serial not in (None, running.serial) or submission not in (None, running.submission):
            return None
        return running

    def _refusal(self, submission: Submission | None) -> Refusal | None:
        if submission is None:
            return None
        if submission.id in self._withdrawn:
            return Refusal("withdrawn")
        return Refusal("busy") if submission.seen != self.last_serial else None


class Aim:
    """Which execution a signal is meant for.

    The main thread arms it around an execution's code; a signal acts only between `arm`
    and `disarm`. Signals that we send are aimed, and are void once their execution is
    over, or has felt the interrupt; one that nobody aimed (a terminal, user code) is meant for
    whatever runs.
    """

    def __init__(self) -> None:
        self.armed: int | None = None
        #: Signals that reached the armed execution.
        self.hits = 0
        #: Whether a signal that we sent has not been seen by the handler yet.
        self.flying = False
        self._sending = False
        self._target: int | None = None

    def arm(self, serial: int) -> None:
        self._target, self.hits, self.flying, self.armed = None, 0, False, serial

    def disarm(self) -> None:
        """From here on nothing hits. A signal may still be `flying`: let it land before the next `arm`."""
        self.armed = self._target = None

    def at(self, serial: int) -> bool:
        """Aim at an execution; False when its code does not run, and then no signal may be sent."""
        if self.armed is None or self.armed != serial:
            return False
        self._target = serial
        return True

    @property
    def wanted(self) -> bool:
        """Whether the armed execution is aimed at and has not felt it."""
        return self._target is not None and self._target == self.armed

    def sending(self) -> None:
        """A signal of ours is about to be sent; `sent` follows it. What lands in between may be an earlier one."""
        self._sending = self.flying = True

    def sent(self) -> None:
        self._sending = False

    def landed(self) -> bool:
        """A signal has arrived: whether it is meant for what is armed."""
        aimed = self.flying or self._sending
        if not self._sending:
            self.flying = False
        if self.armed is None:
            return False
        return not aimed or self._target == self.armed

    def hit(self) -> None:
        """The signal that landed has been given to the execution."""
        self._target = None
        self.hits += 1


def _forget(memory: dict[str, object] | dict[str, Execution] | dict[str, None]) -> None:
    """Drop the oldest entries past `REMEMBERED`."""
    surplus: Iterable[str] = list(memory)[:-REMEMBERED]
    for key in surplus:
        del memory[key]
