"""What `loommux connect` does with requests while its server is away."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

import pytest

from loommux_host.commands import bridge
from loommux_host.commands.bridge import Bridge
from loommux_host.commands.remote import Endpoint, Lost, Message, NotDelivered, Remote

pytestmark = pytest.mark.anyio
FIRST, LATER, TRIED = 0.4, 0.8, 0.05


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "FIRST_PATIENCE_SECONDS", FIRST)
    monkeypatch.setattr(bridge, "PATIENCE_SECONDS", LATER)
    monkeypatch.setattr(bridge, "TRIED_SECONDS", TRIED)
    monkeypatch.setattr(bridge, "FIRST_PAUSE", 0.02)


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
    """A server that is away or there, and what is done by it meanwhile."""

    endpoint = Endpoint("http://there/mcp")

    def __init__(self, answer: Callable[[], str]) -> None:
        self._answer = answer

    async def ask(self, request: Message) -> AsyncGenerator[Message, None]:
        text = self._answer()
        yield {"jsonrpc": "2.0", "id": request["id"], "result": {"content": [{"type": "text", "text": text}]}}


def host(answer: Callable[[], str]) -> Host:
    return Host(cast("Any", Scripted(answer)))


async def test_a_server_that_was_never_there_is_waited_for_once() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        async with Remote(Endpoint(f"http://127.0.0.1:{nobody.getsockname()[1]}/mcp")) as remote:
            asking = Host(remote)
            text, waited = await asking.ask("run_cell")
            assert text.startswith("unreachable: ") and "Nothing was done" in text
            assert FIRST <= waited < LATER
            text, again = await asking.ask("run_cell")
            assert text.startswith("unreachable: ")
            assert TRIED <= again < FIRST, "the outage is waited for once, and every request is tried"


async def test_an_outage_is_waited_for_from_its_beginning_and_forgotten_with_the_next_answer() -> None:
    away: list[Exception] = []

    def answer() -> str:
        if away:
            raise away[0]
        return "there"

    asking = host(answer)
    assert (await asking.ask("status"))[0] == "there"
    for _ in range(2):
        away.append(NotDelivered("gone"))
        text, waited = await asking.ask("run_cell")
        assert text.startswith("unreachable: ") and waited >= LATER
        away.clear()
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

    asking = Host(cast("Any", Long(answer)))
    assert (await asking.ask("wait"))[0] == "done"
    asking = host(lambda: (_ for _ in ()).throw(Lost("broke")))
    text, _ = await asking.ask("run_cell")
    assert text.startswith("connection_lost: "), "a cell is never sent twice"
