"""The server's keeper: started, warmed behind the first kernel or before it, replaced when it dies, ended.

Owns the keeper's process (or that of a dead server, once taken over) and makes provisioners
that fork from it. What it does stands in `keeper`; what is said to it in `client`.
Made by `server.host`; `processes.launcher` uses its provisioners.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from loommux_host.keeper.client import KeeperClient, KeeperGone, KeeperRefused
from loommux_host.keeper.provisioner import ForkedByKeeper
from loommux_host.processes.environment import kernel_environment
from loommux_host.processes.launcher import ENTER, WayIn, guarding
from loommux_host.processes.process_protocol import StartFailed
from loommux_host.processes.runtime_files import KernelFiles, ServerDirectory

log = logging.getLogger(__name__)

#: How long a keeper may take to import what it forks.
WARM_SECONDS = 30.0
#: How long one that was told to end may take.
END_SECONDS = 2.0
#: A keeper that could not be started is tried again after so long; until then kernels are spawned.
AGAIN_SECONDS = 10.0
#: Room for the names that forked processes are shown by, and for the mark of their kernel (`forked_child`).
TITLE_ROOM, MARK_ROOM = 400, 64
LOG = "keeper.log"


def obstacle(spawn: bool) -> str | None:
    """Why this server has no keeper; None when it has one."""
    if spawn:
        return "--spawn was given"
    if sys.platform != "linux":
        return "only Linux has what a keeper needs"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"this system has no pidfds ({error.strerror})"
    return None


class KeeperSupervisor:
    """The keeper of one server. `grace` is how long it keeps kernels for a successor, None for not at all."""

    def __init__(
        self,
        directory: ServerDirectory,
        python: Callable[[], Path],
        workspace: Path,
        grace: float | None,
        secrets: Iterable[str],
        way_in: WayIn | None = None,
    ) -> None:
        """`python` gives the kernels' interpreter, `way_in` how their commands begin; without it it is ours."""
        self._directory, self._python, self._workspace, self._grace = directory, python, workspace, grace
        self._way_in = way_in
        self._secrets = tuple(secrets)
        self._client: KeeperClient | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = asyncio.Lock()
        self._failed_at = float("-inf")
        self._ending = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def provisioner(self, files: KernelFiles, process: int) -> ForkedByKeeper:
        """What starts one process of a kernel."""
        made = ForkedByKeeper(self.client, handed_on=self._grace is not None)
        made.name = f"{files.kernel_id}/{process}"
        return guarding(made, files, process)

    def take_over(self, client: KeeperClient) -> None:
        """Have the keeper of a dead server, which has made us its owner, instead of one of our own."""
        self._client = client

    async def client(self) -> KeeperClient:
        """A keeper that is warm: the one there is, or a new one. Raises `KeeperGone`."""
        async with self._starting:
            if self._client is None or self._client.lost.is_set():
                await self._replace()
            client = self._client
        assert client is not None
        await client.until_warm(WARM_SECONDS)
        return client

    async def listen_again(self) -> None:
        """Somebody has removed the server's directory, which has been made again: be found by a successor there."""
        client = self._client
        if self._grace is not None and client is not None and not client.lost.is_set():
            with contextlib.suppress(KeeperGone, KeeperRefused):
                await client.listen_again(self._directory.lock)

    async def close(self) -> None:
        """End the keeper. The kernels have ended."""
        self._ending = True
        async with self._starting:
            client, self._client = self._client, None
            if client is not None:
                try:
                    async with asyncio.timeout(END_SECONDS):
                        await client.end()
                except TimeoutError:  # it was stopped; nobody is left for whom it would matter
                    if self._process is not None:
                        self._process.kill()
                client.close()
            await self._reap()

    async def _replace(self) -> None:
        loop = asyncio.get_running_loop()
        if self._ending or loop.time() - self._failed_at < AGAIN_SECONDS:
            raise KeeperGone("there is no keeper")
        python = self._python()
        environment = self._environment(python)
        try:
            words = await self._way_in(python, environment) if self._way_in else [sys.executable, str(ENTER)]
        except StartFailed as error:
            raise KeeperGone(f"the kernels' interpreter cannot keep any: {error}") from error
        if self._client is not None:
            log.warning("the keeper (pid %s) has died, and its kernels with it; a new one is started", self.pid)
            await self._reap()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                with ForkedByKeeper.guards.starting():
                    self._process = self._start(words, environment, theirs)
                    ForkedByKeeper.guards.add(self._process.pid)
            except OSError as error:
                ours.close()
                self._failed_at = loop.time()
                raise KeeperGone(f"no keeper could be started: {error}") from error
        self._client = KeeperClient(ours)

    def _start(self, way_in: list[str], environment: dict[str, str], theirs: socket.socket) -> subprocess.Popen[bytes]:
        grace = "" if self._grace is None else str(self._grace)
        held = (self._directory.lock,) if self._directory.lock >= 0 else ()
        words = [str(self._directory.path), str(theirs.fileno()), grace]
        words += [*map(str, held or ("",)), " " * TITLE_ROOM]
        log_file = os.open(self._directory.path / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return subprocess.Popen(
                [*way_in, "--keeper", *words],
                stdin=subprocess.DEVNULL, stdout=log_file, stderr=log_file, cwd=self._workspace,
                env=environment, pass_fds=(theirs.fileno(), *held), start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(log_file)

    def _environment(self, python: Path) -> dict[str, str]:
        """As the kernels', as far as it matters to an interpreter at its start; with room for a mark at its end."""
        made = kernel_environment(
            os.environ, python=python, programs=None, kernel_id="", kernel_name="", control_url=None,
            secrets=self._secrets,
        )  # fmt: skip
        for name in ("LOOMMUX_KERNEL_ID", "LOOMMUX_KERNEL_NAME"):
            del made[name]
        return made | {"LOOMMUX_KERNEL_ID": "-" * MARK_ROOM}

    async def _reap(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        try:
            await asyncio.to_thread(process.wait, END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
        ForkedByKeeper.guards.discard(process.pid)
