"""What one stdio client says, carried to a server elsewhere and back: both protocol eras, unread.

Owns the requests in flight: each is answered once, or not at all when it was cancelled. A
request that did not reach the server is sent again; one that may have reached it only when a
second time does no harm, since a cell must never run twice. `commands.connect` owns the ends, `remote`
the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from loommux_host.bridge.remote import Denied, Lost, Message, NotDelivered, Remote
from loommux_host.command_line.reporting import say
from loommux_host.mcp import eras

#: How long, in seconds, a server may be away before requests are answered as unreachable; one that never answered yet;
#: and how long a request is tried in any case.
PATIENCE_SECONDS = 30.0
FIRST_PATIENCE_SECONDS = 10.0
TRIED_SECONDS = 2.0
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
SERVER_ERROR = -32000
#: What a second time does no harm to; the protocol's own requests are all like that.
REPEATABLE = {"wait", "status", "execution_status", "read_output", "search_output"}
UNREACHABLE = (
    "the loommux server at {where} cannot be reached ({why}). Nothing was done. "
    "Start it again with the command that it had (`loommux --server` listens on port 8801), then send this again."
)
LOST = (
    "the connection to {where} broke while {tool} was in flight ({why}). The server may have acted on it, "
    "so it was not sent again: look with status() first, a cell that runs goes on and wait() gives its result."
)
DENIED = "the server at {where} refused this client: {why}."


class Bridge:
    """`receive` takes the client's lines; `write` carries lines to it."""

    def __init__(self, remote: Remote, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._remote, self._write = remote, write
        remote.on_message = self._send
        #: By the id as text: some clients cancel 7 as "7".
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: The last notification or `initialize` on its way: what comes after it waits for it.
        self._told: asyncio.Task[None] | None = None
        #: Since when the server is away, by the loop's clock.
        self._away: float | None = None
        self._answered = False

    def receive(self, line: bytes) -> None:
        """Take one line from the client."""
        if not line.strip():
            return
        try:
            message = eras.message_of(line)
        except eras.ProtocolError as error:
            self._start(self._send({"jsonrpc": "2.0", "id": None, "error": error.wire()}))
            return
        if "method" in message and "id" in message:
            key = str(message["id"])
            task = self._in_flight[key] = self._start(self._carry(message, self._told))
            task.add_done_callback(partial(self._landed, key))
            if message["method"] == "initialize":
                self._told = task
            return
        if message.get("method") == "notifications/cancelled":
            params = message.get("params")
            task = self._in_flight.get(str(params.get("requestId"))) if isinstance(params, dict) else None
            if task is not None:
                task.cancel()  # closes its response, which is how the newer era cancels
        self._told = self._start(self._tell(message, self._told))

    def _landed(self, key: str, task: asyncio.Task[None]) -> None:
        """Answered; a client that used the id again meanwhile means its newer request."""
        if self._in_flight.get(key) is task:
            del self._in_flight[key]

    async def answered(self) -> None:
        """Wait until nothing is in flight."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def leave(self, seconds: float) -> None:
        """Give what is in flight so long to end; the cells of what does not go on."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- one message -------------------------------------------------------------------------

    async def _carry(self, request: Message, after: asyncio.Task[None] | None) -> None:
        """A request there and its answer back."""
        if after is not None:
            await asyncio.wait({after})
        began, pause = asyncio.get_running_loop().time(), FIRST_PAUSE
        while True:
            try:
                if await self._exchanged(request):
                    self._is_back()
                    return
                raise Lost("it ended without an answer")
            except NotDelivered as error:
                failure = str(error)
            except Lost as error:
                if not _is_repeatable(request):
                    await self._send(_failed(request, "connection_lost", self._worded(LOST, error, request)))
                    return
                failure = str(error)
            except Denied as error:
                await self._send(_failed(request, "denied", self._worded(DENIED, error, request)))
                return
            patience = PATIENCE_SECONDS if self._answered else FIRST_PATIENCE_SECONDS
            if asyncio.get_running_loop().time() >= max(began + TRIED_SECONDS, self._away_since(failure) + patience):
                await self._send(_failed(request, "unreachable", self._worded(UNREACHABLE, failure, request)))
                return
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    async def _exchanged(self, request: Message) -> bool:
        """Send a request and give the client what comes back; whether its answer was among that."""
        async with contextlib.aclosing(self._remote.ask(request)) as messages:
            async for message in messages:
                await self._send(message)
                if message.get("id") == request["id"] and "method" not in message:
                    return True
        return False

    async def _tell(self, message: Message, after: asyncio.Task[None] | None) -> None:
        if after is not None:
            await asyncio.wait({after})
        try:
            await self._remote.tell(message)
        except (NotDelivered, Lost, Denied) as error:
            # Nobody waits for it, and a session that is opened anew needs none of them again.
            self._away_since(str(error))

    async def _send(self, message: Message) -> None:
        await self._write(json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")

    def _start(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- what is said of the connection ----------------------------------------------------------

    def _away_since(self, why: str) -> float:
        """When the outage began, which is said once: it is waited for once, not by every request anew."""
        if self._away is None:
            self._away = asyncio.get_running_loop().time()
            say(f"{self._remote.endpoint.shown} does not answer ({why}); trying again")
        return self._away

    def _is_back(self) -> None:
        self._answered = True
        if self._away is not None:
            self._away = None
            say(f"{self._remote.endpoint.shown} answers again")

    def _worded(self, text: str, why: object, request: Message) -> str:
        params = request.get("params")
        tool = params.get("name") if isinstance(params, dict) else None
        return text.format(where=self._remote.endpoint.shown, why=why, tool=tool or request["method"])


def _is_repeatable(request: Message) -> bool:
    if request["method"] != "tools/call":
        return True
    params = request.get("params")
    return isinstance(params, dict) and params.get("name") in REPEATABLE


def _failed(request: Message, status: str, text: str) -> Message:
    """An answer that an agent reads: for a tool a refused result, else an error of the protocol."""
    if request["method"] != "tools/call":
        return _error(request["id"], SERVER_ERROR, f"{status}: {text}")
    result: dict[str, Any] = {"content": [{"type": "text", "text": f"{status}: {text}"}], "isError": True}
    params = request.get("params")
    if isinstance(params, dict) and eras.has_envelope(params):
        result = eras.complete(result)
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


def _error(id: object, code: int, message: str) -> Message:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}
