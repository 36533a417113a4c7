"""The time of a server and its kernels: theirs alone, so that setting the system's clock makes no duration untrue.

Owns where it begins; everything else takes `now` from `protocol`. Standard library only.
"""

from __future__ import annotations

import sys
import time


def uptime() -> float:
    """Seconds since the system began; nobody can set them, and they go on while it sleeps where that can be had."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.clock_gettime(time.CLOCK_MONOTONIC) if sys.platform == "darwin" else time.monotonic()


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
