"""Writing down what a successor needs, while the server works (contract 5).

Owns when that is written. What a result relies on that is about to leave (a kernel's name,
a handle, a process, a binding) is in the file before it is sent; that notices or a death
were told, as soon as they were: a kill in between has them told once more, and never leaves
them untold. Everything else (journals, leases) follows a moment after it changed, in a
thread; the record stores know of cells anyway. An idle server writes nothing. Made by
`http_server` for servers whose kernels may be taken over.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loommux_host.kernels.journal import Journal
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.mirror import Change, Printed
from loommux_host.kernels.process_life import Life
from loommux_host.kernels.registry import Registry
from loommux_host.processes.runtime_files import KernelFiles
from loommux_host.sessions.binding import Binder
from loommux_host.sessions.callers import Sessions
from loommux_host.sessions.lease_enforcement import LeaseEnforcement
from loommux_host.succession.manifest import CallersNote, Identity, JournalNote, KernelNote, ProcessNote
from loommux_host.succession.storage import CALLERS, IDENTITY, KERNEL, encoded, write

log = logging.getLogger(__name__)

#: How long after a change everything that changed is written.
SOON_SECONDS = 0.25


@dataclass
class Known:
    """The parts of a server that know what a successor has to know. `files` are the kernels', by id."""

    registry: Registry
    sessions: Sessions
    binder: Binder
    leasing: LeaseEnforcement
    files: Mapping[str, KernelFiles]
    open_sessions: Callable[[], dict[str, dict[str, Any]]]


class Memory:
    """Keeps the files of one server's directory up to date; on its event loop."""

    def __init__(self, directory: Path, identity: Identity, known: Known) -> None:
        self._directory, self._identity, self._known = directory, identity, known
        self._told: tuple[object, ...] = ()
        self._kernels: dict[str, tuple[object, ...]] = {}
        self._callers = b""
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        #: What a thread is about to write.
        self._on_the_way: list[tuple[int, Path, bytes]] = []
        self._files = _Files()
        self._closed = False
        known.registry.listen(self._changed)
        self._files.write(self._collect())
        write(directory / IDENTITY, encoded(identity))  # last: then it can be relied on

    def touch(self) -> None:
        """Something may have changed."""
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(SOON_SECONDS, self._soon)

    def settle(self) -> None:
        """Before something is told: have what it relies on written."""
        if not self._closed and self._of_what_is_told() != self._told:
            self._files.write([*self._on_the_way, *self._collect()])

    def write_again(self) -> None:
        """Everything, into a directory that was made again."""
        if self._closed:
            return
        self._kernels, self._callers = {}, b""
        self._files.write(self._collect())
        write(self._directory / IDENTITY, encoded(self._identity))

    def close(self) -> None:
        """The server ends in order: nothing of it is to be taken over."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        (self._directory / IDENTITY).unlink(missing_ok=True)

    def _soon(self) -> None:
        self._timer = None
        if self._closed:
            return
        if self._writing is not None and not self._writing.done():
            self.touch()
            return
        self.settle()
        self._on_the_way = self._collect()
        if self._on_the_way:
            self._writing = asyncio.create_task(self._write(), name="remember")

    async def _write(self) -> None:
        await asyncio.to_thread(self._files.write, self._on_the_way)
        self._on_the_way = []

    def _changed(self, kernel: Kernel, life: Life, change: Change) -> None:
        if not isinstance(change, Printed):
            self.touch()

    def _of_what_is_told(self) -> tuple[object, ...]:
        """What differs as soon as a result may tell of something that a successor has to know."""
        known = self._known
        kernels = (_standing(kernel) for kernel in known.registry.all())
        return (known.binder.moves, known.sessions.tellings, known.leasing.policies.current.generation, *kernels)

    def _collect(self) -> list[tuple[int, Path, bytes]]:
        """What changed since it was collected, as files."""
        known, changed = self._known, list[tuple[int, Path, bytes]]()
        self._told = self._of_what_is_told()
        there: dict[str, tuple[object, ...]] = {}
        for kernel in known.registry.all():
            files = known.files.get(kernel.id)
            if files is None or not files.directory.exists():  # nothing of it was begun yet
                continue
            state = there[kernel.id] = (*_standing(kernel), kernel.journal.index)
            if self._kernels.get(kernel.id) != state:
                changed.append(self._files.made(files.directory / KERNEL, encoded(note_of(kernel, files))))
        self._kernels = there
        told, present = known.sessions.note()
        callers = CallersNote(told, present, known.binder.note(), known.leasing.note(), known.open_sessions())
        data = encoded(callers)
        if data != self._callers:
            self._callers = data
            changed.append(self._files.made(self._directory / CALLERS, data))
        return changed


class _Files:
    """Writes files from two threads; what was made later stays."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made = 0
        self._written: dict[Path, int] = {}

    def made(self, path: Path, data: bytes) -> tuple[int, Path, bytes]:
        self._made += 1
        return self._made, path, data

    def write(self, files: list[tuple[int, Path, bytes]]) -> None:
        with self._lock:
            for number, path, data in files:
                if number < self._written.get(path, 0):
                    continue
                self._written[path] = number
                try:
                    write(path, data)
                except FileNotFoundError:
                    self._written.pop(path)  # the kernel was retired meanwhile
                except OSError as error:
                    log.warning("a successor of this server would not know everything: %s: %s", path, error.strerror)


class Remembered:
    """ASGI that has everything written before it is told."""

    def __init__(self, app: ASGIApp, memory: Memory) -> None:
        self._app, self._memory = app, memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def settled(message: Message) -> None:
            self._memory.settle()
            await send(message)

        try:
            await self._app(scope, receive, settled)
        finally:
            self._memory.settle()  # what has just been told
            self._memory.touch()


def note_of(kernel: Kernel, files: KernelFiles) -> KernelNote:
    """What is written down of a kernel."""
    return KernelNote(
        kernel.id,
        kernel.name,
        kernel.home,
        kernel.private,
        kernel.opened_at,
        str(files.connection_file),
        files.connection,
        [_process(life) for life in reversed(kernel.lives())],
        _journal(kernel.journal),
    )


def _process(life: Life) -> ProcessNote:
    process = life.process
    init_pid = getattr(process, "init_pid", None)
    return ProcessNote(process.process, process.pid, init_pid, process.started_at, life.ending, life.death)


def _journal(journal: Journal) -> JournalNote:
    ends_let_go, notices_let_go = journal.let_go
    return JournalNote(journal.index, journal.notices(), journal.ends(), journal.deaths(), ends_let_go, notices_let_go)


def _standing(kernel: Kernel) -> tuple[object, ...]:
    life = kernel.life
    process = (life.process.process, life.finished.is_set(), life.ending) if life else None
    return (kernel.id, kernel.name, len(kernel.ended), process)
