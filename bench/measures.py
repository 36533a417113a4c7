"""The measurements: each interleaves the floor and loommux in one run and gives rows with ratios.

Absolute times differ from machine to machine and hour to hour; only ratios within one run are compared.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from bench.floor import PlainKernel
from bench.ours import Server

clock = time.perf_counter
LONG = 280.0


@dataclass(frozen=True)
class Row:
    """One line of the table. `bound` is the highest ratio (with a floor) or value (without) that is allowed."""

    name: str
    ours: float
    floor: float | None = None
    bound: float | None = None
    unit: str = "s"

    def ratio(self) -> float | None:
        return self.ours / self.floor if self.floor else None

    def missed(self) -> bool:
        value = self.ratio() if self.floor else self.ours
        return self.bound is not None and value is not None and value > self.bound

    def cells(self) -> tuple[str, ...]:
        ratio = self.ratio()
        return (
            self.name,
            "–" if self.floor is None else self._show(self.floor),
            self._show(self.ours),
            "–" if ratio is None else f"{ratio:.2f}",
            "–" if self.bound is None else (f"{self.bound:g}" if self.floor else self._show(self.bound)),
        )

    def _show(self, value: float) -> str:
        if self.unit != "s":
            return f"{value:.{0 if value == int(value) else 1}f} {self.unit}".rstrip()
        return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"


def timed(work: Callable[[], object]) -> float:
    begin = clock()
    work()
    return clock() - begin


async def atimed(work: Awaitable[object]) -> float:
    begin = clock()
    await work
    return clock() - begin


async def cold_start() -> list[Row]:
    """From the process's start to the result of ``1+1``."""
    floor, ours = [], []
    for _ in range(5):
        begin = clock()
        with PlainKernel() as plain:
            plain.run("1+1")
            floor.append(clock() - begin)
        begin = clock()
        async with Server() as server:
            assert "2" in await server.run("1+1")
            ours.append(clock() - begin)
    return [Row("cold start to the result of 1+1", statistics.median(ours), statistics.median(floor), 2.0)]


async def warm_cell() -> list[Row]:
    """``1`` on warm kernels, in blocks by turns."""
    floor, ours = [], []
    with PlainKernel() as plain:
        async with Server() as server:
            for _ in range(10):
                plain.run("1")
                await server.run("1")
            for _ in range(30):
                floor += [timed(lambda: plain.run("1")) for _ in range(10)]
                ours += [await atimed(server.run("1")) for _ in range(10)]
    return [Row("warm cell `1` over stdio, median", statistics.median(ours), statistics.median(floor), 1.0)]


async def _observe(server: Server, number: int, name: str) -> list[Row]:
    took: dict[str, list[float]] = {"status": [], "execution_status": [], "read_output": []}
    for _ in range(15):
        took["status"].append(await atimed(server.call("status")))
        took["execution_status"].append(await atimed(server.call("execution_status", execution=number)))
        took["read_output"].append(await atimed(server.call("read_output", execution=number, line_range="-5:")))
    bounds = {"status": 0.010, "execution_status": 0.010, "read_output": 0.200}
    return [Row(f"{tool} while {name}, median", statistics.median(t), None, bounds[tool]) for tool, t in took.items()]


async def observation() -> list[Row]:
    """Looking at a kernel that cannot answer itself."""
    loop = "print('before')\nwhile True: pass"
    native = "print('before')\nimport ctypes; ctypes.PyDLL(None).sleep(10)"
    rows: list[Row] = []
    async with Server() as server:
        await server.run(loop, wait=1)
        rows += await _observe(server, 1, "Python loops")
        await server.call("interrupt", execution=1)
        await server.run(native, wait=1)
        rows += await _observe(server, 2, "C holds the interpreter")
    return rows


OUTPUT = {
    "a million lines, one by one": "for i in range(1_000_000): print('line', i)",
    "a million lines in 1,000 prints": (
        "for c in range(1000): print('\\n'.join(f'line {i}' for i in range(c * 1000, c * 1000 + 1000)))"
    ),
    "one line of 50 MB": "print('y' * 50_000_000)",
}


