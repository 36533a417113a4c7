"""One run: servers, seventeen clients, the watchdog, and the end, after which nothing may be left."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Protocol

from stress.clients import Mover, Unlucky
from stress.cornered import Cornered, cornered_place
from stress.desks import Desk, Official, Requests
from stress.report import Report
from stress.sharing import Attached, Ledger, Sharer
from stress.truth import Untrue
from stress.watchdog import watching
from stress.workbench import Workbench
from tests.e2e.driving import Place
from tests.e2e.http_driving import Session, Web, web

MODERN = "2026-07-28"
SHARED = "the shared lab"
#: Clients by kind. With one that moves, one over stdio and one attached Jupyter client they are sixteen; the
#: seventeenth has a server of its own that lives at its limits.
OFFICIAL, DROPPING, MODERNS, SHARERS = 4, 3, 4, 2
#: Seconds that a client may go on with its last cell.
LAST = 180.0


class Client(Protocol):
    async def open(self) -> None: ...
    async def step(self) -> None: ...


async def run(seed: int, seconds: float) -> Report:
    report = Report(seed, seconds)
    with _place() as shared, _place() as own, cornered_place() as corner:
        cornered = Cornered(corner, Random(f"{seed} c"), report.did)
        unlucky = Unlucky("u", own, Random(f"{seed} u"), report.did)
        async with web(shared, "--result-mode", "structured") as server:
            async with watching(server.base, server.process.pid) as pulses:
                await _clients(server, unlucky, cornered, report)
            await _recycled(server, report)
        code = server.process.returncode
        if code != 0:
            report.faults.append(f"the server ended with {code}")
        for client in (unlucky, cornered):
            try:
                await client.last()
            except Untrue as untrue:
                report.faults.append(str(untrue))
        for place in (shared, own, corner):
            _nothing_left(place, report)
        [pulse] = pulses
        report.pulse = pulse.summary()
        if late := pulse.late():
            report.faults.append(f"{late} answers of /api/health were late beyond what the machine excuses")
    return report


async def _clients(server: Web, unlucky: Unlucky, cornered: Cornered, report: Report) -> None:
    def chance(name: str) -> Random:
        return Random(f"{report.seed} {name}")

    ledger, did = Ledger(SHARED), report.did
    async with AsyncExitStack() as stack:
        clients: dict[str, Client] = {"u": unlucky, "c": cornered}

        async def official(mode: str, **headers: str) -> Desk:
            return Official(await stack.enter_async_context(server.agent(mode, **headers)))

        async def requests() -> Desk:
            http = await stack.enter_async_context(server.http())
            return Requests(await Session.open(http))

        for n in range(OFFICIAL):
            clients[f"h{n}"] = Workbench(f"h{n}", await official("legacy"), chance(f"h{n}"), did)
        for n in range(DROPPING):
            clients[f"d{n}"] = Workbench(f"d{n}", await requests(), chance(f"d{n}"), did)
        for n in range(MODERNS):
            desk = await official(MODERN, **{"X-Loommux-Operator": f"m{n}"})
            clients[f"m{n}"] = Workbench(f"m{n}", desk, chance(f"m{n}"), did)
        clients["w"] = Mover("w", await official("legacy"), chance("w"), did)
        named = {"X-Loommux-Resource": SHARED.replace(" ", "%20")}
        for n in range(SHARERS):
            desk = await official(["legacy", MODERN][n % 2], **named, **{"X-Loommux-Operator": f"s{n}"})
            clients[f"s{n}"] = Sharer(f"s{n}", desk, chance(f"s{n}"), did, ledger)
        await clients["s0"].open()
        attached = Attached("j", await _connection_file(server), chance("j"), did, ledger)
        stack.callback(attached.close)
        clients["j"] = attached
        end = time.monotonic() + report.seconds
        await asyncio.gather(*(_work(name, client, end, report) for name, client in clients.items()))


async def _work(name: str, client: Client, end: float, report: Report) -> None:
    """A client works until the end; its first fault is its last step, for what it knows may be wrong then."""
    try:
        await client.open()
        while time.monotonic() < end:
            async with asyncio.timeout(max(0.0, end - time.monotonic()) + LAST):
                await client.step()
    except Untrue as untrue:
        report.faults.append(f"{name}: {untrue}")
    except Exception:
        report.faults.append(f"{name}: {traceback.format_exc()[-3000:]}")


async def _connection_file(server: Web) -> str:
    async with server.http() as http:
        found = (await http.get("/api/resources")).json()["resources"]
    [file] = [one["connection_file"] for one in found if one["name"] == SHARED]
    return file


async def _recycled(server: Web, report: Report) -> None:
    async with server.http() as http:
        ended = await http.post("/api/resources/recycle-all", json={})
        left = (await http.get("/api/resources")).json()["resources"]
    if ended.status_code != 200 or left:
        report.faults.append(f"not recycled: {ended.text} {[one['name'] for one in left]}")
    else:
        report.did["kernels recycled"] += len(ended.json().get("recycled", []))


@contextlib.contextmanager
def _place() -> Iterator[Place]:
    """A workspace, and directories that have to be empty afterwards."""
    made = [Path(tempfile.mkdtemp(prefix="lm-")) for _ in range(3)]
    try:
        yield Place(*made)
    finally:
        for directory in made:
            shutil.rmtree(directory, ignore_errors=True)


def _nothing_left(place: Place, report: Report) -> None:
    if left := place.wait_until_empty():
        report.faults.append(f"processes left: {left}")
    if files := place.files():
        report.faults.append(f"files left: {files}")
    if "loommux: ERROR" in place.log() or "Traceback" in place.log():
        report.faults.append(f"the server's log: {place.log()[-3000:]}")
