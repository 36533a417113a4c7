"""Stands in for a server: starts stand-in kernels with the real launcher, then waits to be killed.

``python standin_server.py {"kernels": [[ACT...]...], "subreaper": bool, "clean": bool, "retire": bool,
"keeper": bool, "grace": SECONDS}`` prints one JSON line per kernel that is ready, one per death,
and ``{"cleaned": true}`` and ``{"retired": true}`` when asked for that.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loommux_host.keeper.supervisor import KeeperSupervisor
from loommux_host.processes.launcher import KernelProcess, Launcher, become_subreaper, clean_up_after_dead_servers
from loommux_host.processes.runtime_files import KernelFiles, create_server_directory

STANDIN = Path(__file__).parent.parent / "standin_kernel.py"


class Settings:
    records_budget_bytes = 1 << 30


def say(**facts: object) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


async def serve(job: dict[str, object], acts: list[list[str]]) -> None:
    if job.get("subreaper"):
        become_subreaper()
    if job.get("clean"):
        await asyncio.to_thread(clean_up_after_dead_servers)
        say(cleaned=True)
    server = create_server_directory()
    # Ids of their own: what carries a dead kernel's id is ended wherever it runs, also beside another test.
    files = [KernelFiles(server, str(uuid.uuid4()), f"k {i}") for i in range(len(acts))]
    grace: Any = job.get("grace")
    keeping = (
        KeeperSupervisor(server, lambda: Path("/no/kernel"), Path("/tmp"), grace, ()) if job.get("keeper") else None
    )
    retire = bool(job.get("retire"))
    await asyncio.gather(*(run(f, a, keeping, retire=retire) for f, a in zip(files, acts, strict=True)))
    await asyncio.Event().wait()


async def run(files: KernelFiles, acts: list[str], keeping: KeeperSupervisor | None, *, retire: bool) -> None:
    def command(launch: Path) -> list[str]:
        return [sys.executable, "-I", "-S", str(STANDIN), str(launch), *acts]

    launcher = Launcher(Settings(), command=command, provisioner=keeping.provisioner if keeping is not None else None)
    process: KernelProcess = await launcher.start(files, "k", 1, Path("/tmp"), "session")
    pids = files.directory / "1" / "pids"
    say(
        id=files.kernel_id,
        kernel=process.pid,
        init=process.init_pid,
        guard=process._provisioner._guard.pid,  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]
        keeper=keeping.pid if keeping is not None else None,
        directory=str(files.directory),
        connection=str(files.connection_file),
        started=[int(line) for line in pids.read_text().split()] if pids.exists() else [],
    )
    say(died=asdict(await process.wait()))
    if retire:
        await launcher.retire(files)
        say(retired=True)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    asyncio.run(serve(given, given["kernels"]))
