"""How clients reach a server: the official client in each era, request by request, or line by line over stdio.

A desk makes calls and gives answers; it knows nothing of what they should be.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Protocol

from tests.e2e.driving import Agent, Lines, text_of
from tests.e2e.http_driving import Session

#: Seconds after which a call counts as never answered.
ANSWER = 120.0


@dataclass(frozen=True)
class Answer:
    """A tool's result."""

    text: str
    fields: dict[str, Any]
    refused: bool

    @property
    def status(self) -> str:
        return self.fields["status"]


class Desk(Protocol):
    """Cancelling a call ends it as this kind of client would."""

    async def call(self, tool: str, **arguments: Any) -> Answer: ...


class Official:
    """The official client. In the modern era a cancelled call closes its response."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def call(self, tool: str, **arguments: Any) -> Answer:
        async with asyncio.timeout(ANSWER):
            result = await self._agent.client.call_tool(tool, arguments, read_timeout_seconds=ANSWER)
        return Answer(text_of(result), result.structured_content or {}, bool(result.is_error))


class Requests:
    """A handshake session, request by request: a cancelled call drops its connection without a word."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._id = 0

    async def call(self, tool: str, **arguments: Any) -> Answer:
        self._id += 1
        params = {"name": tool, "arguments": arguments}
        async with asyncio.timeout(ANSWER):
            answer = await self._session.post(
                {"jsonrpc": "2.0", "id": self._id, "method": "tools/call", "params": params}
            )
        said = [line for line in answer.text.splitlines() if line.startswith("data: {")]
        assert answer.status_code == 200, f"{answer.status_code} {answer.text[:300]}"
        assert said, answer.text[:300]
        return answered(json.loads(said[-1].removeprefix("data: ")))


class OverStdio:
    """A server of one's own, line by line. A cancelled call is given up with the protocol's notification."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    async def call(self, tool: str, **arguments: Any) -> Answer:
        id = self._lines.request("tools/call", {"name": tool, "arguments": arguments})
        try:
            return answered(await self._lines.answer(id))
        except asyncio.CancelledError:
            self._lines.notify("notifications/cancelled", {"requestId": id})
            raise


def answered(message: dict[str, Any]) -> Answer:
    assert "result" in message, message
    result = message["result"]
    text = "".join(block.get("text", "") for block in result["content"])
    return Answer(text, result["structuredContent"], bool(result.get("isError")))
