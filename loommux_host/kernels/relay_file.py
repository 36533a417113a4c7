"""What a forwarded cell says, as it was written, on its way to the cell that forwards it (contract 8.2).

Owns the file between the two: the kernel that runs the cell appends lines that nobody here
reads, its server hands them out in order and lets go of them. What was handed out takes no
disk any more; a file that nobody asks for is removed. Held by `process_life`, read by `api.relay_stream`.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

#: Bytes of whole lines that one answer carries at most; one line is carried in any case.
MOST_BYTES = 4 << 20
#: A relay that nobody has asked for so long is given up.
ABANDONED_SECONDS = 60.0
#: fallocate's: keep the size, punch a hole.
PUNCH = 0x01 | 0x02


class Relay:
    """One file, from its execution's start until its last line was handed out. On the loop, but for `read`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False
        self.asked()

    def asked(self) -> None:
        """Somebody wants it: it is kept on."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.closed:
            self._timer = asyncio.get_running_loop().call_later(ABANDONED_SECONDS, self.close)

    def read(self, after: int) -> bytes:
        """Whole lines from byte `after` on, what comes before them is let go; empty when there is none. Blocks."""
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            _let_go(self.path, after)
            file.seek(after)
            lines = file.read(MOST_BYTES)
            end = lines.rfind(b"\n") + 1
            if not end and len(lines) == MOST_BYTES:
                lines += file.readline()
                end = lines.rfind(b"\n") + 1
            return lines[:end]
        return b""

    def close(self) -> None:
        """Remove it; the kernel stops writing."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.path.unlink(missing_ok=True)


def _let_go(path: Path, before: int) -> None:
    """Give back the disk of what was handed out, where the system can.

    The last line's end stays: by it a kernel's finisher knows where whole lines end.
    """
    if before <= 1 or not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with suppress(OSError, AttributeError):
        fd = os.open(path, os.O_WRONLY)
        try:
            libc.fallocate(fd, PUNCH, ctypes.c_long(0), ctypes.c_long(before - 1))
        finally:
            os.close(fd)
