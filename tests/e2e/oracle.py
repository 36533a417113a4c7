"""What really happened: read from the system itself, never from what a server says."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

import psutil

from tests.e2e.driving import Agent


async def kernel_of(agent: Agent) -> tuple[int, psutil.Process]:
    """The number of the kernel's process, and that process."""
    found = re.search(r"process (\d+), pid (\d+)", await agent.text("status"))
    assert found is not None
    return int(found[1]), psutil.Process(int(found[2]))


async def living_kernel_of(agent: Agent) -> tuple[int, psutil.Process]:
    """The same, of a process that is started if there is none."""
    await agent.run("None")
    return await kernel_of(agent)


def started_by(kernel: psutil.Process) -> set[psutil.Process]:
    """Everything alive that a kernel has started, whoever its parent is now: orphans come to the init."""
    init = kernel.parent()
    assert init is not None
    return {p for p in init.children(recursive=True) if p != kernel and is_alive(p)}


def server_of(kernel: psutil.Process) -> psutil.Process:
    """The server, above the kernel's init, its guard and, where there is one, the keeper."""
    above = kernel.parents()[2]
    server = above if keeper_of(kernel) is None else above.parent()
    assert server is not None
    assert "loommux" in " ".join(server.cmdline())
    return server


def keeper_of(kernel: psutil.Process) -> psutil.Process | None:
    """The keeper that forked the kernel, if one did."""
    above = kernel.parents()[2]
    return above if above.name() == "loommux-keeper" else None


def descriptors(process: psutil.Process) -> int:
    """How many it has; 0 of a server whose tests do not run as root, to whom alone it is open."""
    with contextlib.suppress(psutil.AccessDenied):
        return process.num_fds()
    return 0


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; a pid that another process has now is not it."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def recorded(store: Path, query: str) -> list[tuple[object, ...]]:
    """What the record store itself holds."""
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as database:
        return database.execute(query).fetchall()
