"""`loommux console`: one page for all servers of a user, also those over stdio, for one browser."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys

import httpx2
import pytest
from driving import PATIENCE, Place, Start, until

pytestmark = pytest.mark.anyio


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
                [server] = (await http.get("/api/health")).json()["servers"]
                assert (server["transport"], server["workspace"]) == ("stdio", str(place.workspace))
                api = f"/servers/{server['id']}/api/resources"
                [kernel] = (await http.get(api)).json()["resources"]
                # The first connection began its feed: what comes now is told, to whoever listens later too.
                await http.post(f"{api}/{kernel['resource_id']}/executions", json={"source": "x"})
                async with asyncio.timeout(PATIENCE), http.stream("GET", "/api/events?recent=50") as stream:
                    event = None
                    async for line in stream.aiter_lines():
                        event = line if line.startswith("event: ") else event
                        if event == "event: execution_ended" and line.startswith("data: "):
                            assert json.loads(line.removeprefix("data: "))["server"] == server["id"]
                            break
                assert (await http.get("/servers/1/api/resources")).status_code == 404
                renamed = await http.post(f"{api}/{kernel['resource_id']}/rename", json={"name": "desk"})
                assert renamed.json()["name"] == "desk"
            assert "was renamed by the console" in await agent.text("status")
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, PATIENCE) == 0
        finally:
            process.kill()
            process.wait()
