"""All that is taken from the MCP SDK's server: its lowlevel server with our tools, its session manager with seams.

Owns every place where the SDK is called, subclassed or set, so that an upgrade of it breaks
this file and no other; ``tests/host/mcp/test_sdk.py`` pins the private names, and what it has
to be told of them stands there. Nobody else here imports `mcp`, `mcp_types` or
`sse_starlette`. Sessions, leases and transport are the business of `http`, which serves what
is built here. A stdio server speaks the protocol itself (`stdio` says why); a test holds both
to the same answers.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import mcp_types
import sse_starlette.sse
from anyio import ClosedResourceError
from mcp.server.caching import CacheHint
from mcp.server.context import ServerMiddleware, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.types import ASGIApp, Message, Scope

from loommux_host.mcp.eras import CACHE_MILLISECONDS, SERVER_INFO
from loommux_host.mcp.http_exchange import CutOff, Exchange
from loommux_host.mcp.tool_calls import Calls, Progress, progress_message
from loommux_host.mcp.tools import INSTRUCTIONS, TOOLS, listing
from loommux_host.web.auth import BODY_LIMIT

if TYPE_CHECKING:
    from loommux_host.sessions.callers import Caller

__all__ = [
    "HANDSHAKE_PROTOCOL_VERSIONS", "SESSION_HEADER", "Context", "Manager", "Server", "build_server", "extend",
    "standing_streams", "unwatched",
]  # fmt: skip

Context = ServerRequestContext[Any, Any]
Handler = Callable[[Context, Any], Awaitable[Any]]

SESSION_HEADER = "mcp-session-id"
#: The id under which this task's request opens a session, when it is one of the server before this.
_reopening: ContextVar[str | None] = ContextVar("reopening", default=None)


def build_server(calls: Calls, caller: Callable[[Context], Caller]) -> Server[Any]:
    """The SDK's server with the eight tools. `caller` says who a request comes from."""

    async def list_tools(context: Context, _: object) -> Any:
        return _result(context, {"tools": listing()})

    async def call_tool(context: Context, params: mcp_types.CallToolRequestParams) -> Any:
        if params.name not in TOOLS:
            raise MCPError(mcp_types.INVALID_PARAMS, f"Unknown tool: {params.name}")
        exchange = Exchange.of(context.request)
        try:
            with exchange.cutting_off() if exchange else nullcontext():
                outcome = await calls.call(
                    lambda: caller(context), params.name, params.arguments or {}, _progress(context)
                )
        except CutOff as cut_off:
            raise MCPError(mcp_types.CONNECTION_CLOSED, str(cut_off)) from None
        if exchange:
            exchange.carries(outcome)
        else:
            outcome.delivered()
        return _result(context, outcome.result)

    hint = CacheHint(ttl_ms=CACHE_MILLISECONDS, scope="public")
    server: Server[Any] = Server(
        SERVER_INFO["name"],
        version=SERVER_INFO["version"],
        title=SERVER_INFO["title"],
        instructions=INSTRUCTIONS,
        cache_hints={"tools/list": hint, "server/discover": hint},
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    # Telemetry is on by default and costs every call 0.2 ms without an exporter.
    server.middleware.clear()
    return server


def _result(context: Context, result: dict[str, Any]) -> dict[str, Any]:
    """Results are handed over as JSON; the modern era's word for a finished one is not added by the SDK."""
    modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    return {**result, "resultType": "complete"} if modern else result


def _progress(context: Context) -> Progress:
    """How the client of a request is told of progress; the SDK drops what a client did not ask for."""

    async def tell(elapsed: float, last_line: str) -> None:
        await context.session.report_progress(round(elapsed, 3), None, progress_message(elapsed, last_line))

    return tell


# -- over HTTP ------------------------------------------------------------------------------


def extend(server: Server[Any], listen: Handler, signed: ServerMiddleware[Any]) -> None:
    """Give a server what HTTP needs: `listen` opens standing streams, `signed` hears of every request."""
    server.add_request_handler("subscriptions/listen", mcp_types.SubscriptionsListenRequestParams, listen)
    server.middleware.append(signed)
    # Without this the SDK lists all tools in every modern call, to look for headers that no tool has.
    server.get_tool_input_schema = lambda name: None


def standing_streams() -> ListenHandler:
    """The handler of ``subscriptions/listen``; nothing is ever published to it. `close` ends its streams in order."""
    return ListenHandler(InMemorySubscriptionBus())


def unwatched() -> None:
    """Keep sse_starlette's watcher from starting.

    It would look twice a second for uvicorn's end and cut streams that are to end in order.
    """
    sse_starlette.sse._get_shutdown_state().watcher_started = True


class Manager(StreamableHTTPSessionManager):
    """The SDK's manager, with the seams it lacks.

    * `on_begin` is told of every session that opens, `on_end` of every one that is over, whoever ended it.
    * A cancelled request's stream ends without an answer: the SDK sends an error there,
      on which some clients break.
    """

    def __init__(self, server: Server[Any], on_begin: Callable[[str], None], on_end: Callable[[str], None]) -> None:
        # Sessions end with their client or with `McpHttp.sweep`, never in the middle of a long cell.
        super().__init__(server, session_idle_timeout=None, max_request_body_size=BODY_LIMIT)
        self._on_begin, self._on_end = on_begin, on_end

    def knows(self, session_id: str) -> bool:
        return session_id in self._server_instances

    async def reopen(self, session_id: str, opened: dict[str, Any]) -> None:
        """Open a session under the id that it had; `opened` is what its client said in ``initialize``."""
        before = _reopening.set(session_id)
        try:
            await _exchanged(self.handle_request, {"id": 0, "method": "initialize", "params": opened})
        finally:
            _reopening.reset(before)
        await _exchanged(self.handle_request, {"method": "notifications/initialized"}, session_id)

    async def end(self, session_id: str) -> None:
        """End a session as if its client had deleted it."""
        if (transport := self._server_instances.get(session_id)) is not None:
            await self._discard_session(session_id, transport)

    def _admit_session(self, requestor: Any) -> StreamableHTTPServerTransport | None:
        transport = super()._admit_session(requestor)
        if transport is not None and (known := _reopening.get()) is not None:
            del self._server_instances[transport.mcp_session_id or ""]
            transport.mcp_session_id = known
            self._server_instances[known] = transport
        if transport is not None and transport.mcp_session_id is not None:
            self._on_begin(transport.mcp_session_id)
            transport._terminate_unanswered_request = partial(_end_stream, transport)  # pyright: ignore[reportAttributeAccessIssue]
        return transport

    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        known = self.knows(session_id)
        await super()._discard_session(session_id, transport)
        if known:
            self._on_end(session_id)


async def _end_stream(transport: StreamableHTTPServerTransport, request_id: mcp_types.RequestId) -> None:
    await transport._clean_up_memory_streams(str(request_id))


async def _exchanged(app: ASGIApp, message: dict[str, Any], session_id: str | None = None) -> None:
    """Have a message of a client answered, and throw the answer away."""
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    if session_id is not None:
        headers[SESSION_HEADER] = session_id
    scope: Scope = {
        "type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "scheme": "http",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "client": None,
    }  # fmt: skip
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    over = asyncio.Event()
    bodies = [body]

    async def receive() -> Message:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body"):
            over.set()

    await app(scope, receive, send)


def _goes_on(record: logging.LogRecord) -> bool:
    """Whether what the SDK logs is more than that a session ended while a message of it was on its way."""
    return not (record.exc_info and isinstance(record.exc_info[1], ClosedResourceError))


logging.getLogger("mcp.server.streamable_http").addFilter(_goes_on)
