"""What lies behind fd 1 and 2: append-only files, a fresh pair after a cell that started a process.

Owns the files and how far each was marked and taken in. Files and not pipes: the
last words of a process that dies are kept, and native code that holds the GIL can
write any amount. A child keeps the files it was started with, so what it writes
belongs to the cell that started it for as long as it lives.

A *mark* is a place in the ordered queue that stands for a file's growth until
then; the recorder takes the bytes in when the mark's turn comes. `streams` marks
before it puts Python's text, so that the two stay in order. `recorder` calls
`watch`, `capture` the rest.

A program that opens its own output anew (``echo x > /dev/stderr``) truncates the
file. Each file begins with a few bytes of ours, so that this is seen; from then on
its whole content is looked at after each change, and what came between two looks
may be lost, which is said.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from loommux_kernel import libc
from loommux_kernel.ordered import PENDING_BYTES, OrderedQueue
from loommux_kernel.protocol import Stream

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

#: Bytes that one mark stands for at the most, and that are read at once.
BLOCK_BYTES = 1 << 20
#: Growth that is read when it is marked, before a program may truncate the file.
EAGER_BYTES = 1 << 16
#: What a file begins with as long as nobody has truncated it.
HEAD = b"loommux\n"
#: Bytes taken in before their blocks go back to the disk.
PUNCH_BYTES = 4 << 20
#: Seconds between two looks whether retired files may go, where nothing tells of it.
POLL_SECONDS = 2.0

_TARGETS = ((1, Stream.STDOUT, "out"), (2, Stream.STDERR, "err"))


class Taker(Protocol):
    """What the recorder offers to a mark whose turn has come."""

    def take_in(self, serial: int, stream: Stream, text: str, path: Path, offset: int) -> None: ...


class DescriptorFile:
    """One file behind fd 1 or 2. `marked` belongs to the queue's lock, the rest to the recorder."""

    def __init__(self, path: Path, stream: Stream, serial: int) -> None:
        self.path = path
        self.stream = stream
        self.serial = serial
        _begin(path)
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.identity = _identity(self.fd)
        self.marked = len(HEAD)
        self.generation = 0
        self.retired = False
        #: Once it was truncated: what it held at the last look, and when that was changed.
        self.seen: bytes | None = None
        self.changed_at = 0
        #: How often what it held was new to somebody who looked, since changes were last told.
        self.looks = 0
        #: Told changes that are no output: the head is written by us.
        self.own = 1
        self.told = False
        self._taken = len(HEAD)
        self._punched = 0
        self._decoder = _decoder()

    def size(self) -> int:
        return os.lseek(self.fd, 0, os.SEEK_END)

    def take(self, serial: int, upto: int, generation: int, recorder: Taker) -> None:
        """Read what one mark stands for. A truncated file's earlier marks find nothing."""
        while generation == self.generation and self._taken < upto:
            data = _read_at(self.fd, min(BLOCK_BYTES, upto - self._taken), self._taken)
            if not data:
                return
            self.take_data(serial, data, recorder)

    def take_data(self, serial: int, data: bytes, recorder: Taker) -> None:
        """The next bytes of the file."""
        self._taken += len(data)
        text = self._decoder.decode(data)
        half = len(self._decoder.getstate()[0])
        recorder.take_in(serial, self.stream, text, self.path, self._taken - half)
        if self._taken - self._punched >= PUNCH_BYTES:
            self._punch()

    def restart(self, serial: int, upto: int, recorder: Taker) -> None:
        """The file was truncated after `upto` bytes: say what was lost, begin again at 0."""
        lost = upto - self._taken
        self._taken = self._punched = 0
        self._decoder = _decoder()
        if lost > 0:
            self.say_lost(serial, f"{lost} bytes lost", recorder)

    def say_lost(self, serial: int, what: str, recorder: Taker) -> None:
        fd = 1 if self.stream is Stream.STDOUT else 2
        words = f"[{what}: a program truncated fd {fd}; write to >&{fd}, not > /dev/{self.stream}]\n"
        recorder.take_in(serial, self.stream, words, self.path, self._taken)

    def rest(self, serial: int, recorder: Taker) -> None:
        """Half a character that nothing will complete."""
        text = self._decoder.decode(b"", final=True)
        if text:
            recorder.take_in(serial, self.stream, text, self.path, self._taken)

    def hand_over(self, serial: int, heir: int, recorder: Taker) -> None:
        """What comes from here on belongs to another execution; the finisher must know it too."""
        self.rest(serial, recorder)
        recorder.take_in(heir, self.stream, "", self.path, self._taken)

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
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _punch(self) -> None:
        self._punched = max(self._punched, 4096)  # the head stays
        end = self._taken & ~4095
        with contextlib.suppress(OSError):
            fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                libc.punch_hole(fd, self._punched, end - self._punched)
            finally:
                os.close(fd)
        self._punched = end


