"""The console's page for all servers of a user: one loopback app in front of their private sockets.

Owns which servers it shows, the way of a request to one of them, and the merging of their
events into one stream, since a browser has few connections to spend. It keeps nothing: what
is shown is the servers'. Checks of Host, Origin and token are those of `web.auth`. Served by
`console`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import unquote

import httpx2
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from loommux_host.console.page import LOGIN, login, open_paths, page_routes
from loommux_host.processes.running_servers import Server, living_servers
from loommux_host.version import VERSION
from loommux_host.web.auth import Guard, access, matches
from loommux_host.web.errors import error, http_error, server_error
from loommux_host.web.json_answer import JsonAnswer
from loommux_kernel.shared.transport import UNIX

#: Seconds between two looks for servers that have come or gone, while somebody listens.
LOOK_SECONDS = 3.0
KEEP_ALIVE = 15.0
CONNECT_SECONDS = 10.0
#: What is passed on of an answer; the rest is between the two ends of one connection.
HEADERS = ("content-type", "content-disposition", "content-security-policy", "cache-control", "x-accel-buffering")
PASSED = ("content-type", "accept", "last-event-id")


class Gateway:
    """The app. `address` lets one browser in, once; that browser may ask for the address of one more."""

    def __init__(self) -> None:
        self._token = secrets.token_urlsafe(32)
        self._ticket: str | None = secrets.token_urlsafe(32)
        #: Called when the ticket has been used.
        self.on_login: Callable[[], None] = lambda: None
        rules = access("127.0.0.1", self._token, auth=True)
        routes = [
            *page_routes(),
            Route(LOGIN, self._ways_in, methods=["GET"]),
            Route(LOGIN, self._login, methods=["POST"]),
            Route("/api/ticket", self._another, methods=["POST"]),
            Route("/api/health", self._health),
            Route("/api/events", self._events),
            Route("/servers/{id}/api/{path:path}", self._forward, methods=["GET", "POST", "PUT"]),
        ]
        handlers = {HTTPException: http_error, Exception: server_error}
        app = Starlette(routes=routes, exception_handlers=handlers)
        self.asgi = Guard(app, replace(rules, open_paths=open_paths()))

    def address(self, base: str) -> str:
        """What to open: behind the # it reaches no log, and it works once."""
        return f"{base}/#token={self._ticket}"

    async def _ways_in(self, request: Request) -> Response:
        return JsonAnswer({"by": "address"}, headers={"cache-control": "no-store"})

    async def _another(self, request: Request) -> Response:
        """Whoever is in may let one more browser in: the ticket of one more address, which replaces an unused one."""
        self._ticket = secrets.token_urlsafe(32)
        return JsonAnswer({"ticket": self._ticket}, headers={"cache-control": "no-store"})

    async def _login(self, request: Request) -> Response:
        try:
            given = (await request.json()).get("token")
        except (ValueError, AttributeError, RecursionError):
            given = None
        if self._ticket is None or not matches(str(given), self._ticket):
            return login(self._token, given, request.headers.get("origin"))
        self._ticket = None
        self.on_login()
        return login(self._token, self._token, request.headers.get("origin"))

    async def _health(self, request: Request) -> Response:
        servers = await asyncio.to_thread(_servers)
        told = [{"id": id, **_told(server)} for id, server in servers.items()]
        body = {"ok": True, "status": "running", "version": VERSION, "servers": told}
        return JsonAnswer(body, headers={"cache-control": "no-store"})

    async def _forward(self, request: Request) -> Response:
        server = (await asyncio.to_thread(_servers)).get(request.path_params["id"])
        if server is None:
            return error(404, "not_found", "That server has ended.")
        client = _client(server)
        path = f"/api/{request.path_params['path']}"
        url = f"{path}?{request.url.query}" if request.url.query else path
        body = await request.body()
        sent = client.build_request(request.method, url, content=body, headers=_passed(request, server))
        try:
            answer = await client.send(sent, stream=True)
        except httpx2.HTTPError:
            await client.aclose()
            return error(503, "server_stopping", "That server does not answer.")

        async def done() -> None:
            await answer.aclose()
            await client.aclose()

        headers = {name: answer.headers[name] for name in HEADERS if name in answer.headers}
        return StreamingResponse(answer.aiter_bytes(), answer.status_code, headers, background=BackgroundTask(done))

    async def _events(self, request: Request) -> Response:
        seen = dict(pair.split("=", 1) for pair in request.headers.get("last-event-id", "").split(",") if "=" in pair)
        recent = request.query_params.get("recent", "0")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        stream = self._merged(seen, recent if recent.isascii() and recent.isdigit() else "0")
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def _merged(self, seen: dict[str, str], recent: str) -> AsyncGenerator[bytes]:
        """Events of all servers, each with its server; the id says how much of each has been had."""
        events: asyncio.Queue[tuple[str, str | None, str, dict[str, Any]]] = asyncio.Queue(1000)
        yield b": open\n\n"
        async with _tended(self._tend(events, seen, recent)):
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE):
                        server, id, kind, data = await events.get()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if id is not None:
                    seen[server] = id
                ids = ",".join(f"{name}={last}" for name, last in seen.items())
                told = json.dumps({**data, "server": server}, separators=(",", ":"))
                yield f"id: {ids}\nevent: {kind}\ndata: {told}\n\n".encode()

    async def _tend(
        self, events: asyncio.Queue[tuple[str, str | None, str, dict[str, Any]]], seen: dict[str, str], recent: str
    ) -> None:
        """Listen to every server there is, as they come and go."""
        listening: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                servers = await asyncio.to_thread(_servers)
                for id in [id for id, task in listening.items() if task.done() or id not in servers]:
                    listening.pop(id).cancel()
                    await events.put((id, None, "missed", {"events": None}))
                for id, server in servers.items():
                    if id not in listening:
                        listening[id] = asyncio.create_task(_listen(id, server, seen.get(id), recent, events))
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for task in listening.values():
                task.cancel()


