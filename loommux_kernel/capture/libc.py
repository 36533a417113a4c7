"""The few calls into the C library that Python itself does not offer.

Owns their signatures and what happens where they do not exist: each function
then does nothing and says so. `descriptors` calls them.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LINUX = sys.platform.startswith("linux")
_LIBC: Any = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else object()

_IO_LINE_BUFFERED = 1  # _IOLBF
_KEEP_SIZE_AND_PUNCH_HOLE = 0x01 | 0x02
IN_MODIFY = 0x2
IN_CLOSE_WRITE = 0x8
IN_OPEN = 0x20
IN_Q_OVERFLOW = 0x4000
_IN_CLOEXEC_NONBLOCK = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_EVENT = struct.Struct("iIII")


def _stdout_file() -> Any:
    """C's ``FILE *stdout``, or None."""
    for name in ("stdout", "__stdoutp"):
        try:
            return ctypes.c_void_p.in_dll(_LIBC, name)
        except (ValueError, TypeError):
            continue
    return None


def line_buffer_stdout() -> None:
    """Let C code's ``printf`` arrive line by line, as it would on a terminal."""
    file = _stdout_file()
    if file is not None:
        _LIBC.setvbuf(file, None, _IO_LINE_BUFFERED, ctypes.c_size_t(0))


def flush_stdout() -> None:
    """Write out what C code has printed and libc still holds.

    Only ``stdout``: flushing every file would wait for any thread that blocks
    in a read on one of them, for ever if nothing comes.
    """
    file = _stdout_file()
    if file is not None:
        _LIBC.fflush(file)


def punch_hole(fd: int, offset: int, length: int) -> bool:
    """Give the file's blocks in that range back to the disk; its size stays."""
    if not _LINUX:
        return False
    call = _LIBC.fallocate64 if hasattr(_LIBC, "fallocate64") else _LIBC.fallocate
    return call(fd, _KEEP_SIZE_AND_PUNCH_HOLE, ctypes.c_int64(offset), ctypes.c_int64(length)) == 0


def watch_directory(path: Path) -> int | None:
    """A non-blocking descriptor that tells of writes and closes in `path`, or None."""
    if not _LINUX:
        return None
    fd = _LIBC.inotify_init1(_IN_CLOEXEC_NONBLOCK)
    if fd < 0:
        return None
    if not watch_more(fd, path):
        os.close(fd)
        return None
    return fd


def watch_more(fd: int, path: Path) -> bool:
    """Have it tell of that directory too; whether it will."""
    return _LIBC.inotify_add_watch(fd, os.fsencode(path), IN_MODIFY | IN_OPEN | IN_CLOSE_WRITE) >= 0


def watched(fd: int) -> Iterator[tuple[int, str]]:
    """What happened since the last call: (mask, file name), the name empty on overflow."""
    try:
        data = os.read(fd, 65536)
    except BlockingIOError:
        return
    at = 0
    while at + _EVENT.size <= len(data):
        _, mask, _, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        yield mask, data[at : at + length].rstrip(b"\0").decode()
        at += length
