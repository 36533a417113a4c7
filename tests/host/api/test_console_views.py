"""What the console reads of a kernel: windows of lines, displays, notices; none of it changes anything."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from loommux_kernel.shared.protocol import State
from tests.host.memory_channel import MemoryCell
from tests.host.server.http_server import HttpServer, Raw, http_server
from tests.host.twins import Script, until

pytestmark = pytest.mark.anyio
LAB = {"X-Loommux-Resource": "lab"}
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))
HTML = "<script>top.hit = 1</script><a href=//evil.example>x</a>"


async def shows(cell: MemoryCell) -> State | None:
    records = cell._channel.records
    cell.print("before\n")
    image = {"text/plain": "<Figure>", "image/png": base64.b64encode(PNG).decode()}
    for bundle in (image, {"text/html": HTML}, {"image/svg+xml": "<svg onload='hit()'/>"}, {"image/png": "%%%"}):
        records.display(cell.serial, kind="display", number=cell.number, bundle=bundle, metadata={}, display_id=None)
    return None


async def counts(cell: MemoryCell) -> State | None:
    cell.print("".join(f"line {n} {'x' * 30}\n" for n in range(1, 1001)))
    return None


@pytest.fixture
async def server(tmp_path: Path, script: Script) -> AsyncIterator[HttpServer]:
    async with http_server(tmp_path, {"hold": script.hold, "shows": shows, "counts": counts}) as made:
        yield made
        script.go.set()


async def opened(server: HttpServer, http: httpx2.AsyncClient, *cells: str) -> str:
    raw = await Raw.open(http)
    raw.headers.update(LAB)
    for cell in cells or ("say",):
        await raw.cell(cell)
    return f"/api/resources/{server.kernel('lab').id}"


async def lines(http: httpx2.AsyncClient, path: str, **query: Any) -> dict[str, Any]:
    answer = await http.get(f"{path}/lines", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_window_is_read_from_anywhere_and_clipped(server: HttpServer, http: httpx2.AsyncClient) -> None:
    path = await opened(server, http, "counts")
    last = await lines(http, path, count=3)
    assert (last["first"], last["total_lines"], len(last["text"])) == (998, 1000, 3)
    assert last["text"][-1].startswith("line 1000 ")
    middle = await lines(http, path, execution=1, first=500, count=2, max_chars=8)
    assert middle["text"] == ["line 500…[31 chars omitted]", "line 501…[31 chars omitted]"]
    assert middle["streams"] == {"combined": 1000, "stdout": 1000, "stderr": 0, "result": 0, "traceback": 0}
    assert (middle["state"], middle["running"], middle["source"]) == ("completed", False, "counts")
    beyond = await lines(http, path, first=2000, count=5)
    assert (beyond["text"], beyond["total_lines"]) == ([], 1000)
    assert (await lines(http, path, serial=1, process=1, count=1))["execution"] == 1
    for query in ("count=2001", "max_chars=20001", "first=0", "serial=x", "wait=31", "after=-1"):
        assert (await http.get(f"{path}/lines?{query}")).status_code == 400
    assert (await http.get(f"{path}/lines?serial=99")).status_code == 404
    assert (await http.get(f"{path}/lines?serial=1&process=9")).json()["status"] == "process_not_found"


async def test_a_follower_waits_for_what_is_new_and_for_the_end(
    server: HttpServer, http: httpx2.AsyncClient, script: Script
) -> None:
    path = await opened(server, http)
    await http.post(f"{path}/executions", json={"source": "hold", "wait_seconds": 0})
    assert script.cell is not None
    begun = await lines(http, path, execution=2)
    assert (begun["running"], begun["text"], begun["source"]) == (True, [], "hold")
    waiting = asyncio.create_task(lines(http, path, execution=2, after=begun["updated_at"], wait=20))
    await until(lambda: bool(server.app._news._waiting))
    script.cell.print("news\n")
    told = await waiting
    assert told["text"] == ["news"] and told["updated_at"] > begun["updated_at"]
    assert "source" not in told
    waiting = asyncio.create_task(lines(http, path, execution=2, after=told["updated_at"], wait=20))
    await until(lambda: bool(server.app._news._waiting))
    script.go.set()
    ended = await waiting
    assert (ended["running"], ended["state"]) == (False, "completed")
    at_once = await lines(http, path, execution=2, after=ended["updated_at"], wait=30)
    assert at_once["state"] == "completed"


async def test_displays_are_told_and_sent_so_that_nothing_in_them_acts(
    server: HttpServer, http: httpx2.AsyncClient
) -> None:
    path = await opened(server, http, "shows")
    shown = (await http.get(f"{path}/displays?execution=1")).json()["displays"]
    assert [list(one["types"]) for one in shown] == [
        ["text/plain", "image/png"], ["text/html"], ["image/svg+xml"], ["image/png"]
    ]  # fmt: skip
    assert (await lines(http, path))["displays"][0]["ordinal"] == 1
    image = await http.get(f"{path}/display?ordinal=1&type=image/png")
    assert (image.headers["content-type"], image.content) == ("image/png", PNG)
    for ordinal, kind in ((2, "text/html"), (3, "image/svg+xml"), (1, "text/plain")):
        sent = await http.get(f"{path}/display", params={"ordinal": ordinal, "type": kind})
        assert sent.status_code == 200
        policy = sent.headers["content-security-policy"]
        assert policy.startswith("sandbox; default-src 'none';")
        assert "script-src" not in policy and "allow-" not in policy
        assert sent.headers["x-content-type-options"] == "nosniff"
        assert sent.text.startswith('<base target="_blank">') == (kind == "text/html")
    for ordinal, kind in ((1, "text/html"), (9, "image/png"), (4, "image/png"), (1, "text/javascript")):
        missing = await http.get(f"{path}/display", params={"ordinal": ordinal, "type": kind})
        assert (missing.status_code, missing.json()["status"]) == (404, "not_found")


async def test_notices_are_shown_to_people_and_still_told_to_the_agent(
    server: HttpServer, http: httpx2.AsyncClient
) -> None:
    async with server.agent(**LAB) as agent:
        await agent.run("say")
        kernel = server.kernel("lab")
        path = f"/api/resources/{kernel.id}"
        server.launchings[kernel.id].channel.noticed(1, 1, "for the agent")
        await until(lambda: bool(kernel.journal.last_notices(1)))
        [notice] = (await http.get(f"{path}/notices")).json()["notices"]
        assert (notice["text"], notice["execution"], notice["process"]) == ("for the agent", 1, 1)
        assert "for the agent" in await agent.text("status")


async def test_looking_at_everything_changes_no_lease_and_tells_nobody(
    server: HttpServer, http: httpx2.AsyncClient
) -> None:
    async with server.agent(**LAB) as agent:
        await agent.run("say")
        kernel = server.kernel("lab")
        path = f"/api/resources/{kernel.id}"
        server.launchings[kernel.id].channel.noticed(None, None, "first")
        server.launchings[kernel.id].channel.noticed(None, None, "second")
        [before] = server.leasing.held_by(kernel)
        index = kernel.journal.index
        for read in ("", "/lines", "/displays", "/notices", "/executions", "/output", "/search?query=x", "/variables"):
            assert (await http.get(f"{path}{read}")).status_code == 200, read
        [after] = server.leasing.held_by(kernel)
        assert after.lease.remaining_seconds is not None and before.lease.remaining_seconds is not None
        assert after.lease.remaining_seconds < before.lease.remaining_seconds
        assert kernel.journal.index == index
        told = await agent.text("status")
        assert told.index("first") < told.index("second")


async def test_what_a_person_does_to_names_and_children_is_told(server: HttpServer, http: httpx2.AsyncClient) -> None:
    async with server.agent(**LAB) as agent:
        await agent.run("say")
        path = f"/api/resources/{server.kernel('lab').id}"
        child = (await http.post("/api/resources", json={"path": "/lab/build"})).json()
        assert (await http.post(f"{path}/rename", json={"name": "report"})).json()["name"] == "report"
        await http.post(f"/api/resources/{child['resource_id']}/recycle", json={"force": True})
        told = await agent.text("status")
        assert "renamed by the console: lab is report now" in told
        assert "The child kernel build was recycled by the console." in told


async def test_sources_are_clipped_on_request(server: HttpServer, http: httpx2.AsyncClient) -> None:
    path = await opened(server, http, "say")
    [one] = (await http.get(f"{path}/executions?max_chars=2")).json()["executions"]
    assert (one["source"], one["source_characters"]) == ("sa", 3)


async def test_earlier_processes_say_how_they_ended(server: HttpServer, http: httpx2.AsyncClient) -> None:
    path = await opened(server, http)
    await http.post(f"{path}/restart")
    now, before = (await http.get(path)).json()["processes"]
    assert (now["process"], now["how"], before["process"]) == (2, None, 1)
    assert before["how"] == "ended by restart (the console)"


async def test_the_feed_begins_with_what_has_just_happened(server: HttpServer, http: httpx2.AsyncClient) -> None:
    await opened(server, http)
    async with asyncio.timeout(20), http.stream("GET", "/api/events?recent=2") as stream:
        told = []
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                told.append(json.loads(line.removeprefix("data: ")))
            if len(told) == 2:
                break
    ended = told[-1]
    assert (ended["tool"], ended["name"], ended["call"]) == ("run_cell", "lab", 1)
