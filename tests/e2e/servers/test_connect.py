"""`loommux connect`: a host that only speaks stdio works in a server over HTTP that outlives it."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.driving import COMMAND, ERAS, Lines, Place, configure, serving, text_of, until
from tests.e2e.http_driving import Web, images, web

pytestmark = pytest.mark.anyio
CONNECT = [*COMMAND, "connect"]
PICTURE = "from PIL import Image\nprint('before')\nImage.new('RGB', (8, 8), 'red')"
LONG = "%%loommux --wait 60 --silence 60\nimport time\nprint('begun', flush=True)\ntime.sleep(50)"


def url(server: Web) -> str:
    return f"{server.base}/mcp"


@pytest.mark.parametrize("mode", ERAS)
async def test_a_stdio_client_has_everything_a_server_gives_over_http(server: Web, place: Place, mode: str) -> None:
    said: list[str] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        said.append(message or "")

    async with serving(place, "connect", url(server), "--resource", f"all {mode}", mode=mode) as agent:
        assert "all" in await agent.text("status")
        assert "Out[1]: 42" in await agent.run("x = 41; x + 1")
        shown = await agent.call("run_cell", freeform=PICTURE)
        assert images(shown) == 1 and "before" in text_of(shown)
        failed = await agent.text("run_cell", freeform="1 / 0")
        assert "ZeroDivisionError" in failed
        assert (await agent.refusal("read_output", execution=99)).startswith("execution_not_found")
        slow = "%%loommux --silence 30\nimport time; time.sleep(6); x"
        assert "Out[4]: 41" in text_of(await agent.call("run_cell", freeform=slow, progress=progress))
        assert said, "progress arrives within six seconds"


async def test_two_host_processes_after_one_another_work_in_the_same_named_kernel(server: Web, place: Place) -> None:
    async with serving(place, "connect", url(server), "--resource", "kept häß") as agent:
        await agent.run("x = 41")
        running = await agent.text(
            "run_cell", freeform="%%loommux --wait 0.2\nimport time; time.sleep(3); print('end')"
        )
        assert "Running" in running
    async with serving(place, "connect", url(server), "--resource", "kept häß") as agent:
        assert "end" in await agent.text("wait", timeout_seconds=30, silence_seconds=30)
        assert "Out[3]: 42" in await agent.run("x + 1")


@pytest.mark.parametrize("mode", ERAS)
async def test_a_host_that_ends_holds_its_kernel_no_longer(server: Web, place: Place, mode: str) -> None:
    async with serving(place, "connect", url(server), "--resource", f"left {mode}", mode=mode) as agent:
        await agent.run("1")
        assert await _leases(server, f"left {mode}") == 1

    async def left() -> bool:
        return await _leases(server, f"left {mode}") == 0

    await until(left)


async def test_a_client_that_does_not_wait_for_the_session_has_its_call_answered_in_it(
    server: Web, lines: Callable[..., Lines]
) -> None:
    client = lines("connect", url(server), "--resource", "hasty")
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "hasty", "version": "1"}}
    first = client.request("initialize", hello)
    client.notify("notifications/initialized")
    second = client.request("tools/call", {"name": "run_cell", "arguments": {"freeform": "6 * 7"}})
    assert "result" in await client.answer(first)
    assert "Out[1]: 42" in (await client.answer(second))["result"]["content"][0]["text"]


async def test_a_cancelled_call_leaves_its_cell_running(server: Web, lines: Callable[..., Lines]) -> None:
    client = await lines(url(server), "--resource", "cancelled", command=CONNECT).open()
    cell = client.begin_cell(LONG)
    await until(lambda: _begun(client))
    client.notify("notifications/cancelled", {"requestId": cell, "reason": "test"})
    stopped = await client.ask("tools/call", {"name": "interrupt", "arguments": {}})
    assert "interrupted" in stopped["result"]["content"][0]["text"]
    assert all(message.get("id") != cell for message in client.heard), "a cancelled request is never answered"


async def test_a_server_that_starts_again_is_found_and_no_cell_runs_twice(
    place: Place, lines: Callable[..., Lines]
) -> None:
    marker = place.workspace / "ran"
    mark = LONG.replace("import time", f"import time; open({str(marker)!r}, 'a').write('x')")
    async with web(place, "--spawn") as first:  # whose kernels nobody takes over
        where = url(first)
        client = await lines(where, "--resource", "again", command=CONNECT).open()
        call = client.begin_cell(mark)
        await until(lambda: _exists(marker))
        await first.end(signal.SIGKILL)
        lost = (await client.answer(call))["result"]
        assert lost["isError"] and lost["content"][0]["text"].startswith("connection_lost: ")
    call = client.begin_cell("2")
    async with web(place, "--port", where.split(":")[2].partition("/")[0]):
        text = (await client.answer(call))["result"]["content"][0]["text"]
        assert "]: 2" in text and "again (" in text, "a new session, and it says what it works in"
        client.stdin.close()
        assert await client.exit_code() == 0
    assert marker.read_text() == "x"
    assert "trying again" in place.log() and "answers again" in place.log()


async def test_a_token_opens_a_server_and_a_wrong_one_is_told(place: Place, lines: Callable[..., Lines]) -> None:
    token, wrong = place.workspace / "token", place.workspace / "wrong"
    token.write_text("s3cret-of-this-test-0123456789abcdef\n")
    token.chmod(0o600)
    wrong.write_text("another")
    wrong.chmod(0o600)
    configure(place, f"auth_token_file = {str(token)!r}")
    async with web(place) as server:
        client = await lines(url(server), "--token-file", str(token), command=CONNECT).open()
        assert "Out[1]: 1" in await client.cell("1")
        stranger = lines(url(server), "--token-file", str(wrong), command=CONNECT)
        refused = await stranger.ask("initialize", _opening())
        assert "denied" in refused["error"]["message"]


async def test_what_cannot_be_forwarded_is_refused_before_anything_starts(lines: Callable[..., Lines]) -> None:
    client = lines("ftp://nowhere", command=CONNECT)
    assert await client.exit_code() == 2
    assert await client.rest() == b""


async def _leases(server: Web, name: str) -> int:
    async with server.http() as http:
        found = (await http.get("/api/resources")).json()["resources"]
    return next(one["lease_count"] for one in found if one["name"] == name)


def _opening() -> dict[str, Any]:
    return {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "lines", "version": "1"}}


async def _begun(client: Lines) -> bool:
    status = await client.ask("tools/call", {"name": "execution_status", "arguments": {}})
    return bool(re.search(r"\brunning\b", status["result"]["content"][0]["text"]))


async def _exists(path: Path) -> bool:
    return await asyncio.to_thread(path.exists)
