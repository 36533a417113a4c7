"""MCP over HTTP: the tools on the SDK's lowlevel server.

Owns what joins the SDK's server to `calls`, in both protocol eras; sessions, leases and
transport are the business of `http`, which builds a server here and serves it. A stdio
server speaks the protocol itself (`stdio` says why); a test holds both to the same answers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import mcp_types
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from loommux_host.mcp.calls import Calls, Progress, progress_message
from loommux_host.mcp.eras import CACHE_MILLISECONDS, SERVER_INFO
from loommux_host.mcp.exchange import Exchange
from loommux_host.mcp.tools import INSTRUCTIONS, TOOLS, listing

if TYPE_CHECKING:
    from loommux_host.sessions.callers import Caller

Context = ServerRequestContext[Any, Any]


def build_server(calls: Calls, caller: Callable[[Context], Caller]) -> Server[Any]:
    """The SDK's server with the eight tools. `caller` says who a request comes from."""

    async def list_tools(context: Context, _: object) -> Any:
        return _result(context, {"tools": listing()})

    async def call_tool(context: Context, params: mcp_types.CallToolRequestParams) -> Any:
        if params.name not in TOOLS:
            raise MCPError(mcp_types.INVALID_PARAMS, f"Unknown tool: {params.name}")
        exchange = Exchange.of(context.request)
        with exchange.cutting_off() if exchange else nullcontext():
            outcome = await calls.call(lambda: caller(context), params.name, params.arguments or {}, _progress(context))
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
