"""Sessions that come and go leave nothing behind: real uvicorn, kernels in memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from loommux_host.mcp import http as mcp_http
from loommux_host.mcp.sdk import Manager
from tests.host.server.http_server import ACCEPT, HttpServer, Raw, forever, http_server, initialize, modern, tool_call
from tests.host.twins import until

pytestmark = pytest.mark.anyio
FOREVER = "%%loommux --wait 0.01 --silence 0.01\nforever"
SESSIONS, AT_ONCE = 200, 20
#: What is kept for a while on purpose, the oldest first to go.
BOUNDED = {"Binder._gone", "LeaseEnforcement._retired", "LeaseEnforcement._known"}
#: Pools with bounds of their own: the loop's, and the one that reads the stores.
POOLS = ("asyncio_", "AnyIO worker thread")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[HttpServer]:
    windows = {"private_activity_timeout_seconds": 0.5, "named_activity_timeout_seconds": 0.5}
    settings: dict[str, Any] = {**windows, "orphan_grace_seconds": 0.001, "sweep_interval_seconds": 0.1}
    async with http_server(tmp_path, {FOREVER: forever}, **settings) as made:
        yield made


# -- how sessions come and go ---------------------------------------------------------------


async def worked(http: httpx2.AsyncClient, mine: str, source: str = "say", **headers: str) -> Raw:
    raw = await Raw.open(http, **headers)
    answer = await raw.post(tool_call("run_cell", freeform=source), **headers)
    assert '"isError":true' not in answer.text, answer.text
    return raw


async def delete(raw: Raw) -> None:
    assert (await raw.http.delete(raw.path, headers=raw.headers)).status_code == 200


async def deleted(http: httpx2.AsyncClient, mine: str) -> None:
    await delete(await worked(http, mine))


async def deleted_while_its_cell_runs(http: httpx2.AsyncClient, mine: str) -> None:
    await delete(await worked(http, mine, FOREVER))


async def deleted_while_a_call_waits(http: httpx2.AsyncClient, mine: str) -> None:
    raw = await worked(http, mine, FOREVER)
    waiting = {"json": tool_call("wait", timeout_seconds=60, silence_seconds=60), "headers": raw.headers}
    async with http.stream("POST", raw.path, **waiting) as stream:
        assert stream.status_code == 200
        await raw.post({"jsonrpc": "2.0", "id": 2, "method": "ping"})  # what came before it is under way then
        await delete(raw)
        async for _ in stream.aiter_raw():
            pass


async def deleted_with_its_stream_open(http: httpx2.AsyncClient, mine: str) -> None:
    raw = await worked(http, mine)
    async with http.stream("GET", raw.path, headers=raw.headers) as stream:
        assert stream.status_code == 200
        await delete(raw)
        async for _ in stream.aiter_raw():
            pass


async def vanished_at_once(http: httpx2.AsyncClient, mine: str) -> None:
    await http.post("/mcp", json=initialize(), headers=ACCEPT)


async def vanished(http: httpx2.AsyncClient, mine: str) -> None:
    await worked(http, mine)


async def vanished_from_its_stream(http: httpx2.AsyncClient, mine: str) -> None:
    raw = await worked(http, mine)
    async with http.stream("GET", raw.path, headers=raw.headers) as stream:
        assert stream.status_code == 200


async def shared_a_name(http: httpx2.AsyncClient, mine: str) -> None:
    name = {"X-Loommux-Resource": f"lab {mine}".replace(" ", "%20")}
    await delete(await worked(http, mine, **name))


async def never_opened(http: httpx2.AsyncClient, mine: str) -> None:
    """A caller without a session."""
    message, headers = modern(tool_call("run_cell", freeform="say"), client=mine)
    answer = await http.post("/mcp", json=message, headers=headers)
    assert "kernel=k_" in answer.text, answer.text


WAYS: list[Callable[[httpx2.AsyncClient, str], Coroutine[Any, Any, None]]] = [
    deleted, deleted, deleted_while_its_cell_runs, deleted_while_a_call_waits, deleted_with_its_stream_open,
    vanished_at_once, vanished, vanished_from_its_stream, shared_a_name, never_opened,
]  # fmt: skip


async def come_and_go(server: HttpServer, count: int, round: str) -> None:
    for first in range(0, count, AT_ONCE):
        async with server.http() as http, asyncio.TaskGroup() as group:
            for n in range(first, first + AT_ONCE):
                group.create_task(WAYS[n % len(WAYS)](http, f"{round}{n}"))
        # A server has at most 64 kernels at a time.
        await until(lambda: len(server.registry) <= AT_ONCE)


async def all_is_over(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who vanished is looked for as requests of others come."""
    with monkeypatch.context() as patch:
        patch.setattr(mcp_http, "IDLE_SECONDS", 0.2)
        async with server.http() as http, asyncio.timeout(30):
            other = await Raw.open(http)
            while len(manager(server)._server_instances) > 1 or len(server.registry):
                assert (await other.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})).status_code == 200
                await asyncio.sleep(0.05)
            await delete(other)


# -- what may be left -------------------------------------------------------------------------


def manager(server: HttpServer) -> Manager:
    return server.app._mcp._manager


def held(server: HttpServer) -> Counter[str]:
    """All that grows with what is there: tasks, threads, descriptors, entries in the server's tables."""
    gc.collect()
    found: Counter[str] = Counter()
    found.update(f"task {getattr(task.get_coro(), '__qualname__', '')}" for task in asyncio.all_tasks())
    found.update(f"thread {t.name}" for t in threading.enumerate() if not t.name.startswith(POOLS))
    if sys.platform != "win32":
        found["descriptors"] = psutil.Process().num_fds()
    leasing, binder = server.leasing, server.app._mcp._binder
    parts = (
        server.app._mcp, manager(server), server.app._news, leasing, leasing._leases, binder,
        server.registry, server.service, server.service.sessions, server.feed,
    )  # fmt: skip
    for part in parts:
        for name, value in vars(part).items():
            entry = f"{type(part).__name__}.{name}"
            if isinstance(value, dict | set | list) and entry not in BOUNDED:
                found[entry] = len(value)
    return found


async def test_200_sessions_that_come_and_go_leave_no_kernel_descriptor_task_or_thread(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await come_and_go(server, AT_ONCE, "first")
    await all_is_over(server, monkeypatch)
    before = held(server)
    await come_and_go(server, SESSIONS, "then")
    await all_is_over(server, monkeypatch)
    with contextlib.suppress(TimeoutError):
        await until(lambda: held(server) <= before)
    assert held(server) - before == Counter()
    assert not server.registry.mains()
    assert all(launching.removed for launching in server.launchings.values())
