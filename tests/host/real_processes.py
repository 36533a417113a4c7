"""Real processes in tests of the host: the stand-in for a kernel, what starts it, and what no event tells."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

STANDIN = Path(__file__).with_name("standin_kernel.py")


@dataclass(frozen=True)
class Settings:
    """What a launcher needs to know."""

    records_budget_bytes: int = 1 << 30


def standin(*acts: str) -> Callable[[Path], list[str]]:
    """The command of a stand-in kernel that does `acts`, from its launch file."""
    return lambda launch: [sys.executable, "-I", "-S", str(STANDIN), str(launch), *acts]


def gone(pid: int) -> bool:
    """Dead; whoever is to take note of it may not have done so."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until(true: Callable[[], object], what: str = "it", seconds: float = 20.0) -> float:
    """Wait for something outside this process that no event tells; how long it took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, f"not in time: {what}"
        time.sleep(0.01)
    return time.monotonic() - began
