"""``python -m stress.watchdog URL PLAIN_URL PID``: asks both at the same moments until its input ends.

A process of its own, so that what the clients do cannot hold it up. Two things show
what the machine itself costs at that moment: a plain app that is asked as well, and
how long the server, process PID, was ready to run and had no processor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx2

INTERVAL = 0.1
#: Seconds within which a server has to answer, on a machine of its own.
BOUND = 0.5


@dataclass(frozen=True)
class Pulse:
    """Seconds of the answers, the plain app's at the same moments, and the server's without a processor meanwhile."""

    server: list[float]
    plain: list[float]
    starved: list[float]

    def late(self) -> int:
        """Answers that the machine does not excuse: later than the bound by more than it took from either app."""
        own = [taken - starved for taken, starved in zip(self.server, self.starved, strict=True)]
        return sum(seconds > BOUND + max(self.plain) for seconds in own)

    def summary(self) -> str:
        def figures(seconds: list[float]) -> str:
            ordered = sorted(seconds)
            over = sum(s > BOUND for s in seconds)
            p99 = ordered[int(0.99 * (len(ordered) - 1))]
            return f"p99 {p99 * 1000:.0f} ms, worst {ordered[-1] * 1000:.0f} ms, {over} over {BOUND * 1000:.0f} ms"

        return (
            f"/api/health asked {len(self.server)} times: {figures(self.server)}; "
            f"a plain uvicorn app at the same moments: {figures(self.plain)}; "
            f"{self.late()} late beyond what the machine excuses"
        )


def starved(pid: int) -> float:
    """Seconds in which the process's main thread has waited for a processor so far; 0 where nobody counts them."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


async def watch(url: str, plain: str, pid: int) -> None:
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    pulse = Pulse([], [], [])
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as http:

        async def ask(where: str) -> float:
            began = time.monotonic()
            answer = await http.get(where)
            assert answer.status_code == 200, answer.text
            return time.monotonic() - began

        while not ended.done():
            before = starved(pid)
            server, bare = await asyncio.gather(ask(url), ask(plain))
            pulse.server.append(server)
            pulse.plain.append(bare)
            pulse.starved.append(starved(pid) - before)
            await asyncio.wait({ended}, timeout=INTERVAL)
    print(json.dumps([pulse.server, pulse.plain, pulse.starved]))


@contextlib.asynccontextmanager
async def watching(base: str, pid: int) -> AsyncIterator[list[Pulse]]:
    """A watchdog during the block; the list has what it saw afterwards."""
    seen: list[Pulse] = []
    plain = await asyncio.create_subprocess_exec(sys.executable, "-m", "stress.plain", stdout=PIPE)
    dog: Process | None = None
    try:
        assert plain.stdout is not None
        port = int(await plain.stdout.readline())
        dog = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "stress.watchdog", f"{base}/api/health", f"http://127.0.0.1:{port}/", str(pid),
            stdin=PIPE, stdout=PIPE,
        )  # fmt: skip
        yield seen
        said, _ = await asyncio.wait_for(dog.communicate(b""), 90)
        seen.append(Pulse(*json.loads(said)))
    finally:
        for process in (plain, dog):
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1], sys.argv[2], int(sys.argv[3])))
