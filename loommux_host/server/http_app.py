"""The HTTP face put together: MCP at one path, the API under ``/api``, one guard in front.

Owns the assembly of the app and the order in which it stops taking requests. Everything
it is made of is a module of its own; `http_server` runs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from loommux_host.api.activity import News
from loommux_host.api.call_activity import WatchedCalls
from loommux_host.api.endpoint import routes
from loommux_host.api.endpoint_table import endpoints
from loommux_host.api.feed import Feed
from loommux_host.api.handlers import Api
from loommux_host.api.history import History
from loommux_host.config import Config
from loommux_host.console.page import about, open_paths, page_routes
from loommux_host.facts.result_limits import Limits
from loommux_host.mcp.http import McpHttp
from loommux_host.mcp.http_callers import address_of, caller_of
from loommux_host.mcp.sdk import Context, build_server
from loommux_host.processes.private_socket import ControlSocket
from loommux_host.server.handover import Memory, Remembered
from loommux_host.server.private_app import PrivateApi
from loommux_host.sessions.binding import Binder
from loommux_host.sessions.callers import Caller
from loommux_host.sessions.lease_enforcement import LeaseEnforcement
from loommux_host.usecases.fleet import Fleet
from loommux_host.usecases.resource_usage import ResourceUsage
from loommux_host.usecases.service import Service
from loommux_host.web.auth import Access, Guard
from loommux_host.web.errors import error, http_error, server_error

#: How long answers that are made already may take to go out.
SEND_SECONDS = 1.0


@dataclass
class Parts:
    """What an HTTP server adds to a host: made before the service, because the service is told of them."""

    feed: Feed
    leasing: LeaseEnforcement
    binder: Binder
    #: Sessions of a dead server, with how they were opened.
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)


class HttpApp:
    """The app of one server. `run` around its life; `stop` before the end of `run`."""

    def __init__(self, config: Config, service: Service, parts: Parts, rules: Access) -> None:
        self._service, self._feed, self._leasing = service, parts.feed, parts.leasing
        registry = parts.binder.registry
        fleet = Fleet(registry, service.sessions, parts.leasing, parts.binder, ResourceUsage())
        limits = Limits(config.max_result_bytes, config.omission_tail_lines, ascii_wire=True)
        self._news = News(registry, parts.feed)
        rules = replace(rules, open_paths=(rules.open_paths | open_paths()) - {config.path})
        self._api = api = Api(
            service, fleet, History(self._news), parts.feed, limits,
            {**about(config, "http"), "token_needed": rules.token is not None}, rules.token,
        )  # fmt: skip

        def identify(context: Context) -> Caller:
            caller = caller_of(context)
            parts.leasing.called_from(caller, address_of(context))
            return caller

        calls = WatchedCalls(_there(service), limits, structured=config.structured)
        calls.feed = parts.feed if config.activity_feed else None
        self._mcp = McpHttp(
            build_server(calls, identify), parts.leasing, parts.binder, service.sessions,
            handshake_only=config.protocol == "handshake", sweep_seconds=config.sweep_interval_seconds,
        )  # fmt: skip
        paths = [Route(config.path, self._mcp), *routes(endpoints(api)), *page_routes()]
        starlette = Starlette(routes=paths, exception_handlers={HTTPException: http_error, Exception: server_error})
        self._mcp.recall(parts.sessions)
        self._memory: Memory | None = None
        self._hours = UntilStopped(starlette)
        self.asgi: ASGIApp = Guard(self._hours, rules)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        async with self._mcp.run():
            yield
        ending = list(self._leasing.close())
        if ending:
            await asyncio.wait(ending)

    def private(self, control: ControlSocket) -> PrivateApi:
        """What is served on the server's private socket."""
        made = PrivateApi(self._api, self._service.registry, control)
        if self._memory is not None:
            made.asgi = Remembered(made.asgi, self._memory)
        return made

    def open_sessions(self) -> dict[str, dict[str, Any]]:
        """The sessions of the handshake era by id, with how each was opened."""
        return self._mcp.open_sessions()

    def remember(self, memory: Memory) -> None:
        """Have what a successor needs written before it is told to anybody."""
        self._memory = memory
        self.asgi = Remembered(self.asgi, memory)

    async def stop(self) -> None:
        """Take no more requests, have the waiting ones answered, end the streams."""
        if self._memory is not None:
            self._memory.close()
        self._hours.stopped = True
        self._mcp.end_streams()
        self._feed.close()
        self._news.close()
        await self._service.drain()
        await self._mcp.quiet(SEND_SECONDS)


class UntilStopped:
    """ASGI that passes requests on until the server stops."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.stopped = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.stopped or scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await error(503, "server_stopping", "The server is shutting down.")(scope, receive, send)


def _there(service: Service) -> asyncio.Future[Service]:
    there: asyncio.Future[Service] = asyncio.get_running_loop().create_future()
    there.set_result(service)
    return there
