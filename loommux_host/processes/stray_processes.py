"""Ending what a kernel left when no init of its is there to do it.

Two cases: both init processes were killed while the host lives, and what a dead server
left for the next one to find. Finds processes by their kernel's mark in the environment
and by its session; a host that has become a subreaper also by being their new parent,
which nothing escapes. Blocks for up to `SWEEP_SECONDS`: call it in a thread. Called by
`spawn` and `launcher`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Collection

SWEEP_SECONDS = 2.0
#: Of these, how long Python's resource trackers may remove what the others have left, before they are killed too.
TRACKER_SECONDS = 1.0
TRACKER = "resource_tracker import main"
PAUSE_SECONDS = 0.02
PR_SET_CHILD_SUBREAPER = 36
_subreaper = False


def become_subreaper() -> None:
    """Make this process the parent of what its descendants orphan. For a process that is all ours (Linux)."""
    global _subreaper
    if sys.platform == "linux" and not _subreaper:
        import ctypes

        _subreaper = ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def end_orphans(kernel_id: str | None, session: int | None, known: Collection[int] = ()) -> tuple[int, int | None]:
    """End the processes of one kernel that has no init.

    Returns how many there were beside the kernel's own (which is named as its session is),
    and that one's exit code when it became ours to learn. `known` are this process's own
    children and those of its inits, which are never taken for orphans.
    """
    ended: set[int] = set()
    codes: dict[int, int] = {}
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < SWEEP_SECONDS:
        alive, dead = _adopted(known)
        alive |= _marked(kernel_id, session, known)
        if not alive | dead:
            break
        spared = {pid for pid in alive if _is_tracker(pid)} if elapsed < TRACKER_SECONDS else set[int]()
        for pid in alive - spared:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended |= alive
        codes |= _reaped(alive | dead)
        time.sleep(PAUSE_SECONDS)
    return len(ended - {session}), codes.get(session) if session is not None else None


def _marked(kernel_id: str | None, session: int | None, known: Collection[int]) -> set[int]:
    """What carries the kernel's id or is in its session, and lives."""
    import psutil  # an import of 40 ms that most servers never need

    found: set[int] = set()
    for process in psutil.process_iter():
        if process.pid in known or process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):
            in_session = session is not None and os.getsid(process.pid) == session
            marked = kernel_id is not None and process.environ().get("LOOMMUX_KERNEL_ID") == kernel_id
            if (in_session or marked) and process.status() != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
    return found


def _is_tracker(pid: int) -> bool:
    """Whether it is a resource tracker of Python's, which ends by itself when those that it serves are dead."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return any(TRACKER in word for word in psutil.Process(pid).cmdline())
    return False


def _adopted(known: Collection[int]) -> tuple[set[int], set[int]]:
    """The living and the dead that became our children when their init died: in no session of ours."""
    if not _subreaper:
        return set(), set()
    import psutil

    alive: set[int] = set()
    dead: set[int] = set()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error, OSError):
            if child.pid not in known and os.getsid(child.pid) != os.getsid(0):
                (dead if child.status() == psutil.STATUS_ZOMBIE else alive).add(child.pid)
    return alive, dead


def _reaped(pids: Collection[int]) -> dict[int, int]:
    """The exit codes of those that are our children and dead; the others have a parent that takes them."""
    codes: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            reaped, status = os.waitpid(pid, os.WNOHANG)
            if reaped:
                codes[pid] = os.waitstatus_to_exitcode(status)
    return codes
