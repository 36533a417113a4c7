"""An MCP client that keeps its lease by whatever policy the server has (contract 9.4).

Owns the discovery and pinning of the policy, the pings of a heartbeat lease, and the
standing stream of a connection lease: the SDK's client opens that stream and gives it up
after two failures, this one does not. For programs; agents' hosts bring clients of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit, urlunsplit

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

log = logging.getLogger(__name__)

#: Seconds for everything but the results of calls.
ANSWER_SECONDS = 30.0
#: The stream is looked after so many times within the grace that the server gives.
LOOKS_PER_GRACE = 4
LONGEST_PAUSE = 15.0


class LeaseAwareClient:
    """``async with LeaseAwareClient(url) as client: await client.run_cell("1 + 1")``.

    `url` is that of the server's MCP endpoint. `operator` is a label for people, `resource_name`
    the kernel to share with all that name it; without one a private kernel is opened.
    `client` is the SDK's client for everything else; `policy` the server's lease policy.
    """

    def __init__(
        self, url: str, operator: str | None = None, resource_name: str | None = None, *, token: str | None = None
    ) -> None:
        self.policy: dict[str, Any] = {}
        self.session_id: str | None = None
        self._url = url
        self._headers = {
            **({"X-Loommux-Operator": quote(operator)} if operator else {}),
            **({"X-Loommux-Resource": quote(resource_name)} if resource_name else {}),
            **({"Authorization": f"Bearer {token}"} if token else {}),
        }
        self._stack = contextlib.AsyncExitStack()
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        assert self._client is not None, "use it as a context manager"
        return self._client

    async def run_cell(self, source: str, **arguments: Any) -> Any:
        return await self.call_tool("run_cell", {"freeform": source, **arguments})

    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
        return await self.client.call_tool(name, arguments or {}, **options)

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _open(self) -> None:
        timeout = httpx2.Timeout(ANSWER_SECONDS, read=None)
        http = await self._stack.enter_async_context(httpx2.AsyncClient(headers=self._headers, timeout=timeout))
        self.policy = await self._discover(http)
        http.headers["X-Loommux-Lease-Policy-Generation"] = str(self.policy["generation"])
        http.event_hooks["response"].append(self._note_session)
        transport = streamable_http_client(self._url, http_client=http)
        # The handshake era: a session of its own, pings, and a standing stream.
        self._client = await self._stack.enter_async_context(Client(transport, mode="legacy"))
        keepers: dict[str, Callable[[], Awaitable[None]]] = {
            "heartbeat": self._beat,
            "connection": lambda: self._hold(http),
        }
        if (keep := keepers.get(self.policy["lease_mode"])) is not None:
            task = asyncio.ensure_future(keep())
            self._stack.push_async_callback(_cancelled, task)

    async def _discover(self, http: httpx2.AsyncClient) -> dict[str, Any]:
        """The lease policy that this session is to have; raises when the server has none."""
        parts = urlsplit(self._url)
        answer = await http.get(
            urlunsplit((parts.scheme, parts.netloc, "/api/lease-policy", "", "")), timeout=ANSWER_SECONDS
        )
        answer.raise_for_status()
        return answer.json()

    async def _note_session(self, response: httpx2.Response) -> None:
        self.session_id = response.headers.get("mcp-session-id") or self.session_id

    async def _beat(self) -> None:
        """Ping as often as the policy says; a missed one is tried again at once."""
        interval = float(self.policy["heartbeat_interval_seconds"])
        while True:
            await asyncio.sleep(interval)
            try:
                async with asyncio.timeout(interval):
                    await self.client.session.send_ping()
            except Exception as error:
                log.warning("a ping was not answered: %s", type(error).__name__)
                await asyncio.sleep(min(1.0, interval / LOOKS_PER_GRACE))

    async def _hold(self, http: httpx2.AsyncClient) -> None:
        """Keep a standing stream open: where the SDK's is open, the server refuses a second one."""
        pause = min(LONGEST_PAUSE, float(self.policy["connection_grace_seconds"]) / LOOKS_PER_GRACE)
        while True:
            await asyncio.sleep(pause)
            headers = {"mcp-session-id": self.session_id or "", "accept": "text/event-stream"}
            try:
                async with http.stream("GET", self._url, headers=headers) as stream:
                    if stream.status_code == 200:
                        async for _ in stream.aiter_raw():
                            pass
            except httpx2.HTTPError:
                log.debug("the standing stream could not be held", exc_info=True)


async def _cancelled(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
