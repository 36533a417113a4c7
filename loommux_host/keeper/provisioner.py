"""A kernel's process that the server's keeper forks: `SpawnedByInit` with another beginning (Linux).

What is known of the process, and how it ends, is the same: init and guard report to a
socket of their own, whoever forked them. Where the keeper cannot, the process is spawned.
Called by `supervisor`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from loommux_host.keeper import client as keeper_client
from loommux_host.keeper.client import KeeperClient, KeeperGone, KeeperRefused, Kept
from loommux_host.processes.spawn import Guard, SpawnedByInit

log = logging.getLogger(__name__)

#: A keeper that comes to a request later than this part of the time that is waited for it leaves it.
PATIENCE = 0.8


class ForkedByKeeper(SpawnedByInit):
    """One kernel's process, forked by a keeper."""

    #: How the last one was started (``fork``, ``exec``, ``spawn``), and why not by a warm fork.
    mode: str = ""
    why: str | None = None
    #: What the keeper knows this process by.
    name: str = ""
    _client: KeeperClient | None = None

    def __init__(self, keeper: Callable[[], Awaitable[KeeperClient]], *, handed_on: bool) -> None:
        """`keeper` gives the keeper that is there now; `handed_on` says that it keeps it for a successor."""
        super().__init__()
        self._keeper, self._handed_on = keeper, handed_on

    async def _begin(self, cmd: list[str], facts: dict[str, str], **kwargs: Any) -> tuple[Guard, socket.socket]:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._client = await self._keeper()
                answer = await self._ask(self._client, cmd, ours, theirs, facts, **kwargs)
        except (KeeperGone, KeeperRefused) as error:
            ours.close()  # a keeper that comes to it later finds that nobody wants it any more
            log.warning("a kernel's process is spawned, not forked: %s", error)
            self._client, self.mode, self.why = None, "spawn", str(error)
            return await super()._begin(cmd, facts, **kwargs)
        except BaseException:
            ours.close()
            if self._handed_on and self._client is not None:
                await asyncio.shield(self._client.forget(self.name))  # with its copy gone, what was begun ends
            raise
        self.mode, self.why = answer["mode"], answer["why"]
        return ForkedGuard(answer["guard"]), ours

    async def _ask(
        self, client: KeeperClient, cmd: list[str], ours: socket.socket, theirs: socket.socket,
        facts: dict[str, str], **kwargs: Any,
    ) -> dict[str, Any]:  # fmt: skip
        numbers = [int(fd) for name in ("hold", "pass") for fd in facts[name].split(",") if fd]
        descriptors = [theirs.fileno(), kwargs["stdout"]]
        proof = -1
        try:
            if not self._handed_on:
                proof = os.pidfd_open(os.getpid())
                descriptors.append(proof)
            descriptors += numbers
            if self._handed_on:
                descriptors.append(ours.fileno())
            request = {
                "name": self.name,
                "facts": {key: str(value) for key, value in facts.items()},
                "command": cmd,
                "environment": kwargs["env"],
                "until": time.monotonic() + keeper_client.ANSWER_SECONDS * PATIENCE,
                "proof": not self._handed_on,
            }
            return await client.launch(request, descriptors)
        finally:
            if proof >= 0:
                os.close(proof)

    async def take_over(self, client: KeeperClient, kept: Kept, kernel_id: str, pid: int, init_pid: int) -> None:
        """Be the provisioner of a process that a keeper has handed to us as its new owner."""
        self._prepare(kernel_id)
        self._client, self.name = client, kept.name
        self.pid, self.init_pid = pid, init_pid
        if init_pid:
            self.guards.add(init_pid)
        self._started.set_result(None)
        self._guard = ForkedGuard(kept.guard)
        await self._attach(kept.sock)

    def let_go(self) -> None:
        """Its end was told, and not to us: have the guard go, which ends what there is to end."""
        self._tell("leave")

    def _reason(self) -> str | None:
        if self._client is not None and self._client.lost.is_set():
            return "the server's keeper of kernels, which had forked it, has died"
        return super()._reason()

    async def cleanup(self, restart: bool = False) -> None:
        """See `SpawnedByInit`; then nobody will take the process over."""
        was_there = self._guard is not None
        await super().cleanup(restart)
        if was_there and self._handed_on and self._client is not None:
            await self._client.forget(self.name)


class ForkedGuard:
    """A guard that is not our child, with the methods of ``Popen`` that are used of it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._process = os.pidfd_open(pid)
        except OSError:
            self._process = -1  # ended already

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; the code is not known. Raises ``subprocess.TimeoutExpired``."""
        if self._process >= 0:
            poll = select.poll()
            poll.register(self._process, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired("guard", timeout or 0)
            os.close(self._process)
            self._process = -1
        with suppress(ChildProcessError):  # ours only when its keeper has died before it
            os.waitpid(self.pid, os.WNOHANG)
        return 0

    def kill(self) -> None:
        """End it."""
        if self._process >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
