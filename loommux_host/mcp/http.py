"""MCP over Streamable HTTP: what stands between the network and the SDK's session manager.

Owns the sessions of the handshake era and their end, the standing streams of both eras,
dropped connections, and what the SDK answers otherwise than the contract wants: a stale
session id on ``initialize``, a cancelled request, modern requests under ``--protocol
handshake``. Plain ASGI. Built by `server.http_app` around the server of `sdk`; tells `sessions.lease_enforcement`,
`sessions` and `sessions.binding` who is there.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from anyio import ClosedResourceError
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from loommux_host.mcp.http_callers import caller_id, caller_of, leaver
from loommux_host.mcp.http_exchange import SCOPE_KEY, Exchange
from loommux_host.mcp.sdk import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    SESSION_HEADER,
    Context,
    Manager,
    Server,
    extend,
    standing_streams,
)
from loommux_host.sessions.binding import Binder
from loommux_host.sessions.callers import Sessions
from loommux_host.sessions.lease_enforcement import LeaseEnforcement, lease_key

VERSION_HEADER = "mcp-protocol-version"
METHOD_HEADER = "mcp-method"
#: How long, in seconds, a session without a kernel may be idle before it is given up.
IDLE_SECONDS = 86_400.0
#: How long the SDK may take to open a session anew.
REOPEN_SECONDS = 5.0

#: What a server that knows no modern era answers; the code of the SDKs of that time.
LEGACY_REFUSAL = -32000


@dataclass
class _Session:
    """A session of the handshake era. `requests` are open now, streams included."""

    caller: str
    requests: int = 0
    last: float = field(default_factory=time.monotonic)
    #: How it was opened: what its client said in ``initialize``; empty until it was.
    opened: dict[str, Any] = field(default_factory=dict)


class McpHttp:
    """The ASGI app at ``--path``. `run` around its life; `end_streams`, `quiet`, then the end of `run` at the end."""

    def __init__(
        self,
        server: Server[Any],
        leasing: LeaseEnforcement,
        binder: Binder,
        sessions: Sessions,
        *,
        handshake_only: bool,
        sweep_seconds: float,
    ) -> None:
        self._leasing, self._binder, self._sessions = leasing, binder, sessions
        self._handshake_only, self._sweep_seconds = handshake_only, sweep_seconds
        self._manager = Manager(server, self._began, self._ended)
        self._known: dict[str, _Session] = {}
        self._asleep: dict[str, dict[str, Any]] = {}
        self._waking = asyncio.Lock()
        self._recalled = time.monotonic()
        self._listening = standing_streams()
        self._swept = time.monotonic()
        self._sweeping: asyncio.Task[None] | None = None
        self._closing = False
        #: How many requests are open that an answer ends, and whether there are none.
        self._open = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        extend(server, self._listen, self._signed)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        async with self._manager.run():
            try:
                yield
            finally:
                self._closing = True
                self.end_streams()
                if self._sweeping is not None:
                    self._sweeping.cancel()

    def open_sessions(self) -> dict[str, dict[str, Any]]:
        """The sessions by id, with how each was opened, for a successor of this server."""
        return {id: one.opened for id, one in self._known.items() if one.opened} | self._asleep

    def recall(self, sessions: dict[str, dict[str, Any]]) -> None:
        """Sessions of a server whose kernels were taken over: each goes on when its client comes back."""
        self._asleep, self._recalled = dict(sessions), time.monotonic()

    def end_streams(self) -> None:
        """End the standing streams of the modern era in order; those of the handshake era end with `run`."""
        self._listening.close()

    async def quiet(self, seconds: float) -> None:
        """Until every request that an answer ends has it, at most so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), seconds)

    # -- every request --------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused(scope)
        if refused is not None:
            await refused(scope, receive, send)
            return
        leaves = scope["method"] == "DELETE" and not self._handshake_only
        if leaves and (caller := leaver(Headers(scope=scope))) is not None:
            self._forget(caller)
            await Response()(scope, receive, send)
            return
        await self._wake(Headers(scope=scope).get(SESSION_HEADER))
        scope, receive = await self._without_stale_session(scope, receive)
        exchange = scope[SCOPE_KEY] = Exchange()
        watched = _Watched(exchange, receive, send)
        with self._session_request(scope, watched), self._answering(scope), closing(exchange):
            try:
                await self._manager.handle_request(scope, watched.receive, watched.send)
            except ClosedResourceError:
                if not watched.complete:
                    raise  # else a notification, accepted a moment before its client ended the session

    def _refused(self, scope: Scope) -> Response | None:
        version = Headers(scope=scope).get(VERSION_HEADER)
        if self._handshake_only and version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            known = ", ".join(reversed(HANDSHAKE_PROTOCOL_VERSIONS))
            message = f"Bad Request: Unsupported protocol version: {version[:40]} (supported versions: {known})"
            error = {"code": LEGACY_REFUSAL, "message": message}
            return JSONResponse({"jsonrpc": "2.0", "error": error, "id": None}, status_code=400)
        return None

    async def _without_stale_session(self, scope: Scope, receive: Receive) -> tuple[Scope, Receive]:
        """A client that opens anew may still carry the session id of a server that was restarted."""
        drop = {b"last-event-id"}  # nothing can be replayed, and the SDK answers nothing then
        session = Headers(scope=scope).get(SESSION_HEADER)
        if session is not None and scope["method"] == "POST" and not self._manager.knows(session):
            first = await receive()
            if _is_initialize(first):
                drop.add(SESSION_HEADER.encode())
            receive = _again(first, receive)
        headers = [(name, value) for name, value in scope["headers"] if name not in drop]
        return {**scope, "headers": headers}, receive

    @contextmanager
    def _session_request(self, scope: Scope, watched: _Watched) -> Iterator[None]:
        """While a request of a session is open: it is a sign of its client, and its stream holds the lease."""
        session_id = Headers(scope=scope).get(SESSION_HEADER)
        if session_id is None or not self._manager.knows(session_id):
            yield
            return
        session = self._known[session_id]
        session.requests += 1
        self._leasing.signed(session.caller)
        if scope["method"] == "GET":
            watched.on_start = lambda: self._stream_opened(session.caller, session.caller)
        try:
            yield
        finally:
            session.requests -= 1
            session.last = time.monotonic()
            if watched.started and watched.on_start is not None:
                self._stream_closed(session.caller, session.caller)
            self._sweep_soon()

    @contextmanager
    def _answering(self, scope: Scope) -> Iterator[None]:
        """While a request is open that an answer ends: all but standing streams."""
        if scope["method"] == "GET" or Headers(scope=scope).get(METHOD_HEADER) == "subscriptions/listen":
            yield
            return
        self._open += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._quiet.set()

    async def _signed(self, ctx: Context, call_next: Callable[[Context], Awaitable[Any]]) -> Any:
        """Any request of a caller without a session is a sign of it; sessions are seen in `_session_request`."""
        if ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            self._leasing.signed_without_session(caller_of(ctx))
        elif ctx.session.client_params is not None and ctx.request is not None:
            session = self._known.get(ctx.request.headers.get(SESSION_HEADER) or "")
            if session is not None and not session.opened:
                said = ctx.session.client_params.model_dump(mode="json", by_alias=True, exclude_none=True)
                session.opened = {**said, "protocolVersion": ctx.protocol_version}
        return await call_next(ctx)

    # -- streams ------------------------------------------------------------------------

    async def _listen(self, context: Context, params: Any) -> Any:
        """``subscriptions/listen``: with a resource it is the standing stream of the modern era."""
        caller = caller_of(context)
        if caller.resource is None:
            return await self._listening(context, params)
        key = lease_key(caller)
        self._stream_opened(caller.id, key)
        try:
            return await self._listening(context, params)
        finally:
            self._stream_closed(caller.id, key)

    def _stream_opened(self, caller: str, key: str) -> None:
        self._sessions.stream_opened(caller)
        self._leasing.stream_opened(key)

    def _stream_closed(self, caller: str, key: str) -> None:
        self._sessions.stream_closed(caller)
        self._leasing.stream_closed(key)

    # -- the beginning and the end of sessions -----------------------------------------------

    async def _wake(self, session_id: str | None) -> None:
        """Have a session of the server before this go on, as if its client had opened it here."""
        if session_id not in self._asleep:
            return
        async with self._waking:
            if (opened := self._asleep.pop(session_id, None)) is not None:
                with suppress(TimeoutError):  # then it is as unknown as any other
                    async with asyncio.timeout(REOPEN_SECONDS):
                        await self._manager.reopen(session_id, opened)
                if (session := self._known.get(session_id)) is not None:
                    session.opened = opened

    def _began(self, session_id: str) -> None:
        """Known from its first request on: a client that never comes back is given up too."""
        self._known[session_id] = _Session(caller_id(session_id))
        self._sweep_soon()

    def _ended(self, session_id: str) -> None:
        self._known.pop(session_id, None)
        self._forget(caller_id(session_id))

    def _forget(self, caller: str) -> None:
        """It is gone, and will not come back."""
        self._binder.forget(caller)
        self._leasing.client_left(caller)
        self._sessions.forget(caller)

    def _sweep_soon(self) -> None:
        """Give up sessions whose client has vanished and left nothing; looked for now and then, as requests come."""
        now = time.monotonic()
        if now - self._swept < self._sweep_seconds or self._closing:
            return
        self._swept = now
        given_up = [
            session_id
            for session_id, session in self._known.items()
            if not session.requests and now - session.last > IDLE_SECONDS
            and not self._leasing.holds_anything(session.caller)
        ]  # fmt: skip
        if now - self._recalled > IDLE_SECONDS:
            for session_id in [id for id in self._asleep if not self._leasing.holds_anything(caller_id(id))]:
                del self._asleep[session_id]
                self._ended(session_id)
        if given_up and (self._sweeping is None or self._sweeping.done()):
            self._sweeping = asyncio.create_task(self._give_up(given_up), name="give up idle sessions")

    async def _give_up(self, session_ids: list[str]) -> None:
        for session_id in session_ids:
            await self._manager.end(session_id)


class _Watched:
    """ASGI's two callables of one request, watched for the start of the response and a dropped connection."""

    def __init__(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        self._exchange, self._receive, self._send = exchange, receive, send
        self.started = False
        self.on_start: Callable[[], None] | None = None
        self.complete = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self.complete:
            self._exchange.drop()
        return message

    async def send(self, message: Message) -> None:
        if self.complete:
            return  # the SDK's second thoughts about what it has answered
        if message["type"] == "http.response.start" and message["status"] == 200:
            self.started = True
            if self.on_start is not None:
                self.on_start()
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = True
        await self._send(message)
        if message["type"] == "http.response.body":
            self._exchange.sent()


def _is_initialize(first: Message) -> bool:
    if b"initialize" not in first.get("body", b""):
        return False
    try:
        message = json.loads(first["body"])
    except (ValueError, RecursionError):
        return False
    return isinstance(message, dict) and message.get("method") == "initialize"


def _again(first: Message, receive: Receive) -> Receive:
    """`receive` that begins with what was taken from it."""
    kept = [first]

    async def replay() -> Message:
        return kept.pop() if kept else await receive()

    return replay
