"""MCP over stdio: one client, one connection, either protocol era.

Owns the conversation: which era the client speaks, which requests are in flight, what is
answered when one is cancelled or cannot be understood. Carries calls out through `tool_calls`,
speaks by the rules of `eras`, over the lines of `stdio_lines`; opened and ended by `server.host`.

It is not built on the SDK's server, whose import takes a second and 60 MB. A client
gives a server that does not answer ``initialize`` in time up for the whole session; this
one answers at once, also on a loaded machine, while kernel and libraries still start.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from loommux_host.mcp import eras
from loommux_host.mcp.eras import ProtocolError
from loommux_host.mcp.stdio_lines import Reader, Writer, writer
from loommux_host.mcp.tool_calls import Calls, Outcome, Progress, progress_message
from loommux_host.mcp.tools import TOOLS

if TYPE_CHECKING:  # imports what a server can do without until its first call
    from loommux_host.sessions.callers import Caller

log = logging.getLogger(__name__)

RequestId = str | int
#: How long calls that are given up may take to leave.
ABANDON_SECONDS = 1.0


class Conversation:
    """What is said on one connection.

    * Every request is answered once, in the order in which answers are there; one that
      was cancelled is not answered at all.
    * Handlers run in tasks of their own and are started in the order of the lines.
    """

    def __init__(
        self,
        calls: Calls,
        send: Callable[[bytes], Awaitable[None]],
        caller: Callable[[str | None, bool], Caller],
        *,
        modern: bool = True,
    ) -> None:
        self._calls, self._send, self._caller = calls, send, caller
        #: Whether modern requests are served at all (``--protocol``).
        self._serves_modern = modern
        #: None until the client's first request says which era it speaks.
        self._modern: bool | None = None
        self._initialized = False
        self._client: str | None = None
        #: By the id as text: some clients cancel 7 as "7".
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # -- lines in --------------------------------------------------------------------

    def receive(self, line: bytes) -> None:
        """Take one line from the client."""
        if not line.strip():
            return
        message: dict[str, Any] = {}
        try:
            message = eras.message_of(line)
            self._take(message)
        except ProtocolError as error:
            self._start(self._refuse(request_id(message), error))

    def _take(self, message: dict[str, Any]) -> None:
        """Start what a message asks for; raises what a message that asks for nothing is answered."""
        if message.get("jsonrpc") != "2.0":
            raise ProtocolError(eras.INVALID_REQUEST, "Invalid request: not a JSON-RPC 2.0 message")
        method, params = message.get("method"), message.get("params")
        if method is None and ("result" in message or "error" in message):
            return  # an answer, but nothing was asked
        if not isinstance(method, str):
            raise ProtocolError(eras.INVALID_REQUEST, "Invalid request: method must be a string")
        if "id" not in message:
            self._notified(method, params if isinstance(params, dict) else {})
            return
        id = request_id(message)
        if id is None:
            raise ProtocolError(eras.INVALID_REQUEST, "Invalid request: id must be a string or an integer")
        key = str(id)
        if key in self._in_flight:
            raise ProtocolError(eras.INVALID_REQUEST, f"Invalid request: id {id!r} is in flight")
        if not isinstance(params, dict | None) or not isinstance((params or {}).get("_meta"), dict | None):
            raise eras.invalid_params("params and params._meta must be objects")
        task = self._in_flight[key] = self._start(self._serve(id, method, params or {}))
        task.add_done_callback(lambda _: self._in_flight.pop(key, None))

    def _notified(self, method: str, params: Mapping[str, Any]) -> None:
        task = self._in_flight.get(str(params.get("requestId")))
        if method == "notifications/cancelled" and task is not None:
            task.cancel()

    # -- answers out -------------------------------------------------------------------

    async def _serve(self, id: RequestId, method: str, params: Mapping[str, Any]) -> None:
        outcome = None
        try:
            if method == "tools/call":
                self._enter(method, params)
                outcome = await self._call(params)
                result: Mapping[str, Any] = outcome.result
            else:
                result = self._answer(method, params)
            answer = {"jsonrpc": "2.0", "id": id, "result": eras.complete(result) if self._modern else result}
        except ProtocolError as error:
            await self._refuse(id, error)
            return
        except Exception as error:
            log.exception("%s failed", method)
            text = f"Internal error: {type(error).__name__}: {error}"
            await self._refuse(id, ProtocolError(eras.INTERNAL_ERROR, text))
            return
        try:
            await self._say(answer)
        except BaseException:
            if outcome is not None:
                outcome.lost()
            raise
        if outcome is not None:
            outcome.delivered()

    def _answer(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """What can be answered at once."""
        self._enter(method, params)
        match method, self._modern:
            case "initialize", _:
                answer = eras.initialize(params)
                self._initialized, self._client = True, eras.client_name(params["clientInfo"])
                return answer
            case "ping", False:
                return {}
            case "server/discover", True:
                return eras.discover()
            case "tools/list", modern:
                if not isinstance(params.get("cursor"), str | None):
                    raise eras.invalid_params("cursor must be a string")
                return eras.tool_list(bool(modern))
            case _:
                raise eras.method_not_found(method)

    def _enter(self, method: str, params: Mapping[str, Any]) -> None:
        """Decide the era by the first request; then hold every request to it."""
        enveloped = method != "initialize" and eras.has_envelope(params)
        if self._modern:
            if method == "initialize":
                raise eras.unsupported(params.get("protocolVersion"), eras.ALREADY_MODERN)
            eras.check_envelope(params)
        elif enveloped and not self._serves_modern:
            # What a server that knows no modern era says; clients then open with the handshake.
            raise eras.method_not_found(method)
        elif enveloped and self._modern is False:
            raise ProtocolError(eras.INVALID_REQUEST, eras.ALREADY_HANDSHAKE)
        elif enveloped:
            eras.check_envelope(params)
            self._modern = True
        else:
            self._modern = False
            if not self._initialized and method in ("tools/list", "tools/call"):
                raise eras.invalid_params("the first request has to be initialize")
        if self._modern:
            self._client = eras.client_name(params["_meta"].get(eras.CLIENT_KEY))

    async def _call(self, params: Mapping[str, Any]) -> Outcome:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            raise eras.invalid_params("name must be a string")
        if not isinstance(arguments, dict | None):
            raise eras.invalid_params("arguments must be an object")
        if name not in TOOLS:
            raise ProtocolError(eras.INVALID_PARAMS, f"Unknown tool: {name}")
        token = progress_token(params)
        progress = None if token is None else self._progress(token)
        return await self._calls.call(self._identify, name, arguments or {}, progress)

    def _identify(self) -> Caller:
        return self._caller(self._client, bool(self._modern))

    def _progress(self, token: RequestId) -> Progress:
        async def tell(elapsed: float, last_line: str) -> None:
            message = progress_message(elapsed, last_line)
            params = {"progressToken": token, "progress": round(elapsed, 3), "message": message}
            await self._say({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

        return tell

    async def _refuse(self, id: RequestId | None, error: ProtocolError) -> None:
        await self._say({"jsonrpc": "2.0", "id": id, "error": error.wire()})

    async def _say(self, message: Mapping[str, Any]) -> None:
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        # A lone surrogate would make the whole line unreadable to the client.
        await self._send(text.encode("utf-8", "replace") + b"\n")

    # -- ending --------------------------------------------------------------------------

    def _start(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def answered(self) -> None:
        """Wait until nothing is in flight."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def finish(self, seconds: float) -> None:
        """Let what is in flight be answered; give it up after `seconds`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        self.abandon()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ABANDON_SECONDS)

    def abandon(self) -> None:
        """End every call's waiting; nothing more is answered."""
        for task in self._tasks:
            task.cancel()


