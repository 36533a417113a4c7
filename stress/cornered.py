"""One client over stdio whose server lives at its limits, in turn and together: descriptors, processes, disk, helpers.

As root its server is an account of its own with few processes, and its files lie on a small disk; otherwise
only what needs no such rights is tried. Every call has to be answered, a cell that sleeps ends by an interrupt,
variables last until a restart, and when there is room again everything works as before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import psutil

from stress.truth import demand
from tests.e2e.driving import COMMAND, Lines, Place

#: What the account may have, and how large its disk is.
PROCESSES, DESCRIPTORS, DISK_BYTES = 96, 200, 24 << 20
#: The start of each process's namespace.
BEGIN = """\
import os, random, subprocess, time
n, files, programs = 0, [], []
words = "the quick brown fox jumps over some lazy dog while thinking about other matters".split()"""
OPEN_ALL = """\
try:
    while True: files.append(open('/dev/null'))
except OSError as error: print(error.strerror)"""
START_ALL = """\
try:
    while len(programs) < 200: programs.append(subprocess.Popen(['sleep', '1000']))
except OSError as error: print(error.strerror)"""
FREE = """\
files.clear()
for program in programs: program.kill()
for program in programs: program.wait()
programs.clear()"""
PROSE = "for _ in range(300): print(*random.choices(words, k=12))"
SLEEP = "%%loommux --wait 0.2\nn += 1\ntime.sleep(100)"
HELPERS = ("keeper", "guard", "init", "counting")


class Cornered:
    """See the module; `place` is where its server runs."""

    def __init__(self, place: Place, chance: Random, did: Counter[str]) -> None:
        self._place, self._chance, self._did = place, chance, did
        self._account = _account(place)
        self._filler = place.temporary / "filler"
        self._cells = 0
        self._stopped: list[psutil.Process] = []
        self._server: Lines | None = None

    async def open(self) -> None:
        limits = ["prlimit", f"--nofile={DESCRIPTORS}:4096"] if shutil.which("prlimit") else []
        with self._place.errors.open("a") as errors:
            process = subprocess.Popen(  # noqa: ASYNC220
                [*self._account, *limits, *COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                cwd=self._place.workspace, env=os.environ | self._place.environment,
            )  # fmt: skip
        self._server = await Lines(process).open()
        await self._begin()

    async def _begin(self) -> None:
        await self._cell(BEGIN)
        self._cells = 0

    async def step(self) -> None:
        """Some limits are reached, everything is tried, and there is room again."""
        limits = {"descriptors": self._open_all, "a helper": self._stop_helper}
        if self._account:
            limits |= {"processes": self._start_all, "the disk": self._fill_disk}
        for name in self._chance.sample(list(limits), self._chance.randint(1, len(limits))):
            self._did[f"at the limit of {name}"] += 1
            await limits[name]()
            await self._everything()
        self._filler.unlink(missing_ok=True)
        for process in self._stopped:
            with contextlib.suppress(psutil.Error):
                process.resume()
        self._stopped.clear()
        if self._chance.random() < 0.3:
            said = await self._call("restart")
            demand(said.startswith("restarted: "), f"the kernel is not restarted: {said}")
            await self._begin()
        else:
            await self._cell(FREE)
        await self._counted()
        said = await self._cell("!echo a program")
        demand(said.endswith("\na program"), f"a program says nothing: {said}")

    async def last(self) -> None:
        """Its client leaves with the server at its limits."""
        if self._server is None:
            return
        await self._open_all()
        await self._stop_helper()
        self._server.stdin.close()
        code = await self._server.exit_code()
        demand(code == 0, f"the server at its limits ended with {code}")
        self._filler.unlink(missing_ok=True)

    # -- the limits --------------------------------------------------------------------

    async def _open_all(self) -> None:
        await self._cell(OPEN_ALL)

    async def _start_all(self) -> None:
        await self._cell(START_ALL)

    async def _fill_disk(self) -> None:
        with self._filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))

    async def _stop_helper(self) -> None:
        for process in await self._helpers():
            with contextlib.suppress(psutil.Error):
                process.suspend()
                self._stopped.append(process)

    async def _helpers(self) -> list[psutil.Process]:
        """One of those beside the server; none when it is not there."""
        assert self._server is not None
        wanted = self._chance.choice(HELPERS)
        with contextlib.suppress(psutil.Error):
            server = psutil.Process(self._server.process.pid)
            kernel = psutil.Process(int((await self._call("status")).partition("pid ")[2].partition(",")[0]))
            init = kernel.parent()
            guard = init.parent() if init else None
            others = [p for p in server.children(recursive=True) if wanted in " ".join(p.cmdline())]
            found = {"init": [init], "guard": [guard]}.get(wanted, others)
            return [p for p in found if p is not None][:1]
        return []

    # -- what is tried -------------------------------------------------------------------

    async def _everything(self) -> None:
        await self._counted()
        said = await self._cell(PROSE)
        whole = len(said.splitlines()) >= 301
        demand(whole or "Output omitted: " in said, f"the prose is neither there nor omitted: {said[:500]}")
        for tool, more in (
            ("read_output", {}),
            ("search_output", {"query": "fox"}),
            ("execution_status", {}),
            ("wait", {}),
        ):
            await self._call(tool, **more)
        self._cells += 1
        said = await self._cell(SLEEP)
        demand("\nRunning, silent for " in said, f"a cell that sleeps does not run: {said}")
        said = await self._call("interrupt")
        demand(said.startswith("interrupted: "), f"it is not interrupted: {said}")
        await self._counted()

    async def _counted(self) -> None:
        self._cells += 1
        said = await self._cell("n += 1; n")
        demand(f": {self._cells}" in said, f"it is not {self._cells}: {said}")

    async def _cell(self, source: str) -> str:
        self._did["cell at a limit"] += 1
        return await self._call("run_cell", freeform=source)

    async def _call(self, tool: str, **arguments: Any) -> str:
        assert self._server is not None
        answer = await asyncio.wait_for(self._server.ask("tools/call", {"name": tool, "arguments": arguments}), 60)
        demand("result" in answer, f"{tool} has no result: {answer}")
        text = "".join(block.get("text", "") for block in answer["result"]["content"])
        demand("KernelFault" not in text, f"the kernel failed: {text}")
        return text


def _account(place: Place) -> list[str]:
    """How a command begins that runs as an account with few processes; nothing where that cannot be."""
    if sys.platform != "linux" or os.geteuid() or not (shutil.which("setpriv") and shutil.which("prlimit")):
        return []
    user = str(200_000 + os.getpid())
    for directory in (place.temporary, place.runtime, place.workspace):
        os.chown(directory, int(user), int(user))
    rights = ["--inh-caps", "-all,+dac_override", "--ambient-caps", "-all,+dac_override"]
    return [
        "setpriv", "--reuid", user, "--regid", user, "--clear-groups", *rights, "prlimit", f"--nproc={PROCESSES}",
    ]  # fmt: skip


@contextlib.contextmanager
def cornered_place() -> Iterator[Place]:
    """Its directories; the temporary one is a small disk where that may be made."""
    workspace, disk, runtime = (Path(tempfile.mkdtemp(prefix="lm-")) for _ in range(3))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk]
    mounted = sys.platform == "linux" and not os.geteuid() and subprocess.run(mount, check=False).returncode == 0
    place = Place(workspace, disk, runtime)
    place.errors = workspace / "stderr"
    try:
        yield place
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", disk], check=False)
        for directory in (workspace, disk, runtime):
            shutil.rmtree(directory, ignore_errors=True)
