"""The API on a server's private socket: for its kernels and for its user's own programs (contract 8, 10).

Owns when it is served (from the first connection on, so that a server that nobody calls
imports nothing for it); who a caller is there, `api.identity` says. What is served is `api`, without the
checks of `web.auth`: whoever can open the socket is this user. Made by the composition roots.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from loommux_host.processes.private_socket import ControlSocket

if TYPE_CHECKING:  # half a second, that a server's start does not wait for
    from starlette.types import ASGIApp

    from loommux_host.web.uvicorn_server import WebServer

log = logging.getLogger(__name__)

#: What serving needs besides the service.
HEAVY = ("loommux_host.web.uvicorn_server", "loommux_host.server.private_app")


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
        self._serving: asyncio.Task[None] | None = None
        self._app: App | None = None
        #: Where somebody has removed the socket's file: those that serve its successors.
        self._more: list[asyncio.Task[None]] = []
        asyncio.get_running_loop().add_reader(control.listener, self._first)

    def _first(self) -> None:
        asyncio.get_running_loop().remove_reader(self._control.listener)
        self._serving = asyncio.create_task(self._serve(), name="private socket")
        self._serving.add_done_callback(_report)

    async def _serve(self) -> None:
        for module in HEAVY:
            await asyncio.to_thread(importlib.import_module, module)
        app = self._app = await self._make()

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
        if self._serving is None:
            loop.remove_reader(before)
            before.close()
            loop.add_reader(self._control.listener, self._first)
        elif self._app is not None:

            async def end() -> None: ...

            more = self._server(self._app, end).serve(sockets=[self._control.listener])
            self._more.append(asyncio.create_task(more, name="private socket, made again"))
            self._more[-1].add_done_callback(_report)

    async def close(self) -> None:
        """Serve nobody any more; requests in flight have a second to be answered."""
        self._stop.set()
        if self._serving is None:
            asyncio.get_running_loop().remove_reader(self._control.listener)
        else:
            await asyncio.wait({self._serving, *self._more})


def _report(serving: asyncio.Task[None]) -> None:
    if not serving.cancelled() and (error := serving.exception()) is not None:
        log.error("the private socket is not served", exc_info=error)
