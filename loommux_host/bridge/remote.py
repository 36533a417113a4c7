"""A server over Streamable HTTP, as `conversation` sees it: a message goes there, messages come back.

Owns the requests: their headers in both protocol eras, the handshake's session and its renewal
when the server has forgotten it, the standing stream and the pings that keep a lease, and which
failure means that nothing has reached the server. Knows nothing of who asks. It is not built on
the SDK's client, which reads and writes messages of its own and takes a second to import.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit, urlunsplit

import httpx2

from loommux_host.mcp import eras

log = logging.getLogger(__name__)

Message = dict[str, Any]
OnMessage = Callable[[Message], Awaitable[None]]

CONNECT_SECONDS = 10.0
#: A stream that is alive carries a comment every 15 seconds.
SILENT_SECONDS = 60.0
#: Larger than any message that a server sends.
LARGEST_EVENT = 64 << 20
#: Between two looks for a server that is away.
LONGEST_PAUSE = 5.0
FIRST_PAUSE = 0.2
LEAVE_SECONDS = 2.0
#: While a server starts or stops it answers so, and has done nothing.
NOT_NOW = 503
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class NotDelivered(Exception):
    """Nothing has reached the server, so the same can be sent again."""


class Lost(Exception):
    """The connection broke after the message was sent: the server may have acted on it."""


class Denied(Exception):
    """The server lets this client in no further; sending again changes nothing."""


@dataclass(frozen=True)
class Endpoint:
    """Where the server is, and as whom to go there."""

    url: str
    resource: str | None = None
    #: Read for every request: a token may be renewed.
    token_file: Path | None = None
    uds: str | None = None

    @property
    def shown(self) -> str:
        return f"unix:{self.uds}" if self.uds else self.url


class Remote:
    """``async with Remote(endpoint) as remote: async for answer in remote.ask(message): …``."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        #: What the server says unasked goes here.
        self.on_message: OnMessage = _nowhere
        parts = urlsplit(endpoint.url)
        self._policy_url = urlunsplit((parts.scheme, parts.netloc, "/api/lease-policy", "", ""))
        self._http = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(uds=endpoint.uds) if endpoint.uds else None,
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=SILENT_SECONDS, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=8),
            trust_env=endpoint.uds is None and parts.hostname not in LOOPBACK,
        )
        #: Two bridges of one host program are two callers.
        self._mark = secrets.token_hex(4)
        #: As whom requests without a session were sent.
        self._operator: str | None = None
        self._opening: Message | None = None
        self._session: str | None = None
        self._version: str | None = None
        self._renewal = asyncio.Lock()
        self._keepers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._keepers:
            task.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        with contextlib.suppress(httpx2.HTTPError, TimeoutError, Denied):
            async with asyncio.timeout(LEAVE_SECONDS):
                if self._session is not None:
                    await self._http.delete(self.endpoint.url, headers=self._headers(None, self._session))
                if self._operator is not None:
                    headers = self._headers(None, None) | {"x-loommux-operator": self._operator}
                    await self._http.delete(self.endpoint.url, headers=headers)
        await self._http.__aexit__(kind, error, trace)

    # -- messages ------------------------------------------------------------------------

    async def ask(self, request: Message) -> AsyncGenerator[Message, None]:
        """Send a request; everything that comes back for it, its answer last.

        Raises `NotDelivered`, `Lost` or `Denied`.
        """
        session = None if request["method"] == "initialize" else self._session
        async with self._sent(request, session) as response:
            if response.status_code == 404 and session is not None and not _is_modern(request):
                await response.aread()
                await self._renew(session)
                raise NotDelivered("the server has forgotten the session")
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                async for event in httpx2.EventSource(response, max_event_size=LARGEST_EVENT):
                    if event.data:
                        message = json.loads(event.data)
                        self._note(request, response, message)
                        yield message
                raise Lost("the answer ended before it was whole")
            answer = _body(await response.aread())
            self._note(request, response, answer)
            if not ("result" in answer or "error" in answer):
                if response.status_code == NOT_NOW:
                    raise NotDelivered(str(answer.get("message", "the server starts or stops")))
                raise Denied(str(answer.get("message") or f"HTTP {response.status_code}"))
            yield {**answer, "id": request["id"]}

    async def tell(self, message: Message) -> None:
        """Send what wants no answer: a notification, or an answer to the server. Raises as `ask` does."""
        async with self._sent(message, self._session) as response:
            await response.aread()
        if message.get("method") == "notifications/initialized" and not self._keepers:
            self._keepers = [asyncio.ensure_future(keep) for keep in (self._listen(), self._beat())]

    @contextlib.asynccontextmanager
    async def _sent(self, message: Message, session: str | None) -> AsyncIterator[httpx2.Response]:
        content = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
        headers = self._headers(message, session)
        try:
            async with self._http.stream("POST", self.endpoint.url, content=content, headers=headers) as response:
                if response.status_code in (401, 403, 421):
                    refusal = _body(await response.aread()).get("message")
                    raise Denied(str(refusal or f"HTTP {response.status_code}"))
                yield response
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise NotDelivered(_words(error)) from error
        except (httpx2.HTTPError, httpx2.SSEError, ValueError) as error:
            raise Lost(_words(error)) from error

    def _headers(self, message: Message | None, session: str | None) -> dict[str, str]:
        headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        if self.endpoint.resource is not None:
            headers["x-loommux-resource"] = quote(self.endpoint.resource, safe="")
        if self.endpoint.token_file is not None:
            headers["authorization"] = f"Bearer {_token(self.endpoint.token_file)}"
        if message is not None and _is_modern(message):
            return headers | self._modern_headers(message)
        if session is not None:
            headers["mcp-session-id"] = session
            headers["mcp-protocol-version"] = self._version or eras.HANDSHAKE_VERSIONS[-1]
        return headers

    def _modern_headers(self, message: Message) -> dict[str, str]:
        meta = message["params"]["_meta"]
        client = eras.client_name(meta.get(eras.CLIENT_KEY)) or "stdio"
        self._operator = quote(f"{client}-{self._mark}")
        headers = {
            "mcp-protocol-version": str(meta[eras.VERSION_KEY]),
            "mcp-method": message["method"],
            "x-loommux-operator": self._operator,
        }
        if message["method"] == "tools/call" and isinstance(name := message["params"].get("name"), str):
            headers["mcp-name"] = _header_value(name)
        return headers

    # -- the session of the handshake era ----------------------------------------------------

    def _note(self, request: Message, response: httpx2.Response, answer: Mapping[str, Any]) -> None:
        """Keep the session that an answer opens, and how it was opened."""
        if request["method"] == "initialize" and isinstance(result := answer.get("result"), dict):
            self._opening = request
            self._session = response.headers.get("mcp-session-id")
            self._version = result.get("protocolVersion")

    async def _renew(self, forgotten: str) -> None:
        """Open another session as the first one was opened, once for all who noticed."""
        async with self._renewal:
            if self._session != forgotten or self._opening is None:
                return
            await self._drain({**self._opening, "id": "loommux-renewal"})
            async with self._sent({"jsonrpc": "2.0", "method": "notifications/initialized"}, self._session):
                pass

    async def _drain(self, request: Message) -> None:
        """Ask for something of our own; the client hears nothing of the answer."""
        async with contextlib.aclosing(self.ask(request)) as answers:
            async for message in answers:
                if message.get("id") == request["id"]:
                    return

    async def _listen(self) -> None:
        """Hold the standing stream open: it proves the lease where the server asks for that."""
        pause = FIRST_PAUSE
        while (session := self._session) is not None:
            try:
                headers = self._headers(None, session) | {"accept": "text/event-stream"}
                async with self._http.stream("GET", self.endpoint.url, headers=headers) as response:
                    if response.status_code == 405:
                        return
                    if response.status_code == 404:
                        await self._renew(session)
                    elif response.status_code == 200:
                        pause = FIRST_PAUSE
                        async for event in httpx2.EventSource(response, max_event_size=LARGEST_EVENT):
                            if event.data:
                                await self.on_message(json.loads(event.data))
            except (httpx2.HTTPError, httpx2.SSEError, NotDelivered, Lost, Denied, ValueError) as error:
                log.debug("the standing stream: %s", error)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    async def _beat(self) -> None:
        """Ping as often as the server's lease policy wants it; where it does not, or has none, never."""
        try:
            answer = await self._http.get(self._policy_url, headers=self._headers(None, None))
            policy = answer.json() if answer.status_code == 200 else {}
        except (httpx2.HTTPError, ValueError, Denied):
            return
        if policy.get("lease_mode") != "heartbeat":
            return
        while True:
            await asyncio.sleep(float(policy["heartbeat_interval_seconds"]))
            with contextlib.suppress(NotDelivered, Lost, Denied):
                await self._drain({"jsonrpc": "2.0", "id": "loommux-beat", "method": "ping"})


async def _nowhere(message: Message) -> None:
    """Before anybody listens."""


def _is_modern(message: Message) -> bool:
    params = message.get("params")
    return isinstance(params, dict) and eras.has_envelope(params)


def _body(content: bytes) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _token(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeError) as error:
        raise Denied(f"--token-file {file}: {error}") from error


def _header_value(text: str) -> str:
    """As the protocol's newer era writes what an HTTP header cannot hold as it is."""
    if text.isascii() and text.isprintable() and text == text.strip() and not text.startswith("=?base64?"):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
