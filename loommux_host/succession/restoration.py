"""Making kernels of what another server has left: notes, records, processes that go on.

Owns the rebuilding, kernel by kernel: records are the truth of what happened, the journal
of what is no news; what ended while nobody was there is told as if it had just happened.
Decides nothing about whose kernels they are: `server.adoption` does, and calls this.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from loommux_host.kernels.channel import Channel, ChannelClosed, OnEvent
from loommux_host.kernels.journal import Journal, Journaled
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.process_life import Life
from loommux_host.processes.kernel_process import KernelProcess
from loommux_host.processes.process_protocol import Exit, ProcessInfo
from loommux_host.succession.manifest import JournalNote, KernelNote, ProcessNote
from loommux_kernel.shared.protocol import LaunchFile, OriginKind, Submission
from loommux_kernel.shared.record_types import ExecutionRecord

#: How long the start of a server waits for kernels to answer that were taken over; native code may hold one.
ANSWER_SECONDS = 2.0


@dataclass(frozen=True)
class PastProcess:
    """A process that had ended before its kernel was taken over."""

    pid: int
    process: int
    started_at: float
    launch: LaunchFile

    async def wait(self) -> Exit:
        raise ChannelClosed

    async def end(self, *, grace: float) -> Exit:
        raise ChannelClosed

    async def descendants(self) -> Sequence[ProcessInfo]:
        return []


class NoChannel:
    """A channel to a process that has ended."""

    heard = 0.0

    async def open(self, on_event: OnEvent) -> None:
        raise ChannelClosed

    async def execute(self, source: str, submission: Submission) -> NoReturn:
        raise ChannelClosed

    async def request(self, name: str, content: dict[str, Any] | None = None, *, deadline: float) -> NoReturn:
        raise ChannelClosed

    def take_in(self) -> None: ...
    def close(self) -> None: ...


def launch_of(directory: Path, process: int) -> LaunchFile:
    """How a process was launched. Raises OSError, ValueError, TypeError."""
    return LaunchFile.read(directory / str(process) / "launch.json")


async def recall(kernel: Kernel, note: KernelNote, directory: Path, living: KernelProcess | None) -> None:
    """Have a kernel that was just made be what the note says. `directory` is the kernel's.

    `living` is its process, if one goes on; events of it, and of its end, begin with this.
    """
    kernel.opened_at = note.opened_at
    kernel.journal = journal_of(note.journal)
    for process in note.processes:
        if process.death is not None:
            with contextlib.suppress(FileNotFoundError):  # somebody has removed its files, and its records with them
                kernel.ended.append(await _past(process, directory))
    if living is None:
        kernel.life = kernel.ended[-1] if kernel.ended else None
        return
    life = kernel.life = kernel.life_of(living)
    life.ending = next((one.ending for one in note.processes if one.process == living.process), None)
    await life.recall(known_by(kernel.journal, living.process), noticed_by(kernel.journal, living.process))


async def begin(lives: Sequence[Life]) -> None:
    """Follow processes that go on; one that does not answer yet is caught up with when it does."""
    if tasks := [life.begin_soon() for life in lives]:
        await asyncio.wait(tasks, timeout=ANSWER_SECONDS)


def journal_of(note: JournalNote) -> Journal:
    return Journal.of(
        note.index,
        note.notices,
        note.ends,
        note.deaths,
        ends_let_go=note.ends_let_go,
        notices_let_go=note.notices_let_go,
    )


def known_by(journal: Journal, process: int) -> Callable[[ExecutionRecord], bool]:
    """Which of a process's ended executions the journal has; startup files never get into it."""
    ended = {entry.serial for entry in journal.ends() if entry.process == process}

    def known(record: ExecutionRecord) -> bool:
        return record.completed_at is not None and (record.serial in ended or record.origin.kind is OriginKind.STARTUP)

    return known


def noticed_by(journal: Journal, process: int) -> Journaled:
    entries = journal.notices()
    _, let_go = journal.let_go
    since = min((entry.at for entry in entries), default=0.0) if let_go else 0.0
    return Journaled(tuple((e.serial, e.text, e.at) for e in entries if e.process == process), since)


async def _past(note: ProcessNote, directory: Path) -> Life:
    assert note.death is not None
    process = PastProcess(note.pid, note.process, note.started_at, launch_of(directory, note.process))
    channel: Channel = NoChannel()
    life = Life(process, channel, on_change=lambda life, change: None, on_death=lambda life, lost: None)
    life.over(note.death)
    await life.recall(lambda record: True, Journaled())
    return life
