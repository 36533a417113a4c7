"""The API on a server's private socket: for its kernels and for its user's own programs (contract 8, 10).

Owns when it is served (from the first connection on, so that a server that nobody calls
imports nothing for it); who a caller is there, `api.identity` says. What is served is `api`, without the
checks of `web.auth`: whoever can open the socket is this user. Made by the composition roots.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import select
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from loommux_host.processes.private_socket import ControlSocket

if TYPE_CHECKING:  # half a second, that a server's start does not wait for
    from starlette.types import ASGIApp

    from loommux_host.web.uvicorn_server import WebServer

log = logging.getLogger(__name__)

#: What serving needs besides the service.
HEAVY = ("loommux_host.web.uvicorn_server", "loommux_host.server.private_app")

NOT_YET = "The server cannot serve this yet; its log says why. Send it again."
#: How long one who is turned away may take to send a request.
TURN_AWAY_SECONDS = 1.0


class App(Protocol):
    """What is served, and how it lets go of those who wait."""

    @property
    def asgi(self) -> ASGIApp: ...
    def close(self) -> None: ...


class Private:
    """The private face of one server. `make` gives the app once somebody connects; `close` at the end."""

    def __init__(self, control: ControlSocket, make: Callable[[], Awaitable[App]]) -> None:
        self._control, self._make = control, make
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        #: What is served; from then on the listener is uvicorn's.
        self._app: App | None = None
        self._starting = False
        asyncio.get_running_loop().add_reader(control.listener, self._first)

    def _first(self) -> None:
        asyncio.get_running_loop().remove_reader(self._control.listener)
        self._starting = True
        self._begin(self._serve(), "private socket")

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        serving = asyncio.create_task(work, name=name)
        self._tasks.add(serving)
        serving.add_done_callback(self._tasks.discard)
        serving.add_done_callback(_report)

    async def _serve(self) -> None:
        try:
            for module in HEAVY:
                await asyncio.to_thread(importlib.import_module, module)
            app = await self._make()
        except Exception:  # a disk, a limit: whoever asks next may find it passed
            log.exception("the private socket cannot be served yet; the next request tries again")
            asked = _connected(self._control.listener)
            self._starting = False
            if not self._stop.is_set():  # before anybody is answered: who asks next is not of those
                asyncio.get_running_loop().add_reader(self._control.listener, self._first)
            await asyncio.to_thread(_turn_away, asked)
            return
        self._app = app

        async def end() -> None:
            app.close()

        await self._server(app, end).serve(sockets=[self._control.listener])

    def _server(self, app: App, end: Callable[[], Awaitable[None]]) -> WebServer:
        from loommux_host.web.uvicorn_server import WebServer

        return WebServer(app.asgi, self._stop, end)

    async def listen_again(self) -> None:
        """Serve at the same address when the socket's file was removed; who is connected stays. Raises OSError."""
        before = self._control.listen_again()
        if before is None:
            return
        loop = asyncio.get_running_loop()
        if self._app is None:
            loop.remove_reader(before)
            before.close()
            if not self._starting:
                loop.add_reader(self._control.listener, self._first)
            return

        async def end() -> None: ...

        more = self._server(self._app, end).serve(sockets=[self._control.listener])
        self._begin(more, "private socket, made again")

    async def close(self) -> None:
        """Serve nobody any more; requests in flight have a second to be answered."""
        self._stop.set()
        if self._app is None:
            asyncio.get_running_loop().remove_reader(self._control.listener)
        if self._tasks:
            await asyncio.wait(self._tasks)


def _connected(listener: socket.socket) -> list[socket.socket]:
    """Those who have connected already."""
    found: list[socket.socket] = []
    with contextlib.suppress(OSError):
        while select.select([listener], [], [], 0)[0]:
            found.append(listener.accept()[0])
    return found


def _turn_away(connections: list[socket.socket]) -> None:
    """Answer them: they would wait for ever."""
    body = json.dumps({"ok": False, "status": "internal_error", "message": NOT_YET}).encode()
    head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length:"
    for connection in connections:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(TURN_AWAY_SECONDS)
            connection.recv(1 << 16)  # closing on what was not read would reset the connection
            connection.sendall(f"{head} {len(body)}\r\n\r\n".encode() + body)


def _report(serving: asyncio.Task[None]) -> None:
    if not serving.cancelled() and (error := serving.exception()) is not None:
        log.error("the private socket is not served", exc_info=error)
