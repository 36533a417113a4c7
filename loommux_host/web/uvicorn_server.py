"""uvicorn as both of a server's sockets use it: without its signals and without its tick.

Owns how uvicorn is configured and when it goes. Knows no app and no socket. Used by
`server.http_server` and `server.private_server`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from loommux_host.web.errors import error

#: How long an idle connection is kept for a client's next request.
IDLE_CONNECTION_SECONDS = 65
#: How long responses that go on in spite of everything may hold up the end.
LINGER_SECONDS = 1


class Http(H11Protocol):
    """HTTP/1.1; what is no HTTP is refused in the shape of every refusal."""

    def send_400_response(self, msg: str) -> None:
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
                app, lifespan="off", http=Http, ws="none", log_config=None, access_log=False,
                server_header=False, date_header=False, proxy_headers=False,
                timeout_keep_alive=IDLE_CONNECTION_SECONDS, timeout_graceful_shutdown=LINGER_SECONDS,
            )
        )  # fmt: skip
        self._stop, self._end = stop, end

    async def main_loop(self) -> None:
        await self._stop.wait()
        await self._end()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
