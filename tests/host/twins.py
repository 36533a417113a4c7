"""Kernels in memory for the tests of the host: launching, callers, a whole service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loommux_host.kernels.channel import Channel
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.registry import Registry
from loommux_host.processes.process_protocol import Process, StartFailed
from loommux_host.sessions.callers import Caller, LeaseHooks, OneKernel, Sessions
from loommux_host.usecases.inspection import Place
from loommux_host.usecases.result_bodies import Bodies
from loommux_host.usecases.service import Service
from loommux_kernel.shared.protocol import LaunchFile, Origin, OriginKind, State
from tests.host.memory_channel import Code, MemoryCell, MemoryChannel, MemoryProcess

ME = Caller("me", "claude-11111111")
OTHER = Caller("other", "claude-22222222")
PERSON = Caller("console", "", OriginKind.CONSOLE)
QT = Origin(OriginKind.CLIENT, "qtconsole", "qt")


@dataclass
class Launching:
    """Starts processes in memory; the next `failures` starts fail."""

    directory: Path
    codes: dict[str, Code] = field(default_factory=dict)
    failures: int = 0
    starts: int = 0
    processes: list[MemoryProcess] = field(default_factory=list)
    discarded: list[int] = field(default_factory=list)
    removed: bool = False
    on_start: Callable[[MemoryChannel], None] = lambda channel: None

    async def start(self, name: str, process: int) -> Process:
        self.starts += 1
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise StartFailed("it did not get ready", "last words")
        store = self.directory / f"{process}.sqlite"
        launch = LaunchFile("id", name, process, "/connection.json", "s", str(store), "", "", "")
        channel = MemoryChannel(store, self.codes)
        made = MemoryProcess(1000 + process, process, launch, channel)
        channel.on_quit = lambda: made.die(code=0)
        self.processes.append(made)
        self.on_start(channel)
        return made

    def connect(self, process: Process) -> Channel:
        assert isinstance(process, MemoryProcess)
        return process.channel

    async def discard(self, process: Process) -> None:
        self.discarded.append(process.process)
        assert isinstance(process, MemoryProcess)
        process.channel.records.close()

    async def remove(self) -> None:
        self.removed = True
        for process in self.processes:
            process.channel.records.close()

    @property
    def process(self) -> MemoryProcess:
        return self.processes[-1]

    @property
    def channel(self) -> MemoryChannel:
        return self.process.channel


class Script:
    """Cells under a test's control: `held` ones run until let go."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.go = asyncio.Event()
        self.cell: MemoryCell | None = None

    async def hold(self, cell: MemoryCell) -> State | None:
        self.cell = cell
        self.running.set()
        await self.go.wait()
        return None


async def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until something is true that nobody announces."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def say(cell: MemoryCell) -> State | None:
    """Prints its own source."""
    cell.print(cell.source + "\n")
    return None


async def fail(cell: MemoryCell) -> State | None:
    raise ValueError("bad value")


@dataclass
class Server:
    """A stdio server's parts over kernels in memory."""

    launching: Launching
    registry: Registry
    kernel: Kernel
    sessions: Sessions
    service: Service
    time: list[float]


def server(
    directory: Path,
    codes: Mapping[str, Code] | None = None,
    *,
    structured: bool = False,
    leases: LeaseHooks | None = None,
) -> Server:
    launching = Launching(directory, dict(codes or {}))
    registry = Registry(lambda id, name: launching)
    kernel = registry.open("report-cleanup", private=True).kernel
    time = [1000.0]
    sessions = Sessions(registry, OneKernel(registry, kernel), leases, clock=lambda: time[0])
    place = Place("/work", "launch_cwd", lambda: (Path("/usr/bin/python3"), ""))
    service = Service(registry, sessions, Bodies(lambda text: len(text) < 20_000, structured), place)
    return Server(launching, registry, kernel, sessions, service, time)
