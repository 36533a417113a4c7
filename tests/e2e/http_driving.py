"""Real HTTP servers, driven by real clients or request by request."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

from tests.e2e.driving import COMMAND, PATIENCE, Agent, Place, mcp_client, until

ACCEPT = {"accept": "application/json, text/event-stream"}
HANDSHAKE = "2025-11-25"


@dataclass
class Web:
    """A server process that listens at `base`, or on a unix socket."""

    process: subprocess.Popen[bytes]
    place: Place
    base: str
    uds: str | None = None

    def http(self, **headers: str) -> httpx2.AsyncClient:
        transport = httpx2.AsyncHTTPTransport(uds=self.uds) if self.uds else None
        return httpx2.AsyncClient(
            base_url=self.base, headers=headers, timeout=PATIENCE, trust_env=False, transport=transport
        )

    @contextlib.asynccontextmanager
    async def agent(self, mode: str = "legacy", **headers: str) -> AsyncIterator[Agent]:
        async with self.http(**headers) as http:
            transport = streamable_http_client(f"{self.base}/mcp", http_client=http)
            async with mcp_client(transport, mode) as client:
                yield Agent(client, mode)

    async def end(self, how: int = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return await asyncio.to_thread(self.process.wait, PATIENCE)


@contextlib.asynccontextmanager
async def web(place: Place, *flags: str, **environment: str) -> AsyncIterator[Web]:
    """A server that listens; ended in order with the block if it is still there."""
    already = len(place.log())
    process = start(place, *flags, **environment)
    try:

        async def listens() -> bool:
            assert process.poll() is None, place.log()
            return "listening on" in place.log()[already:]

        await until(listens)
        where = re.search(r"listening on (?:(http://[^/\s]+)/|unix:(\S+),)", place.log()[already:])
        assert where, place.log()
        yield Web(process, place, where[1] or "http://localhost", where[2])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, PATIENCE)
        finally:
            process.kill()


def start(place: Place, *flags: str, **environment: str) -> subprocess.Popen[bytes]:
    chosen = [] if "--port" in flags or "--uds" in flags else ["--port", "0"]
    with place.errors.open("a") as errors:
        return subprocess.Popen(
            [*COMMAND, "--server", *chosen, *flags], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=errors, cwd=place.workspace, env=os.environ | place.environment | environment,
        )  # fmt: skip


async def refused_start(place: Place, *flags: str) -> str:
    """What a start that cannot work says; its exit code is 2."""
    already = len(place.log())
    process = start(place, *flags)
    assert await asyncio.to_thread(process.wait, PATIENCE) == 2, place.log()
    return place.log()[already:]


class Session:
    """A session of the handshake era, request by request."""

    def __init__(self, http: httpx2.AsyncClient, id: str) -> None:
        self.http = http
        self.headers = {**ACCEPT, "mcp-session-id": id, "mcp-protocol-version": HANDSHAKE}

    @classmethod
    async def open(cls, http: httpx2.AsyncClient) -> Session:
        answer = await http.post("/mcp", json=initialize(), headers=ACCEPT)
        assert answer.status_code == 200, answer.text
        session = cls(http, answer.headers["mcp-session-id"])
        await session.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return session

    async def post(self, message: dict[str, Any]) -> httpx2.Response:
        return await self.http.post("/mcp", json=message, headers=self.headers)

    async def cell(self, source: str) -> httpx2.Response:
        params = {"name": "run_cell", "arguments": {"freeform": source}}
        return await self.post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})


def initialize() -> dict[str, Any]:
    client = {"name": "raw", "version": "1"}
    params = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": client}
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


def images(result: CallToolResult) -> int:
    return sum(block.type == "image" for block in result.content)
