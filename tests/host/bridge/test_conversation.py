"""What `loommux connect` does with requests while its server is away."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

import pytest

from loommux_host.bridge import conversation
from loommux_host.bridge.conversation import Bridge
from loommux_host.bridge.remote import Endpoint, Lost, Message, NotDelivered, Remote

pytestmark = pytest.mark.anyio
FIRST, LATER, TRIED = 0.3, 0.6, 0.05


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "FIRST_PATIENCE_SECONDS", FIRST)
    monkeypatch.setattr(conversation, "PATIENCE_SECONDS", LATER)
    monkeypatch.setattr(conversation, "TRIED_SECONDS", TRIED)
    monkeypatch.setattr(conversation, "FIRST_PAUSE", 0.02)


class Host:
    """The client's end: what it asks, and how long the answer took."""

    def __init__(self, remote: Remote) -> None:
        self.answers: asyncio.Queue[Message] = asyncio.Queue()
        self.bridge = Bridge(remote, self._write)

    async def _write(self, line: bytes) -> None:
        self.answers.put_nowait(json.loads(line))

    async def ask(self, tool: str) -> tuple[str, float]:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": {}}}
        began = asyncio.get_running_loop().time()
        self.bridge.receive(json.dumps(message).encode())
        answer = await asyncio.wait_for(self.answers.get(), 30)
        return answer["result"]["content"][0]["text"], asyncio.get_running_loop().time() - began


class Scripted:
    """A server that is away or there; `asked` counts the requests that came as far as it."""

    endpoint = Endpoint("http://there/mcp")

    def __init__(self, answer: Callable[[], str]) -> None:
        self._answer, self.asked = answer, 0

    async def ask(self, request: Message) -> AsyncGenerator[Message, None]:
        self.asked += 1
        text = self._answer()
        yield {"jsonrpc": "2.0", "id": request["id"], "result": {"content": [{"type": "text", "text": text}]}}


def host(server: Scripted) -> Host:
    return Host(cast("Any", server))


def away() -> str:
    raise NotDelivered("gone")


async def test_nobody_at_the_address_is_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "PATIENCE_SECONDS", 1000.0)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        async with Remote(Endpoint(f"http://127.0.0.1:{nobody.getsockname()[1]}/mcp")) as remote:
            text, waited = await Host(remote).ask("run_cell")
    assert text.startswith("unreachable: ") and "Nothing was done" in text
    assert waited >= FIRST


async def test_an_outage_is_waited_for_once_and_every_request_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "TRIED_SECONDS", 0.0)
    server = Scripted(away)
    asking = host(server)
    await asking.ask("run_cell")
    tried = server.asked
    assert tried > 1
    assert (await asking.ask("run_cell"))[0].startswith("unreachable: ")
    assert server.asked == tried + 1


async def test_an_outage_is_forgotten_with_the_next_answer() -> None:
    states = [False]
    asking = host(Scripted(lambda: away() if states[0] else "there"))
    assert (await asking.ask("status"))[0] == "there"
    for _ in range(2):
        states[0] = True
        text, waited = await asking.ask("run_cell")
        assert text.startswith("unreachable: ") and waited >= LATER
        states[0] = False
        assert (await asking.ask("status"))[0] == "there"


async def test_a_wait_that_was_in_flight_for_longer_than_that_is_sent_again() -> None:
    answers = iter(["lost", "done"])
    loop = asyncio.get_running_loop()
    began = loop.time()

    def answer() -> str:
        said = next(answers)
        if said == "lost":
            raise Lost("broke")
        return said

    class Long(Scripted):
        async def ask(self, request: Message) -> AsyncGenerator[Message, None]:
            if loop.time() - began < LATER:
                await asyncio.sleep(LATER * 1.5)
            async for message in super().ask(request):
                yield message

    assert (await host(Long(answer)).ask("wait"))[0] == "done"
    answers = iter(["lost"])
    text, _ = await host(Scripted(answer)).ask("run_cell")
    assert text.startswith("connection_lost: "), "a cell is never sent twice"
