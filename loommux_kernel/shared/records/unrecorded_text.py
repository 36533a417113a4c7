"""Text that was said and is not recorded yet, kept in a file that survives its process.

A drain comes 10 to 40 ms after a print; a process that dies in between would take the text
with it, which is the text that says where it died. So each text is copied, when it is said,
into a small file that is mapped into memory: no system call, half a microsecond. Owns that
file, its two halves and their reuse. `capture.queue` numbers the texts, `capture.streams` puts them in,
`capture.drain` says which are recorded, `finisher` records what a dead process left.

A half begins anew when everything in the other one is recorded. What does not fit (more than
half a megabyte between two drains) is only counted, so that the record can say that it is missing.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loommux_kernel.shared.protocol import Stream
from loommux_kernel.shared.records.database import STREAMS

FILE = "unrecorded"
HALF_BYTES = 512 << 10
#: What was left out last: its number.
_HEAD = struct.Struct("=Q")
HEAD_BYTES = 64
#: Execution, bytes, stream, nothing; last the number of the text, which makes the entry a whole one.
_ENTRY = struct.Struct("=IIIIQ")
_SIZE = _ENTRY.size
#: Where the next entry will be.
_NONE = bytes(_SIZE)


@dataclass(frozen=True)
class Text:
    """One text as it was said. `number` counts the texts of its process, from 1."""

    number: int
    serial: int
    stream: Stream
    text: str


class Unrecorded:
    """The file of a living process. All methods under the queue's lock."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when there is no room: a mapped file must not find the disk full later."""
        self.number = 0
        size = HEAD_BYTES + 2 * HALF_BYTES
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, size)
            else:
                os.write(fd, bytes(size))
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._at = HEAD_BYTES
        self._end = HEAD_BYTES + HALF_BYTES
        #: The last number in the other half.
        self._other = 0

    def put(self, serial: int, code: int, text: str) -> None:
        """The next text, of the stream with that code in the tables."""
        self.number = number = self.number + 1
        if len(text) < HALF_BYTES:
            data = text.encode("utf-8", "surrogatepass")
            start = self._at
            begin = start + _SIZE
            end = begin + len(data)
            if end + _SIZE <= self._end:
                self._at = end  # before the entry is written: a signal handler may print now
                self._map[begin : end + _SIZE] = data + _NONE
                _ENTRY.pack_into(self._map, start, serial, len(data), code, 0, number)
                return
        _HEAD.pack_into(self._map, 0, number)

    def recorded(self, number: int) -> None:
        """All texts up to that number are recorded."""
        if number >= self._other:
            first = HEAD_BYTES if self._end > HEAD_BYTES + HALF_BYTES else HEAD_BYTES + HALF_BYTES
            self._at, self._end, self._other = first, first + HALF_BYTES, self.number


def left(path: Path, recorded: int) -> tuple[list[Text], int]:
    """What a process that has ended left there after text `recorded`, in order; and the last text that did not fit."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    if len(data) < HEAD_BYTES + 2 * HALF_BYTES:
        return [], 0
    halves = (HEAD_BYTES, HEAD_BYTES + HALF_BYTES)
    found = sorted((text for start in halves for text in _entries(data, start)), key=lambda text: text.number)
    (left_out,) = _HEAD.unpack_from(data)
    return [text for text in found if text.number > recorded], left_out


def remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _entries(data: bytes, at: int) -> Iterator[Text]:
    """The whole entries of a half."""
    end, last = at + HALF_BYTES, 0
    while at + _SIZE <= end:
        serial, length, code, _, number = _ENTRY.unpack_from(data, at)
        begin = at + _SIZE
        if number <= last or begin + length > end or code not in STREAMS:
            return
        try:
            text = data[begin : begin + length].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:  # no entry of ours: the file is damaged
            return
        yield Text(number, serial, STREAMS[code], text)
        at, last = begin + length, number
