"""Many connections that never ask for anything: the server answers others, and its kernels keep the user's limit."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.e2e.driving import Place
from tests.e2e.http_driving import web

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")]
SOFT, CONNECTIONS = 256, 400


@contextlib.contextmanager
def soft_limit(soft: int) -> Iterator[None]:
    """What is started meanwhile may have so many descriptors, unless it asks for more."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.case("X05")
async def test_connections_that_say_nothing_keep_nobody_out(place: Place) -> None:
    async with contextlib.AsyncExitStack() as stack:
        with soft_limit(SOFT):
            server = await stack.enter_async_context(web(place))
        where = urlsplit(server.base)
        async with server.agent() as agent:
            limit = "import resource; resource.getrlimit(resource.RLIMIT_NOFILE)[0]"
            assert f": {SOFT}" in await agent.run(limit)
            assert f"\n{SOFT}" in await agent.run("!ulimit -n")
            for _ in range(CONNECTIONS):
                made = stack.enter_context(socket.create_connection((where.hostname, where.port)))
                made.send(b"G")
            async with server.http() as http:
                answer = await http.get("/api/health")
            assert answer.json()["status"] == "running"
            assert "Out[3]: 1" in await agent.run("1")
    assert "accept" not in place.log()