def request_id(message: Mapping[str, Any]) -> RequestId | None:
    """The id to answer to, None when there is no usable one."""
    id = message.get("id")
    return id if isinstance(id, str | int) and not isinstance(id, bool) else None


def progress_token(params: Mapping[str, Any]) -> RequestId | None:
    """The token under which the client wants to be told of progress."""
    token = params.get("_meta", {}).get("progressToken")
    return token if isinstance(token, str | int) and not isinstance(token, bool) else None


class Stdio:
    """A conversation over the process's own standard streams. `ended` is set when the client is gone."""

    def __init__(
        self, calls: Calls, wire: tuple[int, int], caller: Callable[[str | None, bool], Caller], *, modern: bool
    ) -> None:
        read, write = wire
        self.ended = asyncio.Event()
        self._writer: Writer = writer(write, self._broken)
        self._conversation = Conversation(calls, self._writer.write, caller, modern=modern)
        self._reader = Reader(read, self._conversation.receive, self.ended.set, self._conversation.answered)

    def _broken(self) -> None:
        """Nobody reads: what is in flight has no one to be answered to."""
        self._conversation.abandon()
        self.ended.set()

    async def answered(self) -> None:
        """Wait until nothing is in flight; a client that does not read any more has nothing in flight."""
        await self._conversation.answered()

    async def finish(self, seconds: float) -> None:
        """Take no more requests, answer those that are in flight within `seconds`."""
        self._reader.close()
        await self._conversation.finish(seconds)
