"""Connections that say nothing, or only half: they go in time, make room for others, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from loommux_host.web import connections, uvicorn_server
from loommux_host.web.connections import Acceptor, Connections
from loommux_host.web.uvicorn_server import WebServer

pytestmark = [pytest.mark.anyio, pytest.mark.case("X05")]
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
MOST = 8

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{len(await request.body())} bytes")


class Served:
    """A server on a port of its own, and the connections to it."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.address = listener.getsockname()[:2]
        self.opened: list[Stream] = []

    async def open(self, sent: bytes = b"") -> Stream:
        stream = await asyncio.open_connection(*self.address)
        stream[1].write(sent)
        self.opened.append(stream)
        return stream

    async def ask(self, sent: bytes = REQUEST, stream: Stream | None = None) -> bytes:
        reader, writer = stream or await self.open()
        writer.write(sent)
        return (await asyncio.wait_for(reader.readuntil(b" bytes"), 20)).splitlines()[-1]


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """One that may have `MOST` connections."""
    bound = Connections(MOST)
    monkeypatch.setattr(uvicorn_server, "OPEN", bound)
    stop = asyncio.Event()

    async def end() -> None:
        return None

    listener = socket.create_server(("127.0.0.1", 0))
    server = WebServer(Starlette(routes=[Route("/", answer, methods=["GET", "POST"])]), stop, end)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    made = Served(listener)
    yield made
    for _, writer in made.opened:
        writer.close()
    stop.set()
    await serving


async def ended(stream: Stream) -> bool:
    """Whether the server has closed it, sooner or later."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(stream[0].read(), 20) == b""
    return True


async def test_half_a_head_has_a_deadline(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_server, "HEAD_SECONDS", 0.2)
    silent, half = await served.open(), await served.open(REQUEST[:10])
    assert await ended(silent)
    assert await ended(half)


async def test_the_deadline_holds_also_for_a_second_request_and_for_a_body(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_server, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(uvicorn_server, "BODY_SECONDS", 0.2)
    second = await served.open()
    assert await served.ask(stream=second) == b"0 bytes"
    assert await served.ask(stream=second) == b"0 bytes"
    second[1].write(REQUEST[:10])
    assert await ended(second)
    half = await served.open(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1234")
    assert await ended(half)


async def test_those_that_say_nothing_make_room_for_a_request(served: Served) -> None:
    silent = [await served.open(b"G") for _ in range(5 * MOST)]
    assert await served.ask() == b"0 bytes"
    assert await ended(silent[0])


async def test_an_idle_connection_goes_only_when_none_is_silent(served: Served) -> None:
    idle = await served.open()
    assert await served.ask(stream=idle) == b"0 bytes"
    silent = [await served.open(b"G") for _ in range(2 * MOST)]
    assert await served.ask() == b"0 bytes"
    assert await served.ask(stream=idle) == b"0 bytes"
    assert await ended(silent[0])


async def test_when_all_are_in_use_a_connection_waits_and_it_is_said_once(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "PAUSE_SECONDS", 0.05)
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n"
    used = [await served.open(head) for _ in range(MOST)]
    with caplog.at_level(logging.WARNING):
        waiting = asyncio.create_task(served.ask())
        while not caplog.records:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # several pauses
        assert not waiting.done()
        assert await served.ask(b"1", used[0]) == b"1 bytes"
        assert await waiting == b"0 bytes"
    assert [r.message.partition(" (")[0] for r in caplog.records] == [
        "no connection is accepted for the moment: as many are in use as there may be"
    ]


async def test_an_accept_that_fails_waits_and_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "PAUSE_SECONDS", 0.02)
    tried = 0

    class Exhausted(socket.socket):
        def accept(self) -> Any:
            nonlocal tried
            tried += 1
            if tried < 5:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    listener = Exhausted()
    listener.bind(("127.0.0.1", 0))
    accepted = asyncio.get_running_loop().create_future()

    class Taken(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            accepted.set_result(transport)

    with caplog.at_level(logging.WARNING):
        acceptor = Acceptor(listener, Taken, Connections())
        _, writer = await asyncio.open_connection(*listener.getsockname())
        (await asyncio.wait_for(accepted, 20)).close()
        writer.close()
        acceptor.close()
    listener.close()
    assert tried in (5, 6)
    assert len(caplog.records) == 1
    assert "Too many open files" in caplog.records[0].message
