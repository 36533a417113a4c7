"""Noticing that a cell starts a process, and what a fork means for the streams.

Owns the audit hook and the fork hooks, of which a process can have one set that
stays until it ends. `capture` listens.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

#: Audit events that announce a new process. `multiprocessing` spawns through
#: `_posixsubprocess.fork_exec`, which announces nothing: that is wrapped.
STARTS = frozenset(
    {
        "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec", "os.spawn",
        "pty.spawn", "os.startfile",
    }
)  # fmt: skip


class ForkListener(Protocol):
    """What a fork calls: before it and after it in the parent, then once in the child."""

    def before_fork(self) -> None: ...

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


_started: Callable[[], None] | None = None
_forking: ForkListener | None = None
_installed = False


def listen(started: Callable[[], None], forking: ForkListener) -> None:
    """Call `started` whenever this process starts another, and the listener around forks."""
    global _started, _forking, _installed
    _started, _forking = started, forking
    if _installed:
        return
    _installed = True
    sys.addaudithook(_audit)
    _wrap_fork_exec()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


def forget() -> None:
    """Call nobody any more."""
    global _started, _forking
    _started = _forking = None


def flush_at_exit(flush: Callable[[], None]) -> None:
    """In a forked child: nothing that was printed is lost at `os._exit`, which flushes nothing itself."""
    leave = os._exit

    def leaving(status: int) -> Any:
        try:
            flush()
        finally:
            leave(status)

    os._exit = leaving  # type: ignore[assignment]


def _audit(event: str, _args: Any) -> None:
    if event in STARTS and _started is not None:
        _started()


def _wrap_fork_exec() -> None:
    try:
        import _posixsubprocess  # not on Windows
    except ImportError:
        return
    fork_exec = _posixsubprocess.fork_exec

    def announced(*args: Any) -> int:
        if _started is not None:
            _started()
        return fork_exec(*args)

    _posixsubprocess.fork_exec = announced  # type: ignore[assignment]


def _before() -> None:
    if _forking is not None:
        _forking.before_fork()


def _in_parent() -> None:
    if _forking is not None:
        _forking.after_fork_in_parent()


def _in_child() -> None:
    if _forking is not None:
        _forking.after_fork_in_child()
