"""`loommux console`: one page for all servers of a user, also those over stdio, for one browser."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.e2e.driving import PATIENCE, Place, Start, until

pytestmark = pytest.mark.anyio


async def told_of(server: str, kind: str, lines: AsyncIterator[str]) -> dict[str, Any]:
    """The data of the server's next event of that kind."""
    event = None
    async for line in lines:
        event = line if line.startswith("event: ") else event
        if event == f"event: {kind}" and line.startswith("data: "):
            data = json.loads(line.removeprefix("data: "))
            if data["server"] == server:
                return data
    raise AssertionError(f"the stream ended without {kind}")


async def test_the_console_of_all_servers_lets_one_browser_in_and_acts_on_a_stdio_server(
    start: Start, place: Place
) -> None:
    said = place.workspace / "said"
    command = [sys.executable, "-c", "import sys; from loommux_host.cli import main; sys.exit(main())"]
    async with start() as agent:
        await agent.run("x = 1")
        with said.open("w") as errors:
            process = subprocess.Popen(  # noqa: ASYNC220
                [*command, "console", "--no-browser"], stderr=errors, env=os.environ | place.environment
            )
        try:

            async def told() -> bool:
                return "#token=" in said.read_text()

            await until(told)
            found = re.search(r"(http://127\.0\.0\.1:\d+)/#token=(\S+)", said.read_text())
            assert found
            base, ticket = found[1], found[2]
            async with httpx2.AsyncClient(base_url=base, timeout=PATIENCE, trust_env=False) as http:
                assert (await http.get("/")).headers["content-type"].startswith("text/html")
                for path in ("/api/health", "/api/events", "/servers/1/api/resources"):
                    assert (await http.get(path)).status_code == 401
                assert (await http.post("/api/login", json={"token": "wrong"})).status_code == 401
                assert (await http.post("/api/login", json={"token": ticket})).status_code == 200
                async with httpx2.AsyncClient(base_url=base, timeout=PATIENCE, trust_env=False) as other:
                    assert (await other.post("/api/login", json={"token": ticket})).status_code == 401
                servers = (await http.get("/api/health")).json()["servers"]
                # Whoever runs the tests may have servers too.
                [server] = [one for one in servers if one["workspace"] == str(place.workspace)]
                assert server["transport"] == "stdio"
                api = f"/servers/{server['id']}/api/resources"
                [kernel] = (await http.get(api)).json()["resources"]
                # The first connection began its feed: what comes now is told, to whoever listens later too.
                await http.post(f"{api}/{kernel['resource_id']}/executions", json={"source": "x"})
                async with asyncio.timeout(PATIENCE), http.stream("GET", "/api/events?recent=50") as stream:
                    lines = stream.aiter_lines()
                    await told_of(server["id"], "execution_ended", lines)
                    await agent.run("x + 1")
                    call = await told_of(server["id"], "call_ended", lines)
                    assert (call["tool"], call["ok"], call["kernel"]) == ("run_cell", True, kernel["resource_id"])
                assert (await http.get("/servers/1/api/resources")).status_code == 404
                renamed = await http.post(f"{api}/{kernel['resource_id']}/rename", json={"name": "desk"})
                assert renamed.json()["name"] == "desk"
            assert "was renamed by the console" in await agent.text("status")
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, PATIENCE) == 0
        finally:
            process.kill()
            process.wait()
