"""Hearing that somebody removed something from a directory, without looking again and again.

Owns the way to hear it: on Linux the system tells, elsewhere a timer looks now and then. It
calls a moment after the last removal, so that whoever empties the directory is done by then.
What is to be done about it is for `server.directory_repair` to know.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Seconds without a further removal before it is told.
QUIET_SECONDS = 0.2
#: Seconds between two looks where nothing tells.
LOOK_SECONDS = 10.0

_REMOVALS = 0x40 | 0x200 | 0x400 | 0x800  # IN_MOVED_FROM, IN_DELETE, IN_DELETE_SELF, IN_MOVE_SELF
_READ_BYTES = 1 << 16


class DirectoryWatch:
    """Calls `removed` after removals from `directory`. On the event loop."""

    def __init__(self, directory: Path, removed: Callable[[], None]) -> None:
        self._directory, self._removed = directory, removed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._fd = _inotify()
        if self._fd is not None:
            self._loop.add_reader(self._fd, self._told)
        self.look()

    def look(self) -> None:
        """Watch the directory that is there now, and look at it once, soon."""
        if self._fd is not None:
            _add_watch(self._fd, self._directory)
        self.soon(LOOK_SECONDS if self._fd is None else QUIET_SECONDS)

    def soon(self, seconds: float) -> None:
        """Call after so long."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._call)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _told(self) -> None:
        assert self._fd is not None
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, _READ_BYTES)
        self.soon(QUIET_SECONDS)

    def _call(self) -> None:
        self._timer = None
        if self._fd is None:
            self.soon(LOOK_SECONDS)
        self._removed()


def _inotify() -> int | None:
    if sys.platform != "linux":
        return None
    fd = _libc().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    return None if fd < 0 else fd


def _add_watch(fd: int, directory: Path) -> None:
    _libc().inotify_add_watch(fd, os.fsencode(directory), _REMOVALS)  # one that is not there is watched when it is made


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
