"""Taking kernels over from a server that has died (contract 5).

Owns the order in which a server's state comes back: kernels from their notes and records,
then what is known of callers, then the processes that go on are followed. A process that
cannot be followed ends, and the start says which and why. `succession` has found them;
`http_server` calls this between opening its service and serving.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from loommux_host.facts.phrases import one_line, plural
from loommux_host.keeper.client import KeeperGone, Kept
from loommux_host.kernels.process_life import Life
from loommux_host.processes.kernel_process import KernelProcess
from loommux_host.processes.runtime_files import KernelFiles, kernels_in
from loommux_host.server.host import Host
from loommux_host.sessions.binding import Binder
from loommux_host.sessions.lease_enforcement import LeaseEnforcement
from loommux_host.succession import restoration
from loommux_host.succession.manifest import CallersNote, KernelNote, ProcessNote
from loommux_host.succession.storage import CALLERS, KERNEL, Damaged, read
from loommux_host.succession.takeover import Inheritance, Say
from loommux_host.usecases.service import Service

#: How long what ends may take.
END_SECONDS = 8.0
#: How long the account of a process that has ended may take to arrive; it is there already, or was read before.
ACCOUNT_SECONDS = 1.5


@dataclass
class Adoption:
    """The taking over by one server: `recall`, and once all parts are there, `begin`."""

    found: Inheritance
    host: Host
    say: Say
    callers: CallersNote = field(default_factory=CallersNote)
    _lives: list[Life] = field(default_factory=list)

    async def recall(self, service: Service, binder: Binder, leasing: LeaseEnforcement) -> None:
        """Have the kernels and callers of the dead server known; nothing that goes on is followed yet."""
        root = self.found.directory.path
        notes = [note for directory in sorted(root.glob("k-*")) if (note := await self._note(directory)) is not None]
        for note in sorted(notes, key=lambda note: (note.home is not None, note.opened_at)):
            if note.home is not None and service.registry.by_id(note.home) is None:
                await self._refuse(note.id, note.name, "its main kernel could not be taken over")
                continue
            await self._recall(service, note)
        for name in list(self.found.kept):
            await self._end(name)
        try:
            self.callers = read(root / CALLERS, CallersNote)
        except (Damaged, FileNotFoundError) as error:
            self.say(f"who worked in the kernels and what was told is not known any more: {error}")
        binder.recall(self.callers.binding)
        service.sessions.recall(self.callers.told, self.callers.present)
        leasing.recall(self.callers.leasing, service.registry.mains())
        self._tell(service)

    async def begin(self) -> None:
        """Follow what goes on; what happened meanwhile is told."""
        await restoration.begin(self._lives)

    def _tell(self, service: Service) -> None:
        names = ", ".join(one_line(service.registry.path(kernel)) for kernel in service.registry.all())
        count = plural(len(service.registry), "kernel")
        self.say(f"took over {count} of the server before this (pid {self.found.identity.pid}): {names or 'none'}")

    # -- one kernel ---------------------------------------------------------------------

    async def _note(self, directory: Path) -> KernelNote | None:
        """What was written down of the kernel; one of which nothing can be known ends."""
        try:
            note = read(directory / KERNEL, KernelNote)
            if not directory.name == f"k-{note.id[:8]}":
                raise Damaged(f"{directory / KERNEL} speaks of another kernel")
            return note
        except FileNotFoundError:
            reason = "it was just being opened, or retired"
        except Damaged as error:
            reason = str(error)
        await self._refuse(directory.name.removeprefix("k-"), directory.name, reason)
        return None

    async def _recall(self, service: Service, note: KernelNote) -> None:
        files = KernelFiles.of(self.found.directory, note.id, Path(note.connection_file), note.connection)
        current = next((one for one in note.processes if one.death is None), None)
        living: KernelProcess | None = None
        try:
            if current is not None:
                living = await self._living(files, note, current)
            files.write_connection_file()
            self.host.take_over(files)
            kernel = service.registry.recall(note.id, note.name, home=note.home, private=note.private)
            await restoration.recall(kernel, note, files.directory, living)
        except (OSError, ValueError, TypeError, KeeperGone) as error:
            service.registry.forget(note.id)
            if living is not None:
                await living.end(grace=0)
                await self.host.launcher.retire(files)
            await self._refuse(note.id, note.name, str(error) or type(error).__name__)
            return
        self._discard_others(files, note)
        if living is not None and kernel.life is not None:
            self._lives.append(kernel.life)

    async def _living(self, files: KernelFiles, note: KernelNote, process: ProcessNote) -> KernelProcess:
        """The process that went on while nobody was there, or ended meanwhile."""
        name = f"{note.id}/{process.process}"
        kept = self.found.kept.pop(name, None)
        if kept is None:
            raise ValueError("its process was not kept")
        launch = restoration.launch_of(files.directory, process.process)
        keeping = self.host.keeping
        assert keeping is not None
        made = keeping.provisioner(files, process.process)
        await made.take_over(self.found.client, kept, note.id, process.pid, process.init_pid or 0)
        if not _lives(process):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(made.wait(), ACCOUNT_SECONDS)
            if made.ending is None:  # the dead server has read it, and could not tell anybody any more
                made.let_go()
        living = KernelProcess(made, launch, process.started_at)
        self.host.launcher.adopt(files, living)
        return living

    def _discard_others(self, files: KernelFiles, note: KernelNote) -> None:
        """A process that was being started has the number that the next one gets."""
        known = {process.process for process in note.processes}
        for path in files.directory.iterdir():
            if path.name.isdigit() and int(path.name) not in known:
                files.discard_process(int(path.name))

    # -- what ends ----------------------------------------------------------------------

    async def _refuse(self, id: str, name: str, reason: str) -> None:
        """End the kernel with all that it started, remove its files. `id` may be the beginning of it only."""
        self.say(f"kernel {one_line(name)} is not taken over, and ends: {reason}")
        for kept in [one for one in self.found.kept if one.startswith(id)]:
            await self._end(kept)
        files = KernelFiles.of(self.found.directory, id, _connection_file(self.found.directory.path, id), {})
        await asyncio.to_thread(files.remove)

    async def _end(self, name: str) -> None:
        """End a process that the keeper has, if it has not ended, and let its guard go."""
        kept = self.found.kept.pop(name)
        await asyncio.to_thread(_end, kept)
        await self.found.client.forget(name)


def _end(kept: Kept) -> None:
    with kept.sock as sock, contextlib.suppress(OSError):
        sock.settimeout(END_SECONDS)
        sock.sendall(b"end\n")
        with sock.makefile("rb") as lines, contextlib.suppress(TimeoutError):
            while (line := lines.readline()) and not line.startswith(b"ended"):
                pass
        sock.sendall(b"leave\n")
        sock.shutdown(socket.SHUT_WR)


def _lives(process: ProcessNote) -> bool:
    """Whether the process is there, not another with its number: its init has not reaped it."""
    with contextlib.suppress(psutil.Error):
        there = psutil.Process(process.pid)
        return there.ppid() == process.init_pid and there.status() != psutil.STATUS_ZOMBIE
    return False


def _connection_file(root: Path, id: str) -> Path:
    for kernel in kernels_in(root):
        if kernel["kernel_id"].startswith(id):
            return Path(kernel["connection_file"])
    return root / "none"
