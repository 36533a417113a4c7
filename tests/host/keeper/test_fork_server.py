"""The keeper by itself: what it forks and when it does not, who owns it, what it keeps for whom."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from loommux_host.keeper.client import KeeperClient, KeeperGone, KeeperRefused
from loommux_host.keeper.provisioner import ForkedByKeeper
from loommux_host.keeper.supervisor import KeeperSupervisor
from loommux_host.processes.kernel_process import KernelProcess
from loommux_host.processes.launcher import Launcher
from loommux_host.processes.runtime_files import KernelFiles, ServerDirectory, create_server_directory
from tests.host.real_processes import Settings, standin

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a keeper")]


class Nest:
    """A server's directory, its keeper, and the stand-in kernels that it keeps."""

    def __init__(self, server: ServerDirectory, workspace: Path, grace: float | None) -> None:
        self.server, self.workspace = server, workspace
        self.keeping = KeeperSupervisor(server, lambda: Path("/no/kernel"), workspace, grace, ())
        self.made: list[ForkedByKeeper] = []

    def provisioner(self, files: KernelFiles, process: int) -> ForkedByKeeper:
        self.made.append(self.keeping.provisioner(files, process))
        return self.made[-1]

    async def start(self, *acts: str) -> tuple[KernelProcess, ForkedByKeeper, Callable[[], object]]:
        launcher = Launcher(Settings(), command=standin(*acts), provisioner=self.provisioner)
        files = KernelFiles(self.server, uuid.uuid4().hex, "k")
        process = await launcher.start(files, "k", 1, self.workspace, "session")
        return process, self.made[-1], lambda: launcher.retire(files)


@pytest.fixture(params=[60.0])
async def nest(
    request: pytest.FixtureRequest, private_jupyter: Path, short_temporary: Path, tmp_path: Path
) -> AsyncIterator[Nest]:
    server = create_server_directory()
    before, fds = {p.pid for p in psutil.Process().children(recursive=True)}, psutil.Process().num_fds()
    made = Nest(server, tmp_path, request.param)
    yield made
    await made.keeping.close()
    server.remove()
    left = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
    assert not left
    assert psutil.Process().num_fds() <= fds


async def test_a_keeper_has_one_owner_at_a_time(nest: Nest) -> None:
    first = await nest.keeping.client()
    with pytest.raises(KeeperRefused, match="owned"):
        await KeeperClient.take_over(nest.server.path)
    first.close()
    tries = await asyncio.gather(*(KeeperClient.take_over(nest.server.path) for _ in range(4)), return_exceptions=True)
    won = [t for t in tries if isinstance(t, KeeperClient)]
    assert len(won) == 1, tries
    assert sum(isinstance(t, KeeperRefused) for t in tries) == 3
    await won[0].end()
    won[0].close()


async def test_without_a_keeper_there_is_none_to_take_over(nest: Nest) -> None:
    with pytest.raises(KeeperGone, match="no keeper listens"):
        await KeeperClient.take_over(nest.server.path)
