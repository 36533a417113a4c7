"""Memory and CPU of kernel processes, for the snapshots that people look at.

Owns the samples that a percentage needs: it is the share since the last look. Looks only
when asked. Called by `fleet`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Load:
    """Bytes of resident memory; percent of one core since the last look, None at the first one."""

    rss_bytes: int | None = None
    cpu_percent: float | None = None


class ResourceUsage:
    """The gauges of one server; on its event loop, reading in a thread, one look at a time."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}
        self._looking = threading.Lock()

    async def of(self, pids: Iterable[int | None]) -> dict[int | None, Load]:
        """The load of each of these processes; nothing of one that is gone."""
        return await asyncio.to_thread(self._look, list(pids))

    def _look(self, pids: list[int | None]) -> dict[int | None, Load]:
        with self._looking:
            for gone in [known for known in self._processes if not psutil.pid_exists(known)]:
                del self._processes[gone]
            return {pid: Load() if pid is None else self._read(pid) for pid in pids}

    def _read(self, pid: int) -> Load:
        try:
            first = pid not in self._processes
            process = self._processes.setdefault(pid, psutil.Process(pid))
            with process.oneshot():
                percent = process.cpu_percent(None)
                return Load(process.memory_info().rss, None if first else percent)
        except psutil.Error:
            self._processes.pop(pid, None)
            return Load()