async def output() -> list[Row]:
    """Output at scale: time, memory, reading it afterwards."""
    rows: list[Row] = []
    for name, source in OUTPUT.items():
        floor, ours, grown, host, tails, searches = [], [], [], [], [], []
        for _ in range(5):
            with PlainKernel() as plain:
                plain.run("1")
                floor.append(timed(lambda p=plain, s=source: p.run(s, LONG)))
            async with Server() as server:
                kernel = await server.kernel_process()
                before, host_before = kernel.memory_info().rss, server.process.memory_info().rss
                ours.append(await atimed(server.run(source, LONG)))
                grown.append((kernel.memory_info().rss - before) / 1e6)
                host.append((server.process.memory_info().rss - host_before) / 1e6)
                tails.append(await atimed(server.call("read_output", line_range="-20:", max_chars=200)))
                searching = server.call("search_output", query="line 70000\\d", query_mode="regex", max_chars=200)
                searches.append(await atimed(searching))
        rows.append(Row(f"{name}, best of 5", min(ours), min(floor), 1.1))
        rows.append(Row(f"{name}: kernel memory", min(grown), None, 64, "MB"))
        rows.append(Row(f"{name}: host memory", min(host), None, 16, "MB"))
        rows.append(Row(f"{name}: last 20 lines", statistics.median(tails), None, 0.050))
        rows.append(Row(f"{name}: a regex over all", statistics.median(searches), None, 1.0))
    return rows


ALTERNATING = """import sys
for i in range(50_000):
    print(i)
    print(i, file=sys.stderr)
"""


async def alternating() -> list[Row]:
    """100,000 lines by turns on stdout and stderr, beside the same on stdout alone."""
    both, one = [], []
    async with Server() as server:
        for _ in range(5):
            one.append(await atimed(server.run(ALTERNATING.replace(", file=sys.stderr", ""), LONG)))
            both.append(await atimed(server.run(ALTERNATING, LONG)))
    return [Row("100,000 lines by turns (floor: on one stream)", min(both), min(one), 1.3)]


BESIDE_A_LOOP = """import threading, time
from IPython.display import display
def tell():
    for _ in range(500):
        display({"text/plain": repr(time.time())}, raw=True)
        time.sleep(0.01)
teller = threading.Thread(target=tell)
teller.start()
while teller.is_alive(): pass
"""


def _delays(file: str, count: int) -> list[float]:
    """Seconds from each display's call to its arrival; it leaves the kernel after it was recorded."""
    connection: dict[str, Any] = json.loads(Path(file).read_text())
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.subscribe(b"")
        joint = "-" if connection["transport"] == "ipc" else ":"
        socket.connect(f"{connection['transport']}://{connection['ip']}{joint}{connection['iopub_port']}")
        delays: list[float] = []
        while len(delays) < count and socket.poll(20_000):
            frames = socket.recv_multipart()
            if json.loads(frames[-4])["msg_type"] == "display_data":
                delays.append(time.time() - float(json.loads(frames[-1])["data"]["text/plain"]))
        return sorted(delays)


async def displays() -> list[Row]:
    """100 displays a second beside a busy loop: from the call until it is recorded and told."""
    async with Server() as server:
        await server.run("1")
        found = re.search(r"--existing (\S+)", await server.call("status"))
        assert found
        listening = asyncio.create_task(asyncio.to_thread(_delays, found[1], 500))
        await asyncio.sleep(0.5)
        await server.run(BESIDE_A_LOOP, LONG)
        delays = await listening
    assert len(delays) == 500, f"{len(delays)} of 500 displays arrived"
    return [Row("a display beside a busy loop, 99th percentile", delays[494], None, 0.050)]


FORWARDED = {
    "100,000 lines": "for i in range(100_000): print('line', i)",
    "20,000 redraws": "import sys\nfor i in range(20_000): sys.stdout.write(f'\\r{i}/20000'); sys.stdout.flush()",
    "1": "1",
}


async def forwarding() -> list[Row]:
    """A cell that runs in a child kernel, beside the same cell run directly, by turns."""
    rows = []
    async with Server() as server:
        await server.run("%%loommux --wait 60 --kernel child\n1")
        for name, source in FORWARDED.items():
            direct, through = [], []
            for _ in range(5):
                direct.append(await atimed(server.run(source, LONG)))
                header = f"%%loommux --wait {LONG:g} --silence {LONG:g} --kernel child\n"
                through.append(await atimed(server.run(header + source)))
            bound = None if source == "1" else 2.0
            rows.append(Row(f"{name}, forwarded (floor: directly), best of 5", min(through), min(direct), bound))
    return rows


async def interrupt() -> list[Row]:
    """From the interrupt to the end of a sleep."""
    took = []
    async with Server() as server:
        for _ in range(10):
            await server.run("import time; time.sleep(60)", wait=0.3)
            took.append(await atimed(server.call("interrupt")))
            await asyncio.sleep(0)
    return [Row("interrupt of time.sleep, median", statistics.median(took))]


MEASURES: dict[str, Callable[[], Awaitable[list[Row]]]] = {
    "cold_start": cold_start,
    "warm_cell": warm_cell,
    "observation": observation,
    "displays": displays,
    "output": output,
    "alternating": alternating,
    "forwarding": forwarding,
    "interrupt": interrupt,
}
