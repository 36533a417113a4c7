"""Whatever is removed, filled, stopped or killed, at whatever moment: what is told of a cell is what happened.

Each cut is one seed: a cell with an effect outside of everything that is cut, something that happens
to its server at a random moment, and what is then told of the cell, against the effect. ``make cuts``
tries 200; SEED=N in the environment repeats one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import psutil
import pytest
from mcp_types import CallToolResult

from tests.e2e.driving import Agent, Place, serving, text_of, until
from tests.e2e.fixtures import checked
from tests.e2e.http_driving import Session, Web, web
from tests.e2e.oracle import is_alive, keeper_of, kernel_of
from tests.e2e.trees import below

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="the faults are Linux's")]

SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else range(int(os.environ.get("CUTS", "8")))
DISK = 24 << 20
#: What a text says that tells of a cell as not run.
NOT_RUN = re.compile(r"[Nn]othing was (run|done)|was not run|never ran|is not run|will not be run")
#: What status lists of the cell when it has run to its end.
COMPLETED = re.compile(r"In \[\d+\] · completed · .*%%loommux --wait")
#: Cells; each first leaves its mark.
CELLS = {
    "quick": "",
    "prints": "print('y' * 50000)",
    "image": "from PIL import Image; display(Image.new('RGB', (20, 20)))",
    "takes a while": "import time\nfor i in range(20): print(i); time.sleep(0.02)",
    "child": "import os; os.system('seq 1 3000')",
    "dies": "import os, signal; print('last words'); os.kill(os.getpid(), signal.SIGKILL)",
    "removes": "import shutil; shutil.rmtree({temporary!r}, ignore_errors=True); print('z' * 20000)",
}


@dataclass
class Cut:
    """One server that something happens to."""

    place: Place
    random: random.Random
    agent: Agent
    kernel: psutil.Process
    #: The server, when it is one over HTTP.
    server: Web | None = None
    stopped: list[psutil.Process] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    @property
    def mark(self) -> Path:
        return self.place.workspace / "mark"

    def marks(self) -> int:
        return len(self.mark.read_text()) if self.mark.exists() else 0

    # -- what happens ---------------------------------------------------------------

    def nothing(self) -> None: ...

    def removes_the_store(self) -> None:
        self._unlink("records.sqlite", *self.random.choice([("records.sqlite-wal", "records.sqlite-shm"), ()]))

    def removes_the_log_of_the_store(self) -> None:
        self._unlink("records.sqlite-wal")

    def removes_the_notes(self) -> None:
        self._unlink("starting", "unrecorded")

    def removes_a_directory(self) -> None:
        shutil.rmtree(self.random.choice(sorted(p for p in below(self.place.temporary) if p.is_dir())), True)

    def empties_the_directory(self) -> None:
        for path in self.place.temporary.iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()

    def fills_the_disk(self) -> None:
        with contextlib.suppress(OSError), (self.place.temporary / "filler").open("ab", buffering=0) as file:
            if shutil.disk_usage(self.place.temporary).total <= DISK:  # else nobody was allowed to mount a small one
                while True:
                    file.write(bytes(4096))

    def kills_the_kernel(self) -> None:
        self._kill(self.kernel)

    def kills_the_init(self) -> None:
        self._kill(self.kernel.parents()[0])

    def kills_the_guard(self) -> None:
        self._kill(self.kernel.parents()[1])

    def kills_the_keeper(self) -> None:
        if (keeper := keeper_of(self.kernel)) is not None:
            self._kill(keeper)

    def stops_the_kernel(self) -> None:
        self.kernel.suspend()
        self.stopped.append(self.kernel)

    def act(self) -> None:
        acts: list[Callable[[], None]] = [
            self.nothing, self.removes_the_store, self.removes_the_log_of_the_store, self.removes_the_notes,
            self.removes_a_directory, self.empties_the_directory, self.fills_the_disk, self.kills_the_kernel,
            self.kills_the_init, self.kills_the_guard, self.kills_the_keeper, self.stops_the_kernel,
        ]  # fmt: skip
        for act in self.random.sample(acts, self.random.choice([1, 1, 2])):
            self.done.append(act.__name__)
            with contextlib.suppress(psutil.Error, OSError, IndexError):
                act()

    def _unlink(self, *names: str) -> None:
        for path in below(self.place.temporary):
            if path.name in names:
                path.unlink(missing_ok=True)

    def _kill(self, process: psutil.Process) -> None:
        process.send_signal(signal.SIGKILL)


@pytest.fixture
def small(tmp_path: Path, private_jupyter: Path) -> Iterator[Place]:
    """A place whose temporary directory is a small disk, where that is allowed."""
    disk = Path(tempfile.mkdtemp(prefix="lm-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)]
    mounted = os.getuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        with checked(tmp_path, private_jupyter) as place:
            own, place.temporary, place.errors = place.temporary, disk, tmp_path / "stderr"
            yield place
            (disk / "filler").unlink(missing_ok=True)
            place.temporary = own
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", disk], check=True)
        shutil.rmtree(disk)


@asynccontextmanager
async def cut_at(place: Place, seed: int) -> AsyncIterator[Cut]:
    chosen = random.Random(seed)
    async with contextlib.AsyncExitStack() as stack:
        server = None
        if chosen.random() < 0.3:
            server = await stack.enter_async_context(web(place))
            agent = await stack.enter_async_context(server.agent())
            await agent.run("%%loommux --attach lab --create\n0")
        else:
            agent = await stack.enter_async_context(serving(place))
            await agent.run("0")
        _, kernel = await kernel_of(agent)
        cut = Cut(place, chosen, agent, kernel, server)
        try:
            yield cut
        finally:
            for process in cut.stopped:
                with contextlib.suppress(psutil.Error):
                    process.resume()


async def told(cut: Cut, source: str) -> CallToolResult | None:
    """What the call is answered while it happens; None for one that was cancelled, or lost its connection."""
    chosen = cut.random
    if cut.server is not None and chosen.random() < 0.4:
        await _dropped(cut, cut.server, source)
        return None
    moment = chosen.choice(["before", "meanwhile", "meanwhile", "when it has begun"])
    if moment == "before":
        cut.act()
    call = asyncio.create_task(cut.agent.call("run_cell", freeform=source))
    if moment == "meanwhile":
        await anyio.sleep(chosen.random() * 0.03)
        cut.act()
    elif moment == "when it has begun":
        with anyio.move_on_after(5):
            await until(lambda: asyncio.sleep(0, bool(cut.marks()) or call.done()))
        cut.act()
    cut.done.insert(0, moment)
    if chosen.random() < 0.15:
        cut.done.append("cancels the call")
        call.cancel()
        await asyncio.wait({call})
        return None
    return await call


async def _dropped(cut: Cut, server: Web, source: str) -> None:
    """Send the cell, and lose the connection while it is on its way."""
    async with server.http() as http:
        session = await Session.open(http)
        await session.cell("%%loommux --attach lab\n0")
        call = asyncio.create_task(session.cell(source))
        await anyio.sleep(cut.random.random() * 0.05)
        if cut.random.random() < 0.5:
            cut.act()
        call.cancel()
        await asyncio.wait({call})
    cut.done.append("drops the connection")


async def settled(cut: Cut) -> list[str]:
    """Let everything go on until the kernel takes cells again; what was told meanwhile, refusals included."""
    texts: list[str] = []
    for process in cut.stopped:
        with contextlib.suppress(psutil.Error):
            process.resume()
    (cut.place.temporary / "filler").unlink(missing_ok=True)

    async def takes_cells() -> bool:
        for tool, more in (("status", {}), ("wait", {"timeout_seconds": 1}), ("run_cell", {"freeform": "0"})):
            result = await cut.agent.call(tool, **more)
            texts.append(f"{tool}: {text_of(result)}")
        return not result.is_error

    await until(takes_cells)
    return texts


@pytest.mark.case("N03", "X08", "X11")
@pytest.mark.parametrize("seed", SEEDS)
async def test_what_is_told_of_a_cell_is_what_happened(small: Place, seed: int) -> None:
    async with cut_at(small, seed) as cut:
        kind = cut.random.choice(list(CELLS))
        rest = CELLS[kind].format(temporary=str(small.temporary))
        wait = cut.random.choice([0.05, 0.5, 10])
        header = f"%%loommux --wait {wait} --silence {wait}"
        source = f"{header}\nwith open({str(cut.mark)!r}, 'a') as mark_: _ = mark_.write('k')\n{rest}"
        result = await told(cut, source)
        text = text_of(result) if result is not None else "(cancelled)"
        later = await settled(cut)
        ran = cut.marks()
        story = f"seed {seed}: {kind}, {cut.done}\n{text}\nlater: {later}\nmarks: {ran}\n{small.log()}"
        assert ran <= 1, story
        assert not any("never ran" in one for one in later), story
        if any(COMPLETED.search(one) for one in later):
            assert ran == 1, story
        if result is None:
            return
        if result.is_error:
            assert not (ran and NOT_RUN.search(text)), story
            assert ran == 0 or "not known" in text, story
        elif re.search(r"^Running, ", text, re.MULTILINE):
            assert ran or not is_alive(cut.kernel), story
        elif not re.search(r"^Killed: ", text, re.MULTILINE):  # which may have come before its first line
            assert ran == 1, story
