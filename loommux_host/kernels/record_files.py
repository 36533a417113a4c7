"""The files in which one process's records are, held open so that removing them loses nothing that was written.

Owns a reader of the record store and descriptors of the two small files beside it, from the
moment the process serves until its kernel lets go of them. A temporary directory that is
emptied takes names away, not what is open: the kernel goes on writing where this reads. It
reads no records itself; `record_reads` does. Methods run in worker threads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from loommux_kernel.shared.record_types import ExecutionRecord
from loommux_kernel.shared.records import start_note, unrecorded_text
from loommux_kernel.shared.records.database import Files, files_at, write_again
from loommux_kernel.shared.records.reader import RecordReader
from loommux_kernel.shared.records.start_note import RESERVED, Noted, begun, note_in

log = logging.getLogger(__name__)

#: A living kernel has its store written again so long after somebody has removed it, at the latest.
AGAIN_SECONDS, LOOK_SECONDS = 4.0, 0.02
#: What is held beside the store: the note of the last start, and what Python printed last.
BESIDE = (start_note.NAME, unrecorded_text.FILE)


class _HeldReader(RecordReader):
    """A reader that several use at a time: it is closed when it is not held any more, and the last has closed it."""

    def __init__(self, path: Path) -> None:
        self._count = threading.Lock()
        self._users = 1  # who holds it
        super().__init__(path)

    def used(self) -> _HeldReader:
        """One more user."""
        with self._count:
            self._users += 1
        return self

    def close(self) -> None:
        with self._count:
            self._users -= 1
            last = not self._users
        if last:
            super().close()


class RecordFiles:
    """See the module. `path` is the record store's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._reader: _HeldReader | None = None
        self._files: Files = ()
        self._beside: dict[str, int] = {}
        self._closed = False
        #: The kernel has made its store, and may still write.
        self._made, self._alive = False, True

    def hold(self) -> bool:
        """Keep open what is there and is not held yet; whether there is nothing more to wait for."""
        with self._lock:
            if self._closed:
                return True
            for name in BESIDE:
                if name not in self._beside:
                    with contextlib.suppress(OSError):
                        self._beside[name] = os.open(self.path.with_name(name), os.O_RDONLY)
            if self._reader is None:
                self._hold_store()
            return self._reader is not None and len(self._beside) == len(BESIDE)

    def _hold_store(self) -> None:
        files = files_at(self.path)
        self._made = self._made or files[0] is not None
        try:
            reader = _HeldReader(self.path)
        except (OSError, sqlite3.Error):
            return
        if files[0] is None or files[0] != files_at(self.path)[0]:  # it was made, or removed, just now
            reader.close()
            return
        self._reader, self._files = reader, files

    @contextlib.contextmanager
    def opened(self, *, patient: bool = False) -> Iterator[RecordReader]:
        """`reader`, for a while."""
        reader = self.reader(patient=patient)
        try:
            yield reader
        finally:
            reader.close()

    def reader(self, *, patient: bool = False) -> RecordReader:
        """A reader of the store, or the one that is held when the files are gone; to be closed.

        Raises FileNotFoundError when there is neither, sqlite3.Error. `patient` waits while a living kernel has not
        written a store again that was removed before it was held.
        """
        until = time.monotonic() + AGAIN_SECONDS
        while True:
            try:
                return self._held() or RecordReader(self.path)
            except FileNotFoundError:
                awaited = patient and self._made and self._alive and not self._closed
                if not awaited or time.monotonic() > until:
                    raise
            time.sleep(LOOK_SECONDS)

    def _held(self) -> _HeldReader | None:
        """The held reader, if the files that it has open are not those that are there now; to be closed."""
        with self._lock:
            if self._reader is None:
                if not self._closed:
                    self._hold_store()
                return None
            now = files_at(self.path)
            if now == self._files:
                return None
            if now[0] is None or (now[0] == self._files[0] and None not in self._files):
                return self._reader.used()
            old, self._reader = self._reader, None  # it was written again, or its log has come since
            self._hold_store()
            if self._reader is None:
                self._reader = old
                return old.used()
            old.close()
            return None

    # -- what began last ------------------------------------------------------------

    def starting(self) -> ExecutionRecord | None:
        """The execution that was noted last, as one that runs; None when none was, or nobody can tell."""
        note = self._note()[0]
        return None if note is None else begun(note)

    def tells_what_began(self) -> bool:
        """Whether an execution that began cannot be missing from the note, or from the store that is in its place."""
        note, reliable = self._note()
        unnoted = note is None and not any(self._contents(start_note.NAME))
        return reliable or (unnoted and self.path.exists())

    def _note(self) -> tuple[Noted | None, bool]:
        """The newest note, and whether it can be relied on: its file has had room from the start, and is read whole."""
        found: list[Noted] = []
        reliable = False
        for data in self._contents(start_note.NAME):
            note = note_in(data)
            reliable = reliable or (len(data) >= RESERVED and (note is not None or data[:1] == b"\0"))
            found += [note] if note is not None else []
        return max(found, key=lambda note: note.execution.serial, default=None), reliable

    def _contents(self, name: str) -> Iterator[bytes]:
        """Of a file beside the store: of the one that is held, and of the one that is there."""
        with self._lock:
            fd = self._beside.get(name)
            if fd is not None:
                with contextlib.suppress(OSError):
                    yield _content(fd)
        with contextlib.suppress(OSError):
            yield self.path.with_name(name).read_bytes()

    # -- the end ------------------------------------------------------------------------

    def restore(self) -> None:
        """After the process's death: write again what somebody has removed and is held. Raises OSError, sqlite3.Error.

        So that its records can be completed, and read by a next server.
        """
        self._alive = False
        held = self._held()
        if held is not None:
            with contextlib.closing(held):
                write_again(held.connection, self.path)
        for name in BESIDE:
            path = self.path.with_name(name)
            with self._lock:
                fd = self._beside.get(name)
                if fd is not None and not path.exists() and self.path.exists():
                    path.touch(mode=0o600)
                    path.write_bytes(_content(fd))
        if (held := self._held()) is not None:  # reads what was written from now on
            held.close()

    def close(self) -> None:
        """Let go of everything; nothing is held any more."""
        with self._lock:
            self._closed = True
            reader, self._reader = self._reader, None
            for fd in self._beside.values():
                os.close(fd)
            self._beside.clear()
        if reader is not None:
            reader.close()


def _content(fd: int) -> bytes:
    """All of a file whose other users have the same descriptor."""
    return os.pread(fd, os.fstat(fd).st_size, 0) if hasattr(os, "pread") else _read(fd)


def _read(fd: int) -> bytes:
    os.lseek(fd, 0, os.SEEK_SET)
    return os.read(fd, os.fstat(fd).st_size)
