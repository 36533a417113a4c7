"""A whole HTTP server in the test's own event loop: real uvicorn, real clients, kernels in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.streamable_http import streamable_http_client

from loommux_host.api.feed import Feed
from loommux_host.config import Config
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.registry import Registry
from loommux_host.leases.policy import Policies, Policy
from loommux_host.server.http_app import HttpApp, Parts
from loommux_host.server.http_server import bound, run
from loommux_host.sessions.binding import Binder
from loommux_host.sessions.callers import Sessions
from loommux_host.sessions.lease_enforcement import LeaseEnforcement
from loommux_host.usecases.inspection import Place
from loommux_host.usecases.result_bodies import Bodies
from loommux_host.usecases.service import Service
from loommux_host.web.auth import Access, access
from loommux_kernel.shared.protocol import State
from tests.e2e.driving import Agent, mcp_client
from tests.e2e.http_driving import ACCEPT, HANDSHAKE, initialize
from tests.host.memory_channel import Code, MemoryCell
from tests.host.twins import Launching, Script, say

MODERN = "2026-07-28"


async def forever(cell: MemoryCell) -> State | None:
    await asyncio.Event().wait()
    return None


@dataclass
class HttpServer:
    """The server's parts, and ways to reach it."""

    config: Config
    base: str
    registry: Registry
    leasing: LeaseEnforcement
    service: Service
    feed: Feed
    app: HttpApp
    launchings: dict[str, Launching]
    stop: asyncio.Event
    serving: asyncio.Task[None] = field(init=False)

    @property
    def url(self) -> str:
        return self.base + self.config.path

    def http(self, **headers: str) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.base, headers=headers, timeout=30, trust_env=False)

    @contextlib.asynccontextmanager
    async def agent(self, mode: str = "legacy", **headers: str) -> AsyncIterator[Agent]:
        async with self.http(**headers) as http:
            transport = streamable_http_client(self.url, http_client=http)
            async with mcp_client(transport, mode) as client:
                yield Agent(client, mode)

    def kernel(self, name: str) -> Kernel:
        kernel = self.registry.named(name)
        assert kernel is not None, f"{name} is not among {self.names()}"
        return kernel

    def names(self) -> list[str]:
        return [kernel.name for kernel in self.registry.mains()]


class Raw:
    """A session of the handshake era, request by request."""

    def __init__(self, http: httpx2.AsyncClient, path: str, session: str) -> None:
        self.http, self.path = http, path
        self.headers = {**ACCEPT, "mcp-session-id": session, "mcp-protocol-version": HANDSHAKE}

    @classmethod
    async def open(cls, http: httpx2.AsyncClient, path: str = "/mcp", **headers: str) -> Raw:
        answer = await http.post(path, json=initialize(), headers={**ACCEPT, **headers})
        assert answer.status_code == 200, answer.text
        raw = cls(http, path, answer.headers["mcp-session-id"])
        await raw.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return raw

    async def post(self, message: Mapping[str, Any], **headers: str) -> httpx2.Response:
        return await self.http.post(self.path, json=message, headers={**self.headers, **headers})

    async def cell(self, source: str, id: int = 1) -> httpx2.Response:
        return await self.post(tool_call("run_cell", id, freeform=source))


def tool_call(name: str, id: int = 1, **arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


def modern(message: dict[str, Any], client: str = "raw") -> tuple[dict[str, Any], dict[str, str]]:
    """A message and its headers as a modern client sends them."""
    prefix = "io.modelcontextprotocol/"
    meta = {
        f"{prefix}protocolVersion": MODERN,
        f"{prefix}clientCapabilities": {},
        f"{prefix}clientInfo": {"name": client, "version": "1"},
    }
    params = {**message.get("params", {}), "_meta": meta}
    headers = {**ACCEPT, "mcp-protocol-version": MODERN, "mcp-method": message["method"]}
    if "name" in params:
        headers["mcp-name"] = params["name"]
    return {**message, "params": params}, headers


@contextlib.asynccontextmanager
async def http_server(
    directory: Path, codes: Mapping[str, Code] | None = None, *, rules: Access | None = None, **settings: Any
) -> AsyncIterator[HttpServer]:
    """A server on a free port until the block ends; then everything has ended in order."""
    config = replace(Config(), server=True, port=0, workspace=directory, **settings)
    cells: dict[str, Code] = {"say": say, "forever": forever, **(codes or {})}
    launchings: dict[str, Launching] = {}

    def launching(id: str, name: str) -> Launching:
        (directory / id).mkdir()
        launchings[id] = Launching(directory / id, cells)
        return launchings[id]

    registry = Registry(launching, max_kernels=config.max_kernels)
    feed = Feed()
    leasing = LeaseEnforcement(Policies(Policy.of(config)), feed.publish)
    binder = Binder(registry, leasing)
    sessions = Sessions(registry, binder, leasing)
    place = Place("/work", "launch_cwd", lambda: (Path("/usr/bin/python3"), ""))
    service = Service(registry, sessions, Bodies(lambda text: len(text) < 20_000, config.structured), place)
    rules = rules or access("127.0.0.1", None, auth=True)
    app = HttpApp(config, service, Parts(feed, leasing, binder), rules)
    stop = asyncio.Event()
    with bound(config) as listener:
        listener.listen()
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = HttpServer(config, base, registry, leasing, service, feed, app, launchings, stop)
        server.serving = asyncio.create_task(run(app, listener, stop))
        try:
            yield server
        finally:
            stop.set()
            async with asyncio.timeout(20):
                await server.serving
            await service.close()


@pytest.fixture
async def server(tmp_path: Path, script: Script) -> AsyncIterator[HttpServer]:
    """A server whose kernels know ``hold``, a cell that ends when the script says so."""
    async with http_server(tmp_path, {"hold": script.hold}) as made:
        yield made
        script.go.set()


@pytest.fixture
async def http(server: HttpServer) -> AsyncIterator[httpx2.AsyncClient]:
    async with server.http() as client:
        yield client