class Descriptors:
    """The pair behind fd 1 and 2 now, and the pairs that children of earlier cells still hold."""

    def __init__(self, directory: Path, queue: OrderedQueue) -> None:
        self._directory = directory
        self._queue = queue
        self._count = 0
        self._notify: int | None = None
        self._polled_at = 0.0
        #: Before the first pair: fd 1 and 2 as they were, to be given back.
        self._saved: list[int] = []
        self.current: list[DescriptorFile] = []
        self.retired: list[DescriptorFile] = []
        #: A process was started since the current pair came.
        self.shared = False

    def open(self) -> None:
        """Point fd 1 and 2 to the first pair."""
        self._saved = [os.dup(fd) for fd, _, _ in _TARGETS]
        self._notify = libc.watch_directory(self._directory)
        libc.line_buffer_stdout()
        self._open_pair(0)

    def close(self) -> None:
        """Give fd 1 and 2 back. What is still unread stays in the files for the finisher."""
        for (fd, _, _), saved in zip(_TARGETS, self._saved, strict=True):
            os.dup2(saved, fd)
            os.close(saved)
        self._saved = []
        if self._notify is not None:
            os.close(self._notify)
            self._notify = None

    def original(self, fd: int) -> int:
        """What fd 1 or 2 was before: the process's own log."""
        return self._saved[fd - 1]

    def targets(self) -> dict[int, str]:
        """What is behind fd 1 and 2 now."""
        return {fd: str(file.path) for (fd, _, _), file in zip(_TARGETS, self.current, strict=True)}

    def places(self) -> list[tuple[Stream, Path, int]]:
        """Where the output of the execution that just began will begin, stream by stream."""
        return [(file.stream, file.path, file.marked) for file in self.current]

    def begin(self, serial: int) -> None:
        """From here on fd 1 and 2 belong to that execution."""
        with self._queue.lock:
            self.mark()
            if self.shared or any(file.seen is not None for file in self.current):
                for file in self.current:
                    file.retired = True
                self.retired += self.current
                self._open_pair(serial)
                self.shared = False
                return
            for file in self.current:
                self._queue.put(partial(file.hand_over, file.serial, serial))
                file.serial = serial
            self.restore()

    def restore(self) -> list[str]:
        """Repair fd 1 and 2 when a cell closed or redirected them, fd 0 when it closed that; what was done to them."""
        found = []
        for (fd, _, _), file in zip(_TARGETS, self.current, strict=True):
            identity = _identity(fd)
            if identity != file.identity:
                found.append(f"fd {fd} was {'redirected' if identity else 'closed'}")
                _point(fd, file.path)
        if _identity(0) is None:
            found.append("fd 0 was closed")
            _point(0, Path(os.devnull), os.O_RDONLY)
        return found

    def mark(self) -> None:
        """Put a mark for each file that changed since its last one."""
        with self._queue.lock:
            for file in (*self.current, *self.retired):
                self._mark(file, file.size())

    def _mark(self, file: DescriptorFile, size: int) -> None:
        if file.seen is None and _read_at(file.fd, len(HEAD), 0) != HEAD:
            file.generation += 1
            self._queue.put(partial(file.restart, file.serial, file.marked))
            file.marked, file.seen = 0, b""
        if file.seen is not None:
            changed = self._look(file, file.seen)
            if changed is None:
                return
            size = changed
        file.looks += size != file.marked
        if 0 < size - file.marked <= EAGER_BYTES and self._queue.pending < PENDING_BYTES:
            data = _read_at(file.fd, size - file.marked, file.marked)
            self._queue.put(partial(file.take_data, file.serial, data), size=len(data), held=len(data))
            file.marked += len(data)
            return
        while file.marked < size:
            upto = min(size, file.marked + BLOCK_BYTES)
            take = partial(file.take, file.serial, upto, file.generation)
            self._queue.put(take, size=upto - file.marked)
            file.marked = upto

    def _look(self, file: DescriptorFile, seen: bytes) -> int | None:
        """The size of a file that was truncated, if it has changed; without a mark when it was written anew."""
        status = os.fstat(file.fd)
        if (status.st_size, status.st_mtime_ns) == (file.marked, file.changed_at):
            return None
        file.seen, file.changed_at = _read_at(file.fd, EAGER_BYTES, 0), status.st_mtime_ns
        if file.marked and not (status.st_size > file.marked and file.seen.startswith(seen)):
            file.generation += 1
            self._queue.put(partial(file.restart, file.serial, file.marked))
            file.marked = 0
        return status.st_size

    def end(self) -> None:
        """The execution's end: what is in the files is its own, and so is the word that something was lost."""
        with self._queue.lock:
            self.mark()
            if any(file.seen is not None for file in self.current):
                self._changed()

    def sizes(self) -> list[int]:
        """How much each file of the current pair holds."""
        return [file.size() for file in self.current]

    def at_line_start(self, since: list[int]) -> bool:
        """Whether what the current pair got since it had those sizes ends with a newline."""
        grown = [(file, now) for file, before in zip(self.current, since, strict=True) if (now := file.size()) > before]
        return all(_read_at(file.fd, 1, size - 1) == b"\n" for file, size in grown)

    # -- on the IOPub thread ---------------------------------------------------

    @property
    def notify_fd(self) -> int | None:
        """Readable when a file was written or closed; None where that is not told."""
        return self._notify

    def changed(self) -> None:
        """Mark what grew, and let go of the retired files that nobody can write any more."""
        with self._queue.lock:
            self._changed()

    def _changed(self) -> None:
        closed = set()
        writings: Counter[str] = Counter()
        opened: set[str] = set()
        if self._notify is not None:
            for mask, name in libc.watched(self._notify):
                if mask & (libc.IN_CLOSE_WRITE | libc.IN_Q_OVERFLOW):
                    closed.add(name)
                if mask & libc.IN_OPEN:
                    opened.add(name)
                if mask & libc.IN_MODIFY and (name in opened or not writings[name]):
                    writings[name] += 1
                    opened.discard(name)
        self.mark()
        for file in (*self.current, *self.retired):
            if writings[file.path.name]:
                self._check(file, writings[file.path.name])
        if closed:
            self._let_go(lambda file: file.path.name in closed or "" in closed)

    def _check(self, file: DescriptorFile, writings: int) -> None:
        """Say it when a file that was truncated was written to, and opened anew, more often than it was looked at."""
        writings -= file.own
        if file.seen is not None and writings > max(1, file.looks) and not file.told:
            file.told = True
            self._queue.put(partial(file.say_lost, file.serial, "lines may be missing here"))
        file.own = file.looks = 0

    def poll(self) -> None:
        """What `changed` does, where nothing tells of changes."""
        self.mark()
        if self.retired and time.monotonic() - self._polled_at > POLL_SECONDS:
            self._polled_at = time.monotonic()
            self._let_go(lambda file: True)

    def _let_go(self, told: Callable[[DescriptorFile], bool]) -> None:
        for file in [f for f in self.retired if told(f) and f.written_by_none()]:
            with self._queue.lock:
                self.mark()
                self.retired.remove(file)
                self._queue.put(partial(file.rest, file.serial))
                self._queue.put(partial(_remove, file))

    def _open_pair(self, serial: int) -> None:
        if not self._directory.is_dir():  # somebody cleans up the temporary directory
            self._directory.mkdir(mode=0o700, parents=True)
            if self._notify is not None:
                libc.watch_more(self._notify, self._directory)
        self._count += 1
        self.current = []
        for fd, stream, suffix in _TARGETS:
            path = self._directory / f"{self._count}.{suffix}"
            file = DescriptorFile(path, stream, serial)
            _point(fd, path)
            self.current.append(file)
            self._queue.put(partial(_announce, file, serial))


def _announce(file: DescriptorFile, serial: int, recorder: Taker) -> None:
    """The store must know of a file before anything is in it: the finisher reads what is left."""
    recorder.take_in(serial, file.stream, "", file.path, len(HEAD))


def _begin(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, HEAD)
    finally:
        os.close(fd)


def _remove(file: DescriptorFile, recorder: Any) -> None:
    recorder.after_commit(file.remove)


def _children() -> bool:
    import psutil  # 30 ms of a start, and asked for only when a cell has started a process

    return bool(psutil.Process().children(recursive=True))


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="backslashreplace")


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _point(fd: int, path: Path, flags: int = os.O_WRONLY | os.O_APPEND | os.O_CREAT) -> None:
    """Make `fd` a descriptor of `path`, appending, that children inherit."""
    opened = os.open(path, flags, 0o600)
    if opened == fd:
        os.set_inheritable(fd, True)
        return
    os.dup2(opened, fd)
    os.close(opened)


def _read_at(fd: int, count: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(fd, count, offset)
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, count)
