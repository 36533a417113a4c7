"""Kernels from a keeper beside plain ipykernel: from the request to the first reply, many at once, memory.

Below the faces: the launcher, a keeper and a channel, as the server uses them.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import zmq

from bench.floor import PlainKernel
from bench.measures import Row, atimed, timed
from loommux_host.keeper.supervisor import KeeperSupervisor
from loommux_host.kernels.channel import ZmqChannel
from loommux_host.processes.launcher import Launcher
from loommux_host.processes.runtime_files import KernelFiles, create_server_directory
from loommux_kernel.shared.protocol import Origin, OriginKind, Submission, now

TOGETHER = 32
ORIGIN = Origin(OriginKind.SESSION, "bench", "bench")


class Settings:
    kernel_python = Path(sys.executable)
    records_budget_bytes = 1 << 30


class Kernel:
    """One kernel; `start` returns with the reply to its first cell."""

    def __init__(self, launcher: Launcher, files: KernelFiles, workspace: Path) -> None:
        self.launcher, self.files, self.workspace = launcher, files, workspace
        self.session, self.number = uuid.uuid4().hex, 0

    async def start(self) -> None:
        self.number += 1
        self.process = await self.launcher.start(self.files, "bench", self.number, self.workspace, self.session)
        self.channel = ZmqChannel(zmq.Context.instance(), self.files.connection_file, self.session)
        await self.channel.open(lambda event: None)
        await self.channel.execute("1", Submission(uuid.uuid4().hex, 0, ORIGIN, now()))

    async def restart(self) -> None:
        self.channel.close()
        await self.process.end(grace=0)
        await self.start()

    def pss(self) -> float:
        """MB of the kernel, its init and its guard, what is shared divided among those that share it."""
        init = psutil.Process(self.process.init_pid or 0)
        processes = [psutil.Process(self.process.pid), init, init.parent()]
        return sum(p.memory_full_info().pss for p in processes if p is not None) / 1e6

    async def close(self) -> None:
        self.channel.close()
        await self.process.end(grace=0)
        await self.launcher.retire(self.files)


@contextlib.asynccontextmanager
async def kernels(count: int) -> AsyncIterator[list[Kernel]]:
    """So many that are not started, of a server whose keeper has forked one already."""
    server = create_server_directory()
    with TemporaryDirectory() as workspace:
        keeping = KeeperSupervisor(server, lambda: Path(sys.executable), Path(workspace), None, ())
        launcher = Launcher(Settings(), provisioner=keeping.provisioner)
        made = [Kernel(launcher, KernelFiles(server, uuid.uuid4().hex, "b"), Path(workspace)) for _ in range(count + 1)]
        await made[0].start()
        try:
            yield made[1:]
        finally:
            await asyncio.gather(*(one.close() for one in made if one.number))
            await keeping.close()
            server.remove()


def plain() -> PlainKernel:
    """A plain kernel that has answered its first cell."""
    made = PlainKernel().__enter__()
    made.run("1")
    return made


def _pss(kernel: PlainKernel) -> float:
    provisioner = kernel.manager.provisioner
    assert provisioner is not None
    return psutil.Process(provisioner.pid).memory_full_info().pss / 1e6  # pyright: ignore[reportAttributeAccessIssue]


async def from_keeper() -> list[Row]:
    """A second kernel, a restart, 32 at once, memory per idle kernel."""
    floor, ours, again = [], [], []
    async with kernels(5) as five:
        for one in five:
            begun: list[PlainKernel] = []
            floor.append(await asyncio.to_thread(timed, lambda begun=begun: begun.append(plain())))
            begun[0].__exit__(None, None, None)
            ours.append(await atimed(one.start()))
        again = [await atimed(one.restart()) for one in five]
    async with kernels(TOGETHER) as many:
        together = await atimed(asyncio.gather(*(one.start() for one in many)))
        await asyncio.sleep(1)
        memory = statistics.median([one.pss() for one in many[:8]])
    with ThreadPoolExecutor(TOGETHER) as pool:
        stock: list[PlainKernel] = []
        stock_together = await asyncio.to_thread(
            timed, lambda: stock.extend(pool.map(lambda _: plain(), range(TOGETHER)))
        )
        stock_memory = statistics.median([_pss(one) for one in stock[:8]])
        for one in stock:
            one.__exit__(None, None, None)
    first = statistics.median(floor)
    return [
        Row("a second kernel, request to first reply", statistics.median(ours), first, 0.2),
        Row("a restart to the first reply (floor: a start)", statistics.median(again), first),
        Row(f"{TOGETHER} kernels at once, to the last first reply", together, stock_together, 0.2),
        Row(f"PSS of one of {TOGETHER} idle kernels, init and guard included", memory, stock_memory, 0.65, "MB"),
    ]
