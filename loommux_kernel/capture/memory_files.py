"""Files in memory that stand behind fd 1 and 2 while the disk is full, so that programs can write all the same.

Owns when the disk counts as full, how such a file is made, and its bound: what programs write
faster than it can be recorded may not take the machine's memory. Linux has such files;
elsewhere there are none. `append_file` reads them, `descriptors` puts them in place.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Protocol

from loommux_kernel.executions import native_threads

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

#: A disk with less free than this, or than this part of it, counts as full.
ROOM_BYTES = 64 << 20
ROOM_PART = 3
#: Bytes of one file that may wait to be recorded; then it takes no more.
WAITING_BYTES = 64 << 20
#: Seconds between two looks at how much waits.
LOOK = 0.01


class Waiting(Protocol):
    """A file whose bytes wait to be recorded."""

    def waiting(self) -> int: ...
    def refuse_more(self) -> None: ...


def disk_is_full(directory: Path) -> bool:
    """Whether programs had better write into memory than there."""
    if sys.platform != "linux":
        return False
    try:
        disk = os.statvfs(directory)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < min(ROOM_BYTES, disk.f_blocks * disk.f_frsize // ROOM_PART)


def make(name: str, head: bytes) -> int:
    """A new file that begins with `head`, as a descriptor for reading. Raises OSError where there is none."""
    if sys.platform != "linux":
        raise OSError("there are no files in memory on this system")
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, head)
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    finally:
        os.close(fd)


def seal(path: str) -> None:
    """From now on it takes no more: writing to it fails."""
    if fcntl is not None and sys.platform == "linux":
        fd = os.open(path, os.O_RDWR)
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        finally:
            os.close(fd)


class Bound:
    """Looks, on a thread of its own, that none of some files gets too large; for as long as there are any."""

    def __init__(self) -> None:
        self._lock = native_threads.allocate_lock()
        self._files: list[Waiting] = []
        self._looking = False

    def add(self, file: Waiting) -> None:
        with self._lock:
            self._files.append(file)
            if not self._looking:
                with contextlib.suppress(RuntimeError):  # no thread is left: the next file asks for one again
                    native_threads.start(self._look)
                    self._looking = True

    def drop(self, file: Waiting) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._files.remove(file)

    def _look(self) -> None:
        while True:
            with self._lock:
                files = list(self._files)
                if not files:
                    self._looking = False
                    return
            for file in files:
                if file.waiting() > WAITING_BYTES:
                    file.refuse_more()
                    self.drop(file)
            native_threads.sleep(LOOK)
