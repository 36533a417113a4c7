"""A server's private directory, made again when somebody has removed it.

A temporary directory is emptied under a server that lives for days. Its kernels go on, and
so does what is open; but nobody new finds the server, its kernels' code does not reach it, and
nobody could take its kernels over. Owns what is to be made again, in which order, and what the
agents are told; each part knows how. Made by `host`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable

from loommux_host.kernels.registry import Registry
from loommux_host.processes.directory_watch import DirectoryWatch
from loommux_host.processes.private_socket import NAME
from loommux_host.processes.running_servers import FILE
from loommux_host.processes.runtime_files import OWNER, DirectoryRefused, ServerDirectory
from loommux_kernel.shared.protocol import now

log = logging.getLogger(__name__)

#: Seconds until the next try while it cannot be made again.
RETRY_SECONDS = 5.0
#: What must be in the directory.
NEEDED = (OWNER, FILE, *([] if sys.platform == "win32" else [NAME]))
LABEL = "Server"
MADE = (
    "Somebody removed this server's directory {path}; it has been made again. Jupyter clients, and a server that"
    " takes this one's place, reach this kernel again after restart()."
)
NOT_MADE = (
    "Somebody removed this server's directory {path}, and it cannot be made again: {error}. Until it can, code in"
    " cells, the loommux commands and Jupyter clients do not reach this server. Make its parent directory again,"
    " writable for this account."
)


class DirectoryRepair:
    """Watches one server's directory from now on. `steps` make again what is in it, in this order; `close` ends it."""

    def __init__(
        self, directory: ServerDirectory, registry: Registry, steps: Iterable[Callable[[], Awaitable[None]]]
    ) -> None:
        self._directory, self._registry, self._steps = directory, registry, tuple(steps)
        self._failed = False
        self._watch = DirectoryWatch(directory.path, self._removed)
        self._repairing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """The server ends: what is removed from now on was removed by it."""
        self._watch.close()
        if self._repairing is not None:
            self._repairing.cancel()
            await asyncio.wait({self._repairing})

    def _removed(self) -> None:
        if self._repairing is None and not all((self._directory.path / name).exists() for name in NEEDED):
            self._repairing = asyncio.create_task(self._repair(), name="make the server's directory again")
            self._repairing.add_done_callback(self._repaired)

    async def _repair(self) -> None:
        try:
            self._directory.make_again()
            for step in self._steps:
                await step()
        except (DirectoryRefused, OSError) as error:
            if not self._failed:
                self._tell(NOT_MADE.format(path=self._directory.path, error=getattr(error, "strerror", None) or error))
            self._failed = True
            self._watch.soon(RETRY_SECONDS)
            return
        self._failed = False
        self._tell(MADE.format(path=self._directory.path))
        self._watch.look()

    def _repaired(self, done: asyncio.Task[None]) -> None:
        self._repairing = None
        if not done.cancelled() and done.exception() is not None:
            log.error("the server's directory could not be made again", exc_info=done.exception())

    def _tell(self, text: str) -> None:
        """Every agent, once; and whoever reads the server's log."""
        log.warning("%s", text)
        for kernel in self._registry.all():
            if kernel.life is not None and kernel.life.alive:
                kernel.journal.notice(kernel.life.process.process, now(), text, label=LABEL)
