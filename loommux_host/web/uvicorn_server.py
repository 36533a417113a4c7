"""uvicorn as both of a server's sockets use it: without its signals and its tick, with a deadline for requests.

Owns how uvicorn is configured, how long a request may take to arrive, and when it goes. Knows no app.
Used by `server.http_server` and `server.private_server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from loommux_host.web.connections import OPEN, Acceptor
from loommux_host.web.errors import error

#: How long an idle connection is kept for a client's next request.
IDLE_CONNECTION_SECONDS = 65
#: How long the head of a request may take, and how long each part of its body.
HEAD_SECONDS, BODY_SECONDS = 10.0, 60.0
#: How long responses that go on in spite of everything may hold up the end.
LINGER_SECONDS = 1


class BoundedProtocol(H11Protocol):
    """A connection that has so long to send a request: uvicorn's own timer runs only between two of them."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        OPEN.made(self)
        self._by(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        OPEN.lost(self)
        self._by(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:
            OPEN.idle(self)
        self._look()

    def abort(self) -> None:
        self.transport.abort()

    def _look(self) -> None:
        """Nothing waits for ever: the rest of a head is due in all, each part of a body by itself."""
        state = self.conn.their_state
        if state is h11.IDLE:
            if self.conn.trailing_data[0] and self._deadline is None:
                self._by(HEAD_SECONDS)
            return
        OPEN.asks(self)
        self._by(BODY_SECONDS if state is h11.SEND_BODY else None)

    def _by(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.abort)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is refused in the shape of every refusal."""
        answer = error(400, "invalid_request", f"{msg.rstrip('.')}: it is not what HTTP/1.1 allows.")
        headers = [*answer.raw_headers, (b"connection", b"close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class WebServer(uvicorn.Server):
    """Waits for `stop`, has `end` done, and goes."""

    def __init__(self, app: ASGIApp, stop: asyncio.Event, end: Callable[[], Awaitable[None]]) -> None:
        super().__init__(
            uvicorn.Config(
                app, lifespan="off", http=BoundedProtocol, ws="none", log_config=None, access_log=False,
                server_header=False, date_header=False, proxy_headers=False,
                timeout_keep_alive=IDLE_CONNECTION_SECONDS, timeout_graceful_shutdown=LINGER_SECONDS,
            )
        )  # fmt: skip
        self._stop, self._end = stop, end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, but connections are accepted as long as there is room."""
        await self.lifespan.startup()
        self.servers = [cast("Any", Acceptor(listener, self._connection, OPEN)) for listener in sockets or []]
        self.started = True

    def _connection(self) -> BoundedProtocol:
        return BoundedProtocol(self.config, self.server_state, self.lifespan.state)

    async def main_loop(self) -> None:
        await self._stop.wait()
        await self._end()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
