"""Which processes the running cell has started, as far as an interrupt has to know.

Owns the reading of the process table and the rule that tells a cell's processes from
those of earlier cells. Reads `/proc` where there is one (a hundred processes in 4 ms),
else asks psutil. It does not decide what is done to them. Called by `interrupts`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loommux_kernel.shared.reserve import HELD, NO_MORE

_HAS_PROC = Path("/proc/self/stat").exists()
_TICKS = os.sysconf("SC_CLK_TCK") if _HAS_PROC else 0


@dataclass(frozen=True)
class Process:
    """One process. `born` is comparable between processes of this machine only; with the pid it is unique."""

    pid: int
    parent: int
    session: int
    born: float


Table = dict[int, Process]


@dataclass(frozen=True)
class CellProcesses:
    """Those of the running cell: still in the kernel's session, and those that have left it."""

    inside: list[Process]
    outside: list[Process]


class Offspring:
    """Tells what the running cell has started from what earlier cells did.

    Everything that exists when a cell that started processes has ended belongs to earlier
    cells from then on, and so does whatever descends from it.
    """

    def __init__(self, root: int, table: Callable[[], Table] | None = None) -> None:
        self._root = root
        self._table = table or read_table
        self._earlier: frozenset[tuple[int, float]] = frozenset()

    def remember(self) -> None:
        """A cell that started processes is over: what there is now is no later cell's."""
        self._earlier = frozenset((p.pid, p.born) for p in self._ours(self._table()))

    def of_cell(self, born_since: float | None = None) -> CellProcesses:
        """What the running cell has started; what was born before `born_since` is not its own."""
        table = self._table()
        home = table[self._root].session if self._root in table else None
        inside: list[Process] = []
        outside: list[Process] = []
        for process in self._ours(table):
            if (born_since is None or process.born >= born_since) and not self._is_earlier(process, table):
                (inside if process.session == home else outside).append(process)
        return CellProcesses(inside, outside)

    def _ours(self, table: Table) -> Iterable[Process]:
        """All descendants, and what shares a session that the kernel leads: orphans stay in it."""
        leads = self._root in table and table[self._root].session == self._root
        for process in table.values():
            if process.pid == self._root:
                continue
            if (leads and process.session == self._root) or self._root in _ancestors(process, table):
                yield process

    def _is_earlier(self, process: Process, table: Table) -> bool:
        line = [process, *(table[pid] for pid in _ancestors(process, table) if pid in table)]
        return any((p.pid, p.born) in self._earlier for p in line if p.pid != self._root)


def _ancestors(process: Process, table: Table) -> list[int]:
    """Parent, grandparent and so on; ends at a parent that is not in the table."""
    found: list[int] = []
    pid = process.parent
    while pid and pid not in found:
        found.append(pid)
        parent = table.get(pid)
        pid = parent.parent if parent else 0
    return found


def alive(processes: list[Process]) -> list[Process]:
    """Those that still exist and are no zombies."""
    if not processes:
        return []
    table = read_table()
    return [p for p in processes if p.pid in table and table[p.pid].born == p.born]


def some_live(processes: list[Process]) -> bool:
    """Whether one is left; also when that cannot be looked at."""
    try:
        return bool(alive(processes))
    except (OSError, MemoryError):
        return True


def send(processes: list[Process], signum: int) -> None:
    """Signal those that exist; one that has just ended, or is not ours to signal, is passed over."""
    for process in alive(processes):
        try:
            os.kill(process.pid, signum)
        except (ProcessLookupError, PermissionError):
            continue


def helpers() -> set[int]:
    """The pids of multiprocessing's own helpers, and loky's; later cells share them with the one that started them."""
    found: set[int | None] = set()
    for name in [name for name in list(sys.modules) if name.endswith(".resource_tracker")]:
        found.add(getattr(getattr(sys.modules.get(name), "_resource_tracker", None), "_pid", None))
    if server := sys.modules.get("multiprocessing.forkserver"):
        found.add(getattr(server._forkserver, "_forkserver_pid", None))
    return {pid for pid in found if pid}


def pool_workers() -> set[int]:
    """The pids of the workers of `multiprocessing.Pool`.

    A pool that the interrupted cell leaves ends them itself. Of those that end by SIGINT one may take
    the pool's lock along, for which the pool then waits, and others are started in their place.
    """
    module: Any = sys.modules.get("multiprocessing.process")
    children: list[Any] = list(module._children) if module is not None else []
    return {child.pid for child in children if child.pid and "PoolWorker" in child.name}


def read_table() -> Table:
    """Every process that runs, zombies left out."""
    return _read_proc() if _HAS_PROC else _ask_psutil()


def _read_proc() -> Table:
    """With the descriptors held back, if there are no others: without the look nobody is interrupted."""
    return HELD.spend(_proc)


def _proc() -> Table:
    table: Table = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - a tenth of the time of Path.iterdir
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                # the command may hold blanks and brackets; the fields come after its last bracket
                fields = file.read().rpartition(b")")[2].split()
        except OSError as error:
            if error.errno in NO_MORE:
                raise
            continue  # it has ended
        if fields[0] not in (b"Z", b"X"):
            pid = int(name)
            table[pid] = Process(pid, int(fields[1]), int(fields[3]), float(fields[19]))
    return table


def _ask_psutil() -> Table:
    import psutil  # 30 ms, and not needed where there is a /proc

    table: Table = {}
    for found in psutil.process_iter(["pid", "ppid", "create_time", "status"]):
        info = found.info
        if info["status"] != psutil.STATUS_ZOMBIE:
            table[info["pid"]] = Process(info["pid"], info["ppid"], _session(info["pid"]), info["create_time"])
    return table


def _session(pid: int) -> int:
    """The session's id; Windows has no sessions, so all share one."""
    if not hasattr(os, "getsid"):
        return 0
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def born_now() -> float | None:
    """What a process born now would have as `born`, or None where the clocks cannot be compared."""
    return float(int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)) if _HAS_PROC else None
