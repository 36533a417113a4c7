"""Ending what a kernel left when no init of its is there to do it.

Two cases, told apart. `end_orphans`: both init processes were killed while this server lives,
which is a subreaper and becomes the parent of what they guarded; nothing escapes that.
`end_left_by`: what servers that are dead have left for this one to find, by the mark of
their kernels alone; that this server is somebody's parent says nothing there. Neither
touches what this server has started itself (`OwnChildren`), nor what stands above it.
A process is what has its pid and its time of birth, never a number alone. Blocks for up to
`SWEEP_SECONDS`: call it in a thread. Called by `spawn` and `launcher`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

SWEEP_SECONDS = 2.0
#: Of these, how long Python's resource trackers may remove what the others have left, before they are killed too.
TRACKER_SECONDS = 1.0
TRACKER = "resource_tracker import main"
PAUSE_SECONDS = 0.02
PR_SET_CHILD_SUBREAPER = 36
MARK = "LOOMMUX_KERNEL_ID"
#: How coarsely the system tells when a process was born.
BIRTH_SECONDS = 0.05
_subreaper = False


class OwnChildren:
    """What this process has started itself and looks after: never a stray, from its first moment on."""

    def __init__(self) -> None:
        self._pids: set[int] = set()
        self._changing = threading.Lock()

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """While the block makes a process and adds it, nobody looks among our children."""
        with self._changing:
            yield

    def add(self, pid: int) -> None:
        self._pids.add(pid)

    def discard(self, *pids: int | None) -> None:
        self._pids.difference_update(pids)

    def __contains__(self, pid: int) -> bool:
        return pid in self._pids


def become_subreaper() -> None:
    """Make this process the parent of what its descendants orphan. For a process that is all ours (Linux)."""
    global _subreaper
    if sys.platform == "linux" and not _subreaper:
        import ctypes

        _subreaper = ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def end_orphans(
    kernel_id: str | None, session: int | None, own: OwnChildren, since: float = 0.0
) -> tuple[int, int | None]:
    """End the processes of one kernel of ours that has no init any more.

    `since` is the system's uptime when the kernel was begun: what is older is not its.
    Returns how many there were beside the kernel's own (which is named as its session is),
    and that one's exit code when it became ours to learn.
    """
    ids = {kernel_id} if kernel_id is not None else set[str]()

    def look() -> tuple[set[psutil.Process], set[psutil.Process]]:
        with own.starting():  # what is being started is not known yet
            alive, dead = _adopted(own, since)
        return alive | _marked(ids, session, own, since), dead

    ended, codes = _end(look)
    return len(ended - {session}), codes.get(session) if session is not None else None


def end_left_by(kernel_ids: Collection[str], own: OwnChildren) -> int:
    """End what carries the mark of one of these kernels, whose servers are dead; returns how many there were."""
    return len(_end(lambda: (_marked(kernel_ids, None, own), set()))[0])


def _end(look: Callable[[], tuple[set[psutil.Process], set[psutil.Process]]]) -> tuple[set[int], dict[int, int]]:
    """Kill until nothing is found alive or dead: the pids, and the exit codes of those that were our children."""
    import psutil  # an import of 40 ms that most servers never need

    ended: set[int] = set()
    codes: dict[int, int] = {}
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < SWEEP_SECONDS:
        alive, dead = look()
        if not alive | dead:
            break
        spared = {process for process in alive if _is_tracker(process)} if elapsed < TRACKER_SECONDS else set()
        for process in alive - spared:
            with contextlib.suppress(psutil.Error):
                process.kill()  # looks once more whether the number is still that process's
        ended |= {process.pid for process in alive}
        codes |= _reaped(process.pid for process in alive | dead)
        time.sleep(PAUSE_SECONDS)
    return ended, codes


def _marked(
    kernel_ids: Collection[str], session: int | None, own: OwnChildren, since: float = 0.0
) -> set[psutil.Process]:
    """What carries one of these ids or is in the session, and lives, and is not ours."""
    import psutil

    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            in_session = session is not None and os.getsid(process.pid) == session and _born(process) >= since
            marked = bool(kernel_ids) and process.environ().get(MARK) in kernel_ids
            if (in_session or marked) and process.status() != psutil.STATUS_ZOMBIE and not _is_ours(process, own):
                found.add(process)
    return found


def _is_tracker(process: psutil.Process) -> bool:
    """Whether it is a resource tracker of Python's, which ends by itself when those that it serves are dead."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return any(TRACKER in word for word in process.cmdline())
    return False


def _is_ours(process: psutil.Process, own: OwnChildren) -> bool:
    """Whether it stands above this process, or is what this process has started, or below that.

    A server that was started in a cell has the mark of that cell's kernel itself.
    """
    import psutil

    line = [process, *process.parents()]
    if process in [psutil.Process(), *psutil.Process().parents()]:
        return True
    return any(p.pid in own or (p.ppid() == os.getpid() and _in_our_session(p)) for p in line)


def _adopted(own: OwnChildren, since: float) -> tuple[set[psutil.Process], set[psutil.Process]]:
    """The living and the dead that became our children when their init died: in no session of ours."""
    if not _subreaper:
        return set(), set()
    import psutil

    alive: set[psutil.Process] = set()
    dead: set[psutil.Process] = set()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error, OSError):
            if child.pid not in own and not _in_our_session(child) and _born(child) >= since:
                (dead if child.status() == psutil.STATUS_ZOMBIE else alive).add(child)
    return alive, dead


def _in_our_session(process: psutil.Process) -> bool:
    return os.getsid(process.pid) == os.getsid(0)


def _born(process: psutil.Process) -> float:
    """The system's uptime when it was, and no earlier."""
    import psutil

    return process.create_time() - psutil.boot_time() + BIRTH_SECONDS


def _reaped(pids: Iterable[int]) -> dict[int, int]:
    """The exit codes of those that are our children and dead; the others have a parent that takes them."""
    codes: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            reaped, status = os.waitpid(pid, os.WNOHANG)
            if reaped:
                codes[pid] = os.waitstatus_to_exitcode(status)
    return codes
