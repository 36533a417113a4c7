"""Descriptors held back for our own work, for when the process has no more.

A cell may open all the files that a process can have. What we need then (a look at the
process table, a fresh pair behind fd 1 and 2) must not fail for it, or the person whose cell
it is could neither interrupt it nor run the one that closes the files. Owns a few descriptors
that are closed for the moment in which our work needs some, and taken again after it.

`HELD` is the process's own; `fill` it before code of others runs. Empty, it changes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

try:
    import resource
except ImportError:  # Windows
    resource = None

#: As many as one piece of our work has open at once, and as many again; of few, no more than this part.
COUNT, PART = 8, 32
#: The process, or the system, has no more descriptors.
NO_MORE = frozenset({errno.EMFILE, errno.ENFILE})

T = TypeVar("T")


class Reserve:
    """See the module. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[int] = []
        self._identity: tuple[int, int] | None = None
        self._lent = 0
        self._count = 0

    def fill(self) -> None:
        """Hold as many as there should be, as far as there are any."""
        if sys.platform == "win32":  # thousands for each process, and no way to tell whose one is
            return
        with self._lock, contextlib.suppress(OSError):
            self._count = self._count or max(1, min(COUNT, _limit() // PART))
            self._fill()

    def spend(self, work: Callable[..., T], *arguments: object) -> T:
        """What `work` comes to; when there were no descriptors for it, it is done again with those held back."""
        try:
            return work(*arguments)
        except OSError as error:
            if error.errno not in NO_MORE:
                raise
        with self.lent():
            return work(*arguments)

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Meanwhile those held back can be opened as something else."""
        with self._lock:
            self._lent += 1
            held, self._held = self._held, []
            for fd in held:
                self._close(fd)
        try:
            yield
        finally:
            with self._lock, contextlib.suppress(OSError):
                self._lent -= 1
                if not self._lent:
                    self._fill()

    def _fill(self) -> None:
        """Ends of one pipe, whose identity nobody else's descriptor has."""
        if len(self._held) >= self._count:
            return
        self._held = [fd for fd in self._held if self._is_ours(fd)]
        if not self._held:
            read, write = os.pipe()
            os.close(write)
            self._held, self._identity = [read], _identity(read)
        while len(self._held) < self._count:
            self._held.append(os.dup(self._held[0]))

    def _close(self, fd: int) -> None:
        if self._is_ours(fd):  # code that closes every descriptor it finds may have got this one, and another since
            os.close(fd)

    def _is_ours(self, fd: int) -> bool:
        try:
            return _identity(fd) == self._identity
        except OSError:
            return False


def _limit() -> int:
    """How many descriptors this process may have."""
    if resource is None:
        return COUNT * PART
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return COUNT * PART if soft == resource.RLIM_INFINITY else soft


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


#: This process's own.
HELD = Reserve()
