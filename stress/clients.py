"""The remaining kinds of clients: one that moves between kernels, one whose server is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import Counter
from random import Random

from stress import truth
from stress.desks import Answer, Desk, OverStdio
from stress.truth import demand
from stress.workbench import Workbench
from tests.e2e.driving import COMMAND, PATIENCE, Lines, Place

#: Cells of one stdio server before it ends.
SERVED = 6


class Mover:
    """Moves between named kernels that it alone uses. One that it lets go may end: then the next is a new one."""

    def __init__(self, name: str, desk: Desk, chance: Random, did: Counter[str]) -> None:
        self.desk, self.chance, self.did = desk, chance, did
        self._names = [f"{name} desk {letter}" for letter in "abc"]
        #: Cells that each kernel has run, by its id.
        self._count: Counter[str] = Counter()
        self._at = ""

    async def open(self) -> None:
        pass

    async def step(self) -> None:
        name = self.chance.choice(self._names)
        source = "count = globals().get('count', 0) + 1; count, loommux.self.name"
        self.did["cell attaching"] += 1
        answer = await self.desk.call("run_cell", freeform=f"%%loommux --attach '{name}' --create\n{source}")
        kernel = answer.fields["kernel"]
        demand(kernel["name"] == name, f"it is not about {name}", answer)
        before = self._count[kernel["id"]]
        demand(name != self._at or before > 0, "the kernel has ended while its session was there", answer)
        self._told(name, answer, before)
        truth.about(answer, 1, before + 1)
        expected = f"({before + 1}, '{name}')\n"
        demand(answer.fields["result_text"] == expected, f"the result is not {expected!r}", answer)
        self._count[kernel["id"]] += 1
        self._at = name

    def _told(self, name: str, answer: Answer, before: int) -> None:
        binding = answer.fields["binding"]
        if name == self._at:
            demand(binding is None, "it was there already", answer)
            return
        how = f"attached; {before} earlier execution" if before else "opened"
        demand((binding or "").startswith(f"{name} ({how}"), f"it is not told: {how}", answer)


class Unlucky:
    """A client over stdio with a server of its own, which now and then is killed in the middle."""

    def __init__(self, name: str, place: Place, chance: Random, did: Counter[str]) -> None:
        self.name, self.place, self.chance, self.did = name, place, chance, did
        self._servers = 0

    async def open(self) -> None:
        pass

    async def step(self) -> None:
        """The life of one server."""
        self._servers += 1
        process = self._server()
        try:
            await self._life(process)
        finally:
            process.kill()
            await asyncio.to_thread(process.wait)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def _server(self) -> subprocess.Popen[bytes]:
        with self.place.errors.open("a") as errors:
            return subprocess.Popen(
                [*COMMAND, "--result-mode", "structured"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, cwd=self.place.workspace, env=os.environ | self.place.environment,
            )  # fmt: skip

    async def _life(self, process: subprocess.Popen[bytes]) -> None:
        lines = await Lines(process).open()
        bench = Workbench(f"{self.name}s{self._servers}", OverStdio(lines), self.chance, self.did, gives_up=False)
        await bench.open()
        for _ in range(self.chance.randint(1, SERVED)):
            await bench.step()
        if self.chance.random() < 0.5:
            self.did["servers killed"] += 1
            lines.begin_cell("import time; time.sleep(60)")
            await asyncio.sleep(self.chance.random())
            process.send_signal(signal.SIGKILL)
        else:
            self.did["servers ended"] += 1
            lines.stdin.close()
            code = await asyncio.to_thread(process.wait, PATIENCE)
            demand(code == 0, f"a server that ended in order left with {code}")
        left = await asyncio.to_thread(self.place.wait_until_empty)
        demand(not left, f"a server has left {left}")

    async def last(self) -> None:
        """A server that ends in order takes along what killed ones left."""
        with self.place.errors.open("a") as errors:
            process = await asyncio.create_subprocess_exec(
                *COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=errors, cwd=self.place.workspace, env=os.environ | self.place.environment,
            )  # fmt: skip
            code = await asyncio.wait_for(process.wait(), PATIENCE)
        demand(code == 0, f"the last server left with {code}")
