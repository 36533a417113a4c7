"""A real kernel through the launcher, without a server around it: its cells one after the other."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
import zmq

from loommux_host.kernels.channel import ChannelClosed, ZmqChannel
from loommux_host.processes.launcher import KernelProcess, Launcher
from loommux_host.processes.runtime_files import KernelFiles
from loommux_kernel.shared.protocol import Origin, OriginKind, Reply, State, Submission, now

ORIGIN = Origin(OriginKind.SESSION, "a test", "a-test")
SECONDS = 60


class Cells:
    """One real kernel, and its cells one after the other."""

    def __init__(self, launcher: Launcher, files: KernelFiles, workspace: Path) -> None:
        self.launcher, self.files, self.workspace = launcher, files, workspace
        self.session = uuid.uuid4().hex
        self.number = 0
        self.process: KernelProcess
        self.channel: ZmqChannel

    async def start(self) -> None:
        self.number += 1
        self.serial = 0
        self.process = await self.launcher.start(self.files, "real", self.number, self.workspace, self.session)
        self.channel = ZmqChannel(zmq.Context.instance(), self.files.connection_file, self.session)
        await self.channel.open(lambda event: None)

    async def send(self, source: str) -> Reply:
        submission = Submission(uuid.uuid4().hex, self.serial, ORIGIN, now())
        async with asyncio.timeout(SECONDS):
            reply = await self.channel.execute(source, submission)
        assert reply.refused is None
        self.serial = reply.serial
        return reply

    async def run(self, source: str) -> str:
        reply = await self.send(source)
        assert reply.state is State.COMPLETED, (reply, self.process.launch.log)
        return (reply.body or "").strip()

    async def tell(self, imports: str, expression: str) -> Any:
        """What an expression is worth in a cell."""
        file = self.workspace / "told.json"
        await self.run(f"{imports}\nimport json\nopen({str(file)!r}, 'w').write(json.dumps({expression}, default=str))")
        return json.loads(await asyncio.to_thread(file.read_text))

    async def dies(self, source: str) -> None:
        """Send a cell that ends the process."""
        reply = asyncio.create_task(self.send(source))
        async with asyncio.timeout(SECONDS):
            await self.process.wait()
        self.channel.close()
        with pytest.raises(ChannelClosed):
            await reply

    async def end(self, *, grace: float = 0) -> None:
        self.channel.close()
        await self.process.end(grace=grace)

    async def close(self) -> None:
        if hasattr(self, "channel"):
            await self.end()
        await self.launcher.retire(self.files)
