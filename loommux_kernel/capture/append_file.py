"""One append-only file behind fd 1 or 2, and how far it was marked and taken in.

Owns what is read of it, what is said to be lost of it, and its way back to the disk.
`descriptors` decides which file is behind which descriptor, and marks.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Protocol

from loommux_kernel.capture import libc, memory_files
from loommux_kernel.shared.protocol import Stream
from loommux_kernel.shared.records.start_note import HEAD

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

#: Bytes that one mark stands for at the most, and that are read at once.
BLOCK_BYTES = 1 << 20
#: Bytes taken in before their blocks go back to the disk.
PUNCH_BYTES = 4 << 20


class Taker(Protocol):
    """What the recorder offers to a mark whose turn has come."""

    def take_in(self, serial: int, stream: Stream, text: str, path: Path | None, offset: int) -> None: ...


class DescriptorFile:
    """One file behind fd 1 or 2. `marked` belongs to the queue's lock, the rest to the recorder.

    Without a `path` it is in memory. Raises OSError.
    """

    def __init__(self, path: Path | None, stream: Stream, serial: int) -> None:
        self.path = path
        self.stream = stream
        self.serial = serial
        if path is not None:
            _begin(path)
            self.fd = os.open(path, os.O_RDONLY)
        else:
            self.fd = memory_files.make(f"loommux-{stream}", HEAD)
        #: One in memory takes no more, since too much waits.
        self.full = False
        self.identity = identity_of(self.fd)
        self.marked = len(HEAD)
        self.generation = 0
        self.retired = False
        #: Once it was truncated: what it held at the last look, and when that was changed.
        self.seen: bytes | None = None
        self.changed_at = 0
        #: How often what it held was new to somebody who looked.
        self.looks = 0
        #: How often writing to it has come to an end: it was closed, or opened anew. The head is ours.
        self.endings, self._writing = -1, False
        self.said = False
        #: Truncated, as far as things were taken in.
        self._anew = False
        self._taken = len(HEAD)
        self._punched = 0
        self._decoder = _decoder()

    @property
    def name(self) -> str:
        """What it is called in its directory; empty for one in memory."""
        return "" if self.path is None else self.path.name

    @property
    def target(self) -> str:
        """Where it can be opened, by any process: by its path, or by our descriptor when that has been removed."""
        if self.path is not None and (sys.platform != "linux" or self.path.exists()):
            return str(self.path)
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def size(self) -> int:
        return os.lseek(self.fd, 0, os.SEEK_END)

    def waiting(self) -> int:
        """Bytes that are not taken in yet; 0 when it is closed."""
        try:
            return os.fstat(self.fd).st_size - self._taken
        except OSError:
            return 0

    def refuse_more(self) -> None:
        """Too much waits in memory: writing more fails from now on."""
        with contextlib.suppress(OSError):
            memory_files.seal(self.target)
            self.full = True

    def take(self, serial: int, upto: int, generation: int, recorder: Taker) -> None:
        """Read what one mark stands for. A truncated file's earlier marks find nothing."""
        while generation == self.generation and self._taken < upto:
            data = read_at(self.fd, min(BLOCK_BYTES, upto - self._taken), self._taken)
            if not data:
                return
            self.take_data(serial, data, recorder)

    def take_data(self, serial: int, data: bytes, recorder: Taker) -> None:
        """The next bytes of the file."""
        self._taken += len(data)
        text = self._decoder.decode(data)
        half = len(self._decoder.getstate()[0])
        recorder.take_in(serial, self.stream, text, self.path, self._place(half))
        if self._taken - self._punched >= PUNCH_BYTES:
            self._punch()

    def restart(self, serial: int, upto: int, recorder: Taker) -> None:
        """The file was truncated after `upto` bytes: say what was lost, begin again at 0."""
        lost = upto - self._taken
        self._taken, self._anew = 0, True
        self._decoder = _decoder()
        if lost > 0:
            self.say_lost(serial, f"{lost} bytes lost", recorder)

    def say_full(self, serial: int, recorder: Taker) -> None:
        words = (
            f"[the disk is full and {memory_files.WAITING_BYTES >> 20} MiB of this waited in memory:"
            f" what programs wrote to fd {1 if self.stream is Stream.STDOUT else 2} after it failed]\n"
        )
        recorder.take_in(serial, self.stream, words, self.path, self._place())

    def say_lost(self, serial: int, what: str, recorder: Taker) -> None:
        fd = 1 if self.stream is Stream.STDOUT else 2
        words = f"[{what}: a program truncated fd {fd}; write to >&{fd}, not > /dev/{self.stream}]\n"
        recorder.take_in(serial, self.stream, words, self.path, self._place())

    def rest(self, serial: int, recorder: Taker) -> None:
        """Half a character that nothing will complete."""
        text = self._decoder.decode(b"", final=True)
        if text:
            recorder.take_in(serial, self.stream, text, self.path, self._place())

    def hand_over(self, serial: int, heir: int, recorder: Taker) -> None:
        """What comes from here on belongs to another execution; the finisher must know it too."""
        self.rest(serial, recorder)
        recorder.take_in(heir, self.stream, "", self.path, self._place())

    def told(self, mask: int) -> None:
        """The system says what was done to it, in order."""
        if self._writing and mask & (libc.IN_OPEN | libc.IN_CLOSE_WRITE):
            self.endings += 1
            self._writing = False
        if mask & libc.IN_MODIFY:
            self._writing = True

    def may_have_lost(self) -> bool:
        """Whether something was written and gone before anybody looked; asked when all that was told is looked at."""
        self.looks = min(self.looks, self.endings + 1)
        if self.seen is None:
            self.looks = max(self.looks, self.endings)
        return self.looks < self.endings

    def _place(self, half: int = 0) -> int:
        """Up to where it was taken in, but for half a character; below 0 when it was truncated, for the finisher."""
        taken = self._taken - half
        return ~taken if self._anew else taken

    def written_by_none(self) -> bool:
        """Whether no process has the file open for writing. Where that cannot be known: whether there is no child.

        A read lease is given only on a file that nobody has open for writing. The
        signal that would tell of a lease's end is set to one that is ignored.
        """
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETSIG, signal.SIGURG)  # type: ignore[attr-defined]
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)  # type: ignore[attr-defined]
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)  # type: ignore[attr-defined]
        except BlockingIOError:
            return False
        except (OSError, AttributeError):
            return not _children()
        return True

    def remove(self) -> None:
        os.close(self.fd)
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _punch(self) -> None:
        if read_at(self.fd, len(HEAD), 0) != HEAD:
            return  # it is written anew, and looked at from its beginning
        self._punched = max(self._punched, 4096)  # the head stays
        end = self._taken & ~4095
        with contextlib.suppress(OSError):
            fd = os.open(self.target, os.O_WRONLY)
            try:
                libc.punch_hole(fd, self._punched, end - self._punched)
            finally:
                os.close(fd)
        self._punched = end


def _begin(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with contextlib.suppress(OSError):  # a full disk: it is looked at as one that was truncated
        os.write(fd, HEAD)
    os.close(fd)


def _children() -> bool:
    import psutil  # 30 ms of a start, and asked for only when a cell has started a process

    return bool(psutil.Process().children(recursive=True))


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="backslashreplace")


def identity_of(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def read_at(fd: int, count: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(fd, count, offset)
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, count)
