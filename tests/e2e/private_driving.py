"""Calling real servers over their private sockets, as kernels and the user's programs do."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import httpx2

from loommux_host.processes.running_servers import Server, living_servers
from tests.e2e.driving import PATIENCE, Place

SCHEME = "http+unix://"


def only_server(place: Place) -> Server:
    [server] = living_servers(place.temporary)
    return server


def server_with(place: Place, pid: int) -> Server:
    return next(server for server in living_servers(place.temporary) if server.pid == pid)


def control(server: Server, **headers: str) -> httpx2.AsyncClient:
    """A client of the private socket."""
    assert server.control_url.startswith(SCHEME)
    transport = httpx2.AsyncHTTPTransport(uds=unquote(server.control_url.removeprefix(SCHEME)))
    return httpx2.AsyncClient(
        base_url="http://loommux/api", transport=transport, headers=headers, timeout=PATIENCE, trust_env=False
    )


async def kernels(http: httpx2.AsyncClient) -> dict[str, dict[str, Any]]:
    """All kernels by path."""
    listed = (await http.get("/resources")).json()["resources"]
    return {one["path"]: one for one in listed}
