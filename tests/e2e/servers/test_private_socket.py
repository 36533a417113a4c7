"""Every server is found by its user's programs, and serves them and its kernels over a private socket."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from urllib.parse import unquote

import pytest

from loommux_host.processes.running_servers import Server, living_servers
from tests.e2e.driving import Place, Start
from tests.e2e.http_driving import web
from tests.e2e.private_driving import SCHEME, control, kernels, only_server

pytestmark = pytest.mark.anyio


def modes(server: Server) -> set[int]:
    """The rights of what stands between the server and others."""
    path = Path(unquote(server.control_url.removeprefix(SCHEME)))
    return {stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent / "server.json")}


async def test_a_stdio_server_is_found_and_serves_its_api_to_its_user_alone(start: Start, place: Place) -> None:
    async with start() as agent:
        await agent.run("x = 1")
        server = only_server(place)
        assert (server.transport, server.endpoint, server.workspace) == ("stdio", None, str(place.workspace))
        assert modes(server) == {0o600}
        assert "'http+unix://" in await agent.run("import os; os.environ['LOOMMUX_CONTROL_URL']")
        async with control(server) as http:
            [main] = (await kernels(http)).values()
            assert (main["execution_count"], main["scope"], main["home"]) == (2, "private", None)
            base = f"/resources/{main['resource_id']}"
            ran = (await http.post(f"{base}/executions", json={"source": "x + 1"})).json()
            assert (ran["result_text"], ran["execution"]) == ("2\n", 3)
            assert (await http.get(f"{base}/status")).json()["recent_execution"] == 3
        assert "In [3] (completed, the console)" in await agent.run("1")
    assert living_servers(place.temporary) == []


async def test_the_client_of_a_stdio_server_holds_its_kernel_and_gets_another_when_it_was_recycled(
    start: Start, place: Place
) -> None:
    async with start() as agent:
        await agent.run("x = 1")
        async with control(only_server(place)) as http:
            assert (await http.post("/resources/recycle-idle")).json()["recycled"] == []
            [main] = (await kernels(http)).values()
            await http.post(f"/resources/{main['resource_id']}/recycle", json={})
        text = await agent.run("'x' in dir()")
        assert "Out[1]: False" in text
        assert f"Kernel: {main['name']} (opened; the one before was recycled)" in text
        assert "Kernel:" not in await agent.run("1")


async def test_an_http_server_serves_its_kernels_over_a_socket_without_its_token(place: Place) -> None:
    async with web(place) as running, running.agent(**{"X-Loommux-Resource": "lab"}) as agent:
        server = only_server(place)
        assert (server.transport, server.pid) == ("http", running.process.pid)
        assert server.endpoint == f"{running.base}/mcp"
        assert "'http+unix://" in await agent.run("import os; os.environ['LOOMMUX_CONTROL_URL']")
        async with control(server) as http:
            assert list(await kernels(http)) == ["/lab"]
        async with control(server, **{"X-Loommux-Kernel": "nobody"}) as http:
            refused = await http.get("/resources")
            assert (refused.status_code, refused.json()["status"]) == (404, "kernel_not_found")


async def test_a_server_that_was_killed_is_not_found(place: Place) -> None:
    async with web(place) as running:
        assert only_server(place).pid == running.process.pid
        running.process.kill()
        running.process.wait()
        assert living_servers(place.temporary) == []
    for base in place.temporary.glob("loommux-*"):  # the next server of this user would remove it
        shutil.rmtree(base)
