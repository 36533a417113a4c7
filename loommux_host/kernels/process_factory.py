"""How one kernel gets its processes: what joins `processes.launcher` and `channel` for `kernel`.

Owns the files of one kernel, and the process that was begun for it before anybody asked:
a server's first kernel starts while the rest of the server is still being imported.
Made by `server.host`; called by `kernel` alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from loommux_host.config import Config
from loommux_host.processes.launcher import KernelFiles, KernelProcess, Launcher, StartFailed

if TYPE_CHECKING:  # a quarter of a second, that the first process does not wait for
    from loommux_host.kernels.channel import Channel
    from loommux_host.processes.process_protocol import Process


class ProcessFactory:
    """Starts the processes of one kernel, one after the other. `session` is the server's Jupyter client session."""

    def __init__(self, launcher: Launcher, files: KernelFiles, config: Config, session: str) -> None:
        self._launcher, self._config, self._session = launcher, config, session
        self._files = files
        self._begun: asyncio.Task[KernelProcess] | None = None

    def begin(self, name: str) -> None:
        """Begin the first process; `start` then waits for it."""
        self._begun = asyncio.create_task(self._start(name, 1), name="first kernel process")

    async def start(self, name: str, process: int) -> Process:
        begun, self._begun = self._begun, None
        return await (begun or self._start(name, process))

    async def _start(self, name: str, process: int) -> KernelProcess:
        config = self._config
        try:
            return await self._launcher.start(
                self._files, name, process, config.workspace, self._session, config.startup_dir
            )
        except StartFailed:
            self._files.discard_process(process)  # the next try has the same number
            raise

    def connect(self, process: Process) -> Channel:
        import zmq

        from loommux_host.kernels.channel import ZmqChannel

        return ZmqChannel(zmq.Context.instance(), self._files.connection_file, self._session)

    async def discard(self, process: Process) -> None:
        await asyncio.to_thread(self._files.discard_process, process.process)

    async def remove(self) -> None:
        """Let the kernel's files go; ends a process that was begun and never asked for."""
        if self._begun is not None:
            self._begun.cancel()
            await asyncio.wait({self._begun})
            if not self._begun.cancelled() and self._begun.exception() is None:
                await self._begun.result().end(grace=0)
        await self._launcher.retire(self._files)
