"""What `mcp.sdk` takes for granted of the MCP SDK and sse_starlette, and `web.uvicorn_server` of uvicorn.

Each test pins private names or habits that are no promise of theirs. When a new release
breaks one, the module named in its message has to be looked at before anything else.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import sse_starlette.sse
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from loommux_host.mcp import eras
from loommux_host.mcp.sdk import Manager

pytestmark = pytest.mark.anyio
SDK, UVICORN = "loommux_host/mcp/sdk.py", "loommux_host/web/uvicorn_server.py"

#: Whose private method, its parameters, who calls it through `self`, what relies on it.
METHODS: list[tuple[type, str, list[str], list[str], str]] = [
    (StreamableHTTPSessionManager, "_admit_session", ["requestor"], ["_handle_stateful_request"], SDK),
    (
        StreamableHTTPSessionManager, "_discard_session", ["session_id", "transport"],
        ["_handle_stateful_request", "_serve_opening_request"], SDK,
    ),
    (
        StreamableHTTPServerTransport, "_terminate_unanswered_request", ["request_id"],
        ["_create_session_message", "_handle_post_request"], SDK,
    ),
    (
        StreamableHTTPServerTransport, "_clean_up_memory_streams", ["request_id"],
        ["_run_sse_writer", "terminate"], SDK,
    ),
    (uvicorn.Server, "main_loop", [], ["_serve"], UVICORN),
    (uvicorn.Server, "capture_signals", [], ["serve"], UVICORN),
]  # fmt: skip


@pytest.mark.parametrize(
    ("owner", "name", "parameters", "callers", "relies"), METHODS, ids=[f"{m[0].__name__}.{m[1]}" for m in METHODS]
)
async def test_a_method_that_is_replaced_is_there_and_called(
    owner: type, name: str, parameters: list[str], callers: list[str], relies: str
) -> None:
    what = f"{owner.__module__}.{owner.__name__}.{name}"
    method = getattr(owner, name, None)
    assert method is not None, f"{what} is gone; {relies} replaces or calls it"
    now = list(inspect.signature(method).parameters)[1:]
    assert now == parameters, f"{what} takes {now}, no longer {parameters}; see {relies}"
    for caller in callers:
        calling: Callable[..., Any] | None = getattr(owner, caller, None)
        assert calling is not None, f"{owner.__name__}.{caller}, which called {what}, is gone; see {relies}"
        assert f"self.{name}" in inspect.getsource(calling), f"{caller} no longer calls {what}; see {relies}"


@pytest.mark.parametrize("name", ["_discard_session", "_terminate_unanswered_request", "_clean_up_memory_streams"])
async def test_what_is_awaited_is_a_coroutine(name: str) -> None:
    owner = StreamableHTTPSessionManager if name == "_discard_session" else StreamableHTTPServerTransport
    assert inspect.iscoroutinefunction(getattr(owner, name)), f"{owner.__name__}.{name} is to be awaited; see {SDK}"


async def test_the_manager_keeps_sessions_by_id_and_asks_the_replaced_methods() -> None:
    told: list[tuple[str, str]] = []
    manager = Manager(Server("x"), lambda id: told.append(("began", id)), lambda id: told.append(("ended", id)))
    transport = manager._admit_session(None)
    assert transport is not None
    assert transport.mcp_session_id is not None, f"a session has no id from its start on; see {SDK}"
    id = transport.mcp_session_id
    assert manager.knows(id), f"StreamableHTTPSessionManager._server_instances no longer has open sessions; see {SDK}"
    await manager.end(id)
    assert not manager.knows(id), f"_discard_session no longer forgets the session; see {SDK}"
    assert transport.is_terminated, f"_discard_session no longer ends the transport; see {SDK}"
    assert told == [("began", id), ("ended", id)]


async def test_a_request_without_an_answer_is_ended_by_closing_its_stream() -> None:
    manager = Manager(Server("x"), lambda id: None, lambda id: None)
    transport = manager._admit_session(None)
    assert transport is not None
    streams: Any = transport._request_streams
    assert streams == {}, f"StreamableHTTPServerTransport._request_streams is no table of open requests; see {SDK}"
    sending, receiving = anyio.create_memory_object_stream[Any](1)
    streams["7"] = (sending, receiving)
    await transport._terminate_unanswered_request(7)
    assert not streams, f"_clean_up_memory_streams no longer takes ids as text; see {SDK}"
    with pytest.raises(anyio.ClosedResourceError):
        await sending.send("an answer")
    await transport.terminate()


async def test_the_watcher_of_sse_starlette_believes_that_it_runs() -> None:
    sse = sse_starlette.sse
    for name in ("_get_shutdown_state", "_ensure_watcher_started_on_this_loop"):
        assert hasattr(sse, name), f"sse_starlette.sse.{name} is gone; see {SDK}"
    state = sse._get_shutdown_state()
    assert state is sse._get_shutdown_state(), f"_get_shutdown_state makes a new state each time; see {SDK}"
    assert isinstance(state.watcher_started, bool), f"_ShutdownState.watcher_started is no flag; see {SDK}"
    was, state.watcher_started = state.watcher_started, True
    try:
        before = asyncio.all_tasks()
        sse._ensure_watcher_started_on_this_loop()
        assert asyncio.all_tasks() == before, f"sse_starlette's watcher starts in spite of its flag; see {SDK}"
    finally:
        state.watcher_started = was


async def test_the_servers_own_seams_are_there() -> None:
    server: Server[Any] = Server("x")
    missing = [n for n in ("get_tool_input_schema", "middleware", "add_request_handler") if not hasattr(server, n)]
    assert not missing, f"mcp.server.lowlevel.Server has no {missing}; see {SDK}"
    assert hasattr(ListenHandler(InMemorySubscriptionBus()), "close"), f"ListenHandler has no close; see {SDK}"


async def test_the_versions_of_both_eras_are_the_sdks() -> None:
    assert eras.HANDSHAKE_VERSIONS == HANDSHAKE_PROTOCOL_VERSIONS, f"the SDK speaks others; see {SDK}"
    assert eras.MODERN_VERSIONS == MODERN_PROTOCOL_VERSIONS, f"the SDK speaks others; see {SDK}"
