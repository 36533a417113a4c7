"""Noticing that a cell starts a process, and what a fork means for the streams.

Owns the audit hook and the fork hooks, of which a process can have one set that
stays until it ends, and what a fork server's children write to. `output` listens.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any, Protocol

from loommux_kernel.capture.library_fixes import when_imported

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


#: fd -> the path of the file behind it.
Targets = Callable[[], dict[int, str]]

_started: Callable[[], None] | None = None
_targets: Targets | None = None
_forking: ForkListener | None = None
_installed = False


def listen(started: Callable[[], None], forking: ForkListener, targets: Targets) -> None:
    """Call `started` whenever this process starts another, and the listener around forks.

    `targets` tells what a process that is started now is to write to.
    """
    global _started, _forking, _targets, _installed
    _started, _forking, _targets = started, forking, targets
    if _installed:
        return
    _installed = True
    sys.addaudithook(_audit)
    _wrap_fork_exec()
    _wrap_forks()
    when_imported("multiprocessing.popen_forkserver", _redirect_children)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


def forget() -> None:
    """Call nobody any more."""
    global _started, _forking, _targets
    _started = _forking = _targets = None


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


def _forked(fork: Callable[[], Any]) -> Any:
    """Fork. What is raised meanwhile, in a hook, Python prints and forgets; the hooks would be half done."""
    return fork()


#: Whose frame tells that the main thread forks.
FORKING = _forked.__code__


def _wrap_forks() -> None:
    for name in ("fork", "forkpty"):
        if (fork := getattr(os, name, None)) is not None:
            setattr(os, name, wraps(fork)(partial(_forked, fork)))


def _redirect_children(module: Any) -> None:
    """A fork server has the streams of the cell that started it; its children get those of the cell that asks for them.

    What they are told before they run is a pickled dict. An entry more is a call that is made as it is loaded.
    """
    prepare = module.spawn.get_preparation_data

    def with_streams(name: str) -> dict[str, Any]:
        data = prepare(name)
        if _started is not None and _targets is not None:
            _started()
            data["loommux_streams"] = _Redirection(_targets())
        return data

    module.spawn = SimpleNamespace(get_preparation_data=with_streams)


class _Redirection:
    """Pickled, it points descriptors to files where it is loaded; that process need not have this package."""

    def __init__(self, targets: dict[int, str]) -> None:
        self._targets = targets

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_REDIRECT.format(self._targets),)


_REDIRECT = """\
import os
for fd, path in {!r}.items():
    opened = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.dup2(opened, fd)
    os.close(opened)
"""


def _before() -> None:
    if _forking is not None:
        _forking.before_fork()


def _in_parent() -> None:
    if _forking is not None:
        _forking.after_fork_in_parent()


def _in_child() -> None:
    if _forking is not None:
        _forking.after_fork_in_child()
