"""The time of a server and its kernels: theirs alone, so that setting the system's clock makes no duration untrue.

Owns where it begins; everything else takes `now` from `protocol`. Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial


class _Clocks:
    """The system's clocks, held from before any cell runs: tests freeze those of `time`, wherever a module has them.

    In an object, since freezegun looks through modules.
    """

    steady: Callable[[], float]
    boot: Callable[[], float]

    def __init__(self) -> None:
        if hasattr(time, "clock_gettime"):  # neither freezegun nor time-machine touches what it says of these
            self.steady = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
            self.boot = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
        else:
            self.steady = self.boot = time.monotonic  # Windows: freezegun alone is withstood


_clocks = _Clocks()


def monotonic() -> float:
    """As `time.monotonic`, also where that is frozen: for the kernel's own deadlines."""
    return _clocks.steady()


def uptime() -> float:
    """Seconds since the system began; nobody can set them, and they go on while it sleeps where that can be had."""
    return _clocks.boot()


_began = time.time() - uptime()


def now() -> float:
    """Seconds since the epoch, as every time on the wire is given.

    The server's clock as of its start, gone on steadily: a clock that is set later would make
    durations untrue. Its kernels keep the same time.
    """
    return _began + uptime()


def clock() -> float:
    """What `keep_time` makes another process's `now` agree with this one's."""
    return _began


def keep_time(clock: float) -> None:
    """Let `now` be that of the process whose `clock` this is."""
    global _began
    _began = clock