async def _listen(
    id: str, server: Server, last: str | None, recent: str,
    events: asyncio.Queue[tuple[str, str | None, str, dict[str, Any]]],
) -> None:  # fmt: skip
    """Put one server's events into the queue until it ends."""
    headers = {"last-event-id": last} if last else {}
    params = {} if last or recent == "0" else {"recent": recent}
    try:
        async with (
            _client(server) as client,
            client.stream("GET", "/api/events", params=params, headers={**headers, **_secret(server)}) as stream,
        ):
            fields: dict[str, str] = {}
            async for line in stream.aiter_lines():
                name, _, value = line.partition(": ")
                if line:
                    fields[name] = value
                    continue
                if "event" in fields:
                    await events.put((id, fields.get("id"), fields["event"], json.loads(fields["data"])))
                fields = {}
    except httpx2.HTTPError:
        return


@asynccontextmanager
async def _tended(work: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


def _servers() -> dict[str, Server]:
    return {str(server.pid): server for server in living_servers()}


def _client(server: Server) -> httpx2.AsyncClient:
    timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
    if server.control_url.startswith(UNIX):
        transport = httpx2.AsyncHTTPTransport(uds=unquote(server.control_url.removeprefix(UNIX)))
        return httpx2.AsyncClient(base_url="http://loommux", transport=transport, timeout=timeout, trust_env=False)
    return httpx2.AsyncClient(base_url=server.control_url, timeout=timeout, trust_env=False)


def _secret(server: Server) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"} if (secret := server.secret) else {}


def _passed(request: Request, server: Server) -> dict[str, str]:
    return {**{name: request.headers[name] for name in PASSED if name in request.headers}, **_secret(server)}


def _told(server: Server) -> dict[str, Any]:
    """What a page may know of a server: not where its socket is, nor its secret."""
    kept = ("pid", "version", "started_at", "workspace", "transport", "endpoint", "python")
    return {name: value for name, value in asdict(server).items() if name in kept}
