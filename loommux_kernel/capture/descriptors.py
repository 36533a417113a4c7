"""What lies behind fd 1 and 2: append-only files, a fresh pair after a cell that started a process.

Owns which file is behind which descriptor, and the marks. Files and not pipes: the
last words of a process that dies are kept, and native code that holds the GIL can
write any amount. A child keeps the files it was started with, so what it writes
belongs to the cell that started it for as long as it lives.

A *mark* is a place in the ordered queue that stands for a file's growth until
then; the recorder takes the bytes in when the mark's turn comes. `streams` marks
before it puts Python's text, so that the two stay in order. `drain` calls
`watch`, `capture` the rest.

A program that opens its own output anew (``echo x > /dev/stderr``) truncates the
file. Each file begins with a few bytes of ours, so that this is seen; from then on
its whole content is looked at after each change, and what came between two looks
may be lost, which is said.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from loommux_kernel.capture import libc, memory_files
from loommux_kernel.capture.append_file import BLOCK_BYTES, DescriptorFile, Taker, identity_of, read_at
from loommux_kernel.capture.queue import PENDING_BYTES, OrderedQueue
from loommux_kernel.shared.clock import monotonic
from loommux_kernel.shared.private_directories import make_again
from loommux_kernel.shared.protocol import Stream
from loommux_kernel.shared.records.start_note import HEAD
from loommux_kernel.shared.reserve import HELD

#: Growth that is read when it is marked, before a program may truncate the file.
EAGER_BYTES = 1 << 16
#: Seconds between two looks whether retired files may go, where nothing tells of it.
POLL_SECONDS = 2.0

APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CREAT
#: What is wrong with a cell that got no files of its own.
SHARED_FILES = "what programs of earlier cells print now counts for this one: it has no files of its own"

_TARGETS = ((1, Stream.STDOUT, "out"), (2, Stream.STDERR, "err"))


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
        #: The disk had no room at the last look: programs write into memory, as much as `_bound` allows.
        self._full = False
        self._bound = memory_files.Bound()
        self.retired: list[DescriptorFile] = []
        #: Files that somebody has closed, to see whether they may go.
        self._closed: set[str] = set()
        #: A process was started since the current pair came.
        self.shared = False
        #: The last execution that should have had a pair of its own had none.
        self._faulty = False

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
        return {fd: file.target for (fd, _, _), file in zip(_TARGETS, self.current, strict=True)}

    def places(self) -> list[tuple[Stream, Path, int]]:
        """Where the output of the execution that just began will begin, stream by stream."""
        return [(file.stream, file.path, file.marked) for file in self.current if file.path is not None]

    def begin(self, serial: int) -> str | None:
        """From here on fd 1 and 2 belong to that execution; what is wrong with that, told once until it is right again.

        What keeps it from having files of its own does not keep it from running: it gets those of the last one.
        """
        fault = None
        with self._queue.lock:
            self.mark()
            self._full = memory_files.disk_is_full(self._directory)
            if self.shared or self._full != self.in_memory or any(file.seen is not None for file in self.current):
                try:
                    HELD.spend(self._replace, serial)
                except OSError as error:
                    fault = None if self._faulty else f"{SHARED_FILES} ({error.strerror})"
                    self._faulty = True
                else:
                    self.shared = self._faulty = False
                    return None
            for file in self.current:
                self._queue.put(partial(file.hand_over, file.serial, serial))
                file.serial = serial
            self.restore()
        return fault

    def process_starts(self) -> None:
        """A process is about to be started, which keeps what is behind fd 1 and 2 now. Any thread."""
        self.shared = True
        if not self.in_memory and memory_files.disk_is_full(self._directory):
            with self._queue.lock:
                self.mark()
                self._full = True
                with contextlib.suppress(OSError):  # it writes to the disk then, as far as that goes
                    HELD.spend(self._replace, self.current[0].serial)

    def _replace(self, serial: int) -> None:
        earlier = self.current
        self._open_pair(serial)
        for file in earlier:
            file.retired = True
        self.retired += earlier

    @property
    def in_memory(self) -> bool:
        """Whether the current pair is."""
        return any(file.path is None for file in self.current)

    @property
    def unwatched(self) -> bool:
        """Whether there are files of whose growth nothing tells."""
        return self._notify is None or any(file.path is None for file in (*self.current, *self.retired))

    def restore(self) -> list[str]:
        """Repair fd 1 and 2 when a cell closed or redirected them, fd 0 when it closed that; what was done to them."""
        found = []
        for (fd, _, _), file in zip(_TARGETS, self.current, strict=True):
            identity = identity_of(fd)
            if identity != file.identity:
                found.append(f"fd {fd} was {'redirected' if identity else 'closed'}")
                _repair(fd, file.target)
        if identity_of(0) is None:
            found.append("fd 0 was closed")
            _repair(0, os.devnull, os.O_RDONLY)
        return found

    def mark(self) -> None:
        """Put a mark for each file that changed since its last one."""
        with self._queue.lock:
            for file in (*self.current, *self.retired):
                self._mark(file, file.size())
                if file.full and not file.said:
                    file.said = True
                    self._queue.put(partial(file.say_full, file.serial))

    def _mark(self, file: DescriptorFile, size: int) -> None:
        if file.seen is None and (size < file.marked or read_at(file.fd, len(HEAD), 0) != HEAD):
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
            data = read_at(file.fd, size - file.marked, file.marked)
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
        file.seen, file.changed_at = read_at(file.fd, EAGER_BYTES, 0), status.st_mtime_ns
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
                self._read_changes()

    def sizes(self) -> list[int]:
        """How much each file of the current pair holds."""
        return [file.size() for file in self.current]

    def at_line_start(self, since: list[int]) -> bool:
        """Whether what the current pair got since it had those sizes ends with a newline."""
        grown = [(file, now) for file, before in zip(self.current, since, strict=True) if (now := file.size()) > before]
        return all(read_at(file.fd, 1, size - 1) == b"\n" for file, size in grown)

    # -- on the IOPub thread ---------------------------------------------------

    @property
    def notify_fd(self) -> int | None:
        """Readable when a file was written or closed; None where that is not told."""
        return self._notify

    def changed(self) -> None:
        """Mark what grew, and let go of the retired files that nobody can write any more."""
        with self._queue.lock:
            self._read_changes()
            closed, self._closed = self._closed, set()
        if closed:
            self._let_go(lambda file: file.name in closed or "" in closed)

    def _read_changes(self) -> None:
        files = {file.name: file for file in (*self.current, *self.retired) if file.path is not None}
        if self._notify is not None:
            for mask, name in libc.watched(self._notify):
                if mask & (libc.IN_CLOSE_WRITE | libc.IN_Q_OVERFLOW):
                    self._closed.add(name)
                if name in files:
                    files[name].told(mask)
        self.mark()
        for file in files.values():
            if file.may_have_lost() and not file.said:
                file.said = True
                self._queue.put(partial(file.say_lost, file.serial, "lines may be missing here"))

    def poll(self) -> None:
        """What `changed` does, where nothing tells of changes."""
        self.mark()
        if self.retired and monotonic() - self._polled_at > POLL_SECONDS:
            self._polled_at = monotonic()
            self._let_go(lambda file: True)

    def _let_go(self, told: Callable[[DescriptorFile], bool]) -> None:
        for file in [f for f in self.retired if told(f) and f.written_by_none()]:
            with self._queue.lock:
                self.mark()
                self.retired.remove(file)
                self._bound.drop(file)
                self._queue.put(partial(file.rest, file.serial))
                self._queue.put(partial(_remove, file))

    def _open_pair(self, serial: int) -> None:
        if not self._directory.is_dir():  # somebody cleans up the temporary directory
            make_again(self._directory)
            if self._notify is not None:
                libc.watch_more(self._notify, self._directory)
        self._count += 1
        try:
            made = self._make(serial, in_memory=self._full)
        except OSError:  # no room for another file, or no files in memory
            made = self._make(serial, in_memory=not self._full)
        try:
            for (fd, _, _), file in zip(_TARGETS, made, strict=True):
                _point(fd, file.target)
        except OSError:
            for file in made:
                file.remove()
            raise  # a descriptor that was pointed to a file already is put back by `restore`
        for file in made:
            if file.path is None:
                self._bound.add(file)
            self._queue.put(partial(_announce, file, serial))
        self.current = made

    def _make(self, serial: int, *, in_memory: bool) -> list[DescriptorFile]:
        made: list[DescriptorFile] = []
        try:
            for _, stream, suffix in _TARGETS:
                path = None if in_memory else self._directory / f"{self._count}.{suffix}"
                made.append(DescriptorFile(path, stream, serial))
        except OSError:
            for file in made:
                file.remove()
            raise
        return made


def _announce(file: DescriptorFile, serial: int, recorder: Taker) -> None:
    """The store must know of a file before anything is in it: the finisher reads what is left."""
    recorder.take_in(serial, file.stream, "", file.path, len(HEAD))


def _remove(file: DescriptorFile, recorder: Any) -> None:
    recorder.after_commit(partial(_close, file))


def _close(file: DescriptorFile) -> None:
    file.remove()
    HELD.fill()


def _repair(fd: int, path: str, flags: int = APPENDING) -> None:
    """As `_point`, as far as it can be done: it is tried again at the next begin and end."""
    with contextlib.suppress(OSError):
        HELD.spend(_point, fd, path, flags)


def _point(fd: int, path: str, flags: int = APPENDING) -> None:
    """Make `fd` a descriptor of `path`, appending, that children inherit."""
    opened = os.open(path, flags, 0o600)
    if opened == fd:
        os.set_inheritable(fd, True)
        return
    os.dup2(opened, fd)
    os.close(opened)
