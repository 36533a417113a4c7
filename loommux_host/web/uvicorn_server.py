"""uvicorn as both of a server's sockets use it: without its signals and without its tick.

Owns how uvicorn is configured and when it goes. Knows no app and no socket. Used by
`server.http_server` and `server.private_server`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

#: How long an idle connection is kept for a client's next request.
IDLE_CONNECTION_SECONDS = 65
#: How long responses that go on in spite of everything may hold up the end.
LINGER_SECONDS = 1


class WebServer(uvicorn.Server):
    """Waits for `stop`, has `end` done, and goes."""

    def __init__(self, app: ASGIApp, stop: asyncio.Event, end: Callable[[], Awaitable[None]]) -> None:
        super().__init__(
            uvicorn.Config(
                app, lifespan="off", http="h11", ws="none", log_config=None, access_log=False,
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
