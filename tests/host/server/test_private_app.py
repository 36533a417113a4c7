"""What a forwarded cell says is handed out in whole lines, once, and let go of; and who may do what where."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.relay_file import Relay
from loommux_host.processes.private_socket import ControlSocket
from tests.host.server.http_server import HttpServer
from tests.host.twins import Script, until

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def calling(server: HttpServer, kernel: Kernel, directory: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """The private socket's app as code in that kernel calls it."""
    control = ControlSocket(directory)
    try:
        transport = httpx2.ASGITransport(app=server.app.private(control).asgi)
        headers = {"X-Loommux-Kernel": kernel.id}
        async with httpx2.AsyncClient(base_url="http://x/api", transport=transport, headers=headers) as http:
            yield http
    finally:
        control.close()


def opened(server: HttpServer, name: str) -> Kernel:
    return server.registry.open(name).kernel


async def relayed(
    http: httpx2.AsyncClient, path: str, after: int = 0, wait: float = 0
) -> tuple[list[Any], dict[str, Any]]:
    answer = await http.get(path, params={"execution": 1, "after": after, "wait": wait})
    assert answer.status_code == 200, answer.text
    *lines, last = map(json.loads, answer.text.splitlines())
    return lines, last


async def test_whole_lines_are_handed_out_and_the_end_is_said_with_the_last(
    server: HttpServer, script: Script, tmp_path: Path
) -> None:
    main = opened(server, "lab")
    async with calling(server, main, tmp_path) as http:
        child = (await http.post("/resources", json={"path": "build"})).json()
        base = f"/resources/{child['resource_id']}"
        run = await http.post(f"{base}/executions", json={"source": "hold", "wait_seconds": 0, "relay": True})
        assert run.json()["status"] == "running"
        kernel = server.registry.by_id(child["resource_id"])
        assert kernel is not None and kernel.life is not None
        [(_, relay)] = kernel.life.relays.values()
        assert await relayed(http, f"{base}/relay") == ([], running(0))
        relay.path.write_bytes(b'["text", 1]\n["te')
        assert await relayed(http, f"{base}/relay") == ([["text", 1]], running(12))
        assert await relayed(http, f"{base}/relay", 12) == ([], running(12))
        relay.path.write_bytes(b'["text", 1]\n["text", 2]\n')
        script.go.set()
        life = kernel.life
        await until(lambda: not life.busy)
        lines, last = await relayed(http, f"{base}/relay", 12, wait=10)
        assert (lines, last["next"], last["state"]) == ([["text", 2]], 24, "completed")
        assert not relay.path.exists()
        assert (await http.get(f"{base}/relay?execution=1")).json()["status"] == "execution_not_found"


def running(reached: int) -> dict[str, Any]:
    return {"next": reached, "state": "running", "ename": None, "evalue": None, "message": None}


async def test_what_was_handed_out_is_let_go_but_for_the_end_of_its_last_line(tmp_path: Path) -> None:
    relay = Relay(tmp_path / "relay")
    relay.path.write_bytes(b"1\n2\n3\n")
    assert relay.read(4) == b"3\n"
    assert relay.path.read_bytes()[3:] == b"\n3\n"
    relay.close()


async def test_a_relay_that_is_given_up_leaves_no_file(tmp_path: Path) -> None:
    relay = Relay(tmp_path / "relay")
    relay.path.write_bytes(b"1\n")
    assert relay.read(0) == b"1\n"
    relay.close()
    assert relay.closed
    assert relay.read(0) == b""


async def test_bare_names_are_those_of_the_callers_home(server: HttpServer, tmp_path: Path) -> None:
    one, two = opened(server, "one"), opened(server, "two")
    for main in (one, two):
        server.registry.open("build", home=main.id)
    async with calling(server, one, tmp_path) as http:
        found = {
            path: (await http.get("/resources/lookup", params={"path": path})).json().get("path")
            for path in ("build", "/two/build", "one", "two", "/two", two.id)
        }
        assert found == {
            "build": "/one/build", "/two/build": "/two/build", "one": "/one",
            "two": None, "/two": "/two", two.id: "/two",
        }  # fmt: skip
        again = (await http.post("/resources", json={"path": "build"})).json()
        assert (again["path"], again["opened"]) == ("/one/build", False)
        for path, status in (("/two/more", "kernel_not_found"), ("/more", "invalid_argument")):
            assert (await http.post("/resources", json={"path": path})).json()["status"] == status
        new = (await http.post("/resources", json={"path": "/one/more"})).json()
        assert (new["path"], new["opened"]) == ("/one/more", True)


async def test_a_child_recycles_its_siblings_and_neither_itself_nor_its_home(
    server: HttpServer, tmp_path: Path
) -> None:
    main = opened(server, "lab")
    child, _ = (server.registry.open(name, home=main.id).kernel for name in ("a", "b"))
    async with calling(server, child, tmp_path) as http:
        assert (await http.post("/resources/recycle-all")).json()["recycled"] == ["b"]
        assert [k.name for k in server.registry.children(main.id)] == ["a"]


async def test_only_kernels_have_what_they_run_relayed(server: HttpServer) -> None:
    main = opened(server, "lab")
    async with server.http() as http:
        run = await http.post(f"/api/resources/{main.id}/executions", json={"source": "say", "relay": True})
        assert run.json()["ok"]
    assert main.life is not None
    assert not main.life.relays
