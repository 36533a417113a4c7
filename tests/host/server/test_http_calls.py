"""Calls that are cut short, sessions that end, a server that stops: over real HTTP, kernels in memory."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from uvicorn.protocols.http.h11_impl import H11Protocol

from tests.host.server.http_server import ACCEPT, HttpServer, Raw, http_server, initialize, modern, tool_call
from tests.host.twins import Script, until

pytestmark = pytest.mark.anyio
LAB = {"X-Loommux-Resource": "lab"}


async def hold(http: httpx2.AsyncClient, era: str) -> tuple[asyncio.Task[httpx2.Response], Raw]:
    """A call that waits for its cell; the session it belongs to, for the handshake era."""
    raw = await Raw.open(http, **LAB)
    raw.headers.update(LAB)
    if era == "handshake":
        return asyncio.create_task(raw.cell("hold", id=7)), raw
    message, headers = modern(tool_call("run_cell", 7, freeform="hold"))
    return asyncio.create_task(http.post("/mcp", json=message, headers={**headers, **LAB})), raw


def events(answer: httpx2.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


# -- cut short --------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_a_dropped_connection_ends_the_call_and_not_the_cell(
    server: HttpServer, script: Script, era: str
) -> None:
    async with server.http() as http:
        call, raw = await hold(http, era)
        await asyncio.wait_for(script.running.wait(), 10)
        call.cancel()
        await asyncio.wait({call})
        await until(lambda: not server.service._calls)
        status = (await raw.post(tool_call("status"))).text
        assert "In [1]" in status
        assert "running" in status
        script.go.set()
        assert "In [1]" in (await raw.post(tool_call("wait"))).text


async def test_a_cancelled_call_is_not_answered_and_its_cell_goes_on(server: HttpServer, script: Script) -> None:
    async with server.http() as http:
        call, raw = await hold(http, "handshake")
        await asyncio.wait_for(script.running.wait(), 10)
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        assert (await raw.post(cancelled)).status_code == 202
        answer = await asyncio.wait_for(call, 10)
        assert (answer.status_code, events(answer)) == (200, [])
        assert not server.service._calls
        script.go.set()
        assert "In [1]" in (await raw.post(tool_call("wait"))).text


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.case("E02")
async def test_fifty_cancelled_calls_of_the_official_client_leave_no_task(
    server: HttpServer, script: Script, mode: str
) -> None:
    async with server.agent(mode, **LAB) as agent:
        first = asyncio.create_task(agent.call("run_cell", freeform="hold"))
        await asyncio.wait_for(script.running.wait(), 10)
        before = len(asyncio.all_tasks())
        for _ in range(50):
            call = asyncio.create_task(agent.call("wait", timeout_seconds=60, silence_seconds=60))
            await until(lambda: len(server.service._calls) == 2)
            call.cancel()
            await asyncio.wait({call})
            await until(lambda: len(server.service._calls) == 1)
        await until(lambda: len(asyncio.all_tasks()) <= before + 3)
        script.go.set()
        assert not (await first).is_error


async def test_a_session_that_is_deleted_in_mid_call_ends_the_call_and_not_the_cell(
    server: HttpServer, script: Script
) -> None:
    async with server.http() as http:
        call, raw = await hold(http, "handshake")
        await asyncio.wait_for(script.running.wait(), 10)
        assert (await http.delete("/mcp", headers=raw.headers)).status_code == 200
        await asyncio.wait_for(call, 10)
        await until(lambda: not server.service._calls)
        async with server.agent(**LAB) as agent:
            assert "In [1]" in await agent.text("status")
            script.go.set()
            assert (await agent.text("wait", execution=1)).startswith("In [1]")


async def test_notices_are_told_again_when_the_reply_never_arrived(server: HttpServer, script: Script) -> None:
    async with server.http() as http:
        call, raw = await hold(http, "handshake")
        await asyncio.wait_for(script.running.wait(), 10)
        assert script.cell is not None
        script.cell.notify("half done")
        call.cancel()
        await asyncio.wait({call})
        await until(lambda: not server.service._calls)
        assert "half done" in (await raw.post(tool_call("execution_status"))).text
        assert "half done" not in (await raw.post(tool_call("execution_status"))).text
        assert "half done" in (await raw.post(tool_call("status"))).text, "status repeats the last notices"


# -- session ids ------------------------------------------------------------------------


async def test_an_unknown_session_id_is_404_and_initialize_with_one_opens_a_fresh_session(server: HttpServer) -> None:
    async with server.http() as http:
        stale = {**ACCEPT, "mcp-session-id": "0123456789abcdef", "mcp-protocol-version": "2025-11-25"}
        assert (await http.post("/mcp", json=tool_call("status"), headers=stale)).status_code == 404
        assert (await http.get("/mcp", headers=stale)).status_code == 404
        opened = await http.post("/mcp", json=initialize(), headers=stale)
        assert opened.status_code == 200
        assert opened.headers["mcp-session-id"] != "0123456789abcdef"
        tricky = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "initialize"}}
        assert (await http.post("/mcp", json=tricky, headers=stale)).status_code == 404


async def test_a_stream_that_wants_to_resume_gets_a_new_one(server: HttpServer) -> None:
    async with server.http() as http:
        raw = await Raw.open(http)
        async with http.stream("GET", "/mcp", headers={**raw.headers, "last-event-id": "7"}) as stream:
            assert stream.status_code == 200


async def test_sessions_that_come_and_go_leave_nothing_behind(server: HttpServer) -> None:
    async def come_and_go() -> None:
        async with server.agent() as agent:
            await agent.run("say")

    await come_and_go()
    await until(lambda: len(server.registry) == 0)
    before = len(asyncio.all_tasks())
    for _ in range(4):
        await asyncio.gather(*(come_and_go() for _ in range(5)))
    await until(lambda: len(server.registry) == 0 and len(asyncio.all_tasks()) <= before + 2)
    assert not server.leasing._claims
    assert not server.leasing._known
    assert not server.service.sessions._told
    assert not server.service.sessions._present
    assert not server.app._mcp._known


# -- eras -------------------------------------------------------------------------------


async def test_handshake_only_makes_clients_fall_back_and_refuses_those_that_cannot(tmp_path: Path) -> None:
    async with http_server(tmp_path, protocol="handshake") as server:
        async with server.agent("auto") as agent:
            assert agent.client.protocol_version == "2025-11-25"
            assert (await agent.run("say")).startswith("In [1]")
        async with server.http() as http:
            message, headers = modern({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {}})
            answer = await http.post("/mcp", json=message, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32000)
            async with Client(streamable_http_client(server.url, http_client=http), mode="2026-07-28") as pinned:
                with pytest.raises(MCPError, match="Unsupported protocol version: 2026-07-28"):
                    await pinned.call_tool("status", {})


# -- the end ------------------------------------------------------------------------------


async def test_a_server_that_stops_answers_what_waits_and_closes_what_streams(tmp_path: Path, script: Script) -> None:
    async with http_server(tmp_path, {"hold": script.hold}) as server, server.http() as http:
        call, raw = await hold(http, "handshake")
        await asyncio.wait_for(script.running.wait(), 10)
        modern_wait, headers = modern(tool_call("wait", 9, timeout_seconds=60, silence_seconds=60, kernel="lab"))
        waiting = asyncio.create_task(http.post("/mcp", json=modern_wait, headers=headers))
        standing = asyncio.create_task(http.get("/mcp", headers=raw.headers))
        feed = asyncio.create_task(http.get("/api/events"))
        await until(lambda: len(server.service._calls) == 2 and len(server.feed._waiting) == 1)
        began = asyncio.get_running_loop().time()
        server.stop.set()
        for answered in (await call, await waiting):
            assert "Running" in answered.text
        assert (await standing).status_code == 200
        assert (await feed).status_code == 200
        await server.serving
        assert asyncio.get_running_loop().time() - began < 4
        script.go.set()


async def test_calls_that_end_in_time_are_answered_in_full_while_new_ones_are_refused(
    tmp_path: Path, script: Script
) -> None:
    async with http_server(tmp_path, {"hold": script.hold}) as server, server.http() as http:
        call, raw = await hold(http, "handshake")
        await asyncio.wait_for(script.running.wait(), 10)
        server.stop.set()
        await until(lambda: server.app._hours.stopped)
        for refused in (await raw.post(tool_call("status")), await http.get("/api/health")):
            assert (refused.status_code, refused.json()["status"]) == (503, "server_stopping")
        script.go.set()
        assert "In [1]" in (await call).text
        assert "Running" not in (await call).text


async def test_a_follower_of_output_is_let_go_when_the_server_stops(tmp_path: Path, script: Script) -> None:
    async with http_server(tmp_path, {"hold": script.hold}) as server, server.http() as http:
        call, _ = await hold(http, "handshake")
        await asyncio.wait_for(script.running.wait(), 10)
        following = asyncio.create_task(http.get(f"/api/resources/{server.kernel('lab').id}/combined?wait=30"))
        await until(lambda: bool(server.app._news._waiting))
        server.stop.set()
        assert (await following).json()["state"] == "running"
        assert "Running" in (await call).text
        script.go.set()


# -- connections ----------------------------------------------------------------------------


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the options of Linux")
async def test_a_peer_that_vanished_without_a_word_is_found_out_within_a_minute(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[socket.socket] = []
    made = H11Protocol.connection_made

    def connection_made(self: Any, transport: Any) -> None:
        taken.append(transport.get_extra_info("socket"))
        made(self, transport)

    monkeypatch.setattr(H11Protocol, "connection_made", connection_made)
    async with server.http() as http:
        assert (await http.get("/api/health")).status_code == 200
        [accepted] = taken
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        interval = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        probes = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert idle + interval * probes <= 60
        assert 0 < accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000
