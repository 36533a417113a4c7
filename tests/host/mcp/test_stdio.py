"""The conversation over stdio, against calls that a test decides; and that it is the SDK's conversation."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import anyio
import mcp_types
import pytest
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage

from loommux_host.mcp import eras, sdk
from loommux_host.mcp.stdio import Conversation
from loommux_host.mcp.tool_calls import Calls, Outcome, Progress

pytestmark = pytest.mark.anyio

INITIALIZE = {
    "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "agent", "version": "1"},
}  # fmt: skip
ENVELOPE = {
    eras.VERSION_KEY: "2026-07-28", eras.CAPABILITIES_KEY: {}, eras.CLIENT_KEY: {"name": "agent", "version": "1"},
}  # fmt: skip


class FakeCalls:
    """Calls whose end a test decides: `slow` ones wait for `release`."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.began = asyncio.Event()
        self.cancelled: list[str] = []
        self.delivered: list[str] = []
        self.callers: list[tuple[str | None, bool]] = []

    async def call(
        self, identify: Callable[[], Any], name: str, arguments: Mapping[str, object], progress: Progress | None = None
    ) -> Outcome:
        self.callers.append(identify())
        source = str(arguments.get("freeform"))
        if source == "fail":
            raise RuntimeError("a fault of ours")
        if source == "slow":
            self.began.set()
            try:
                if progress is not None:
                    await progress(4.0, "epoch 3")
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled.append(source)
                raise
        content = [{"type": "text", "text": f"ran {source} · é"}]
        return Outcome({"content": content, "isError": False}, lambda: self.delivered.append(source), lambda: None)


class Client:
    """Lines to and from a conversation."""

    def __init__(self, *, modern: bool = True) -> None:
        self.calls = FakeCalls()
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        calls, caller = cast(Calls, self.calls), cast(Any, lambda name, modern: (name, modern))
        self.conversation = Conversation(calls, self._hear, caller, modern=modern)

    async def _hear(self, line: bytes) -> None:
        assert line.endswith(b"\n")
        assert b"\n" not in line[:-1]
        self.said.put_nowait(json.loads(line))

    def tell(self, message: object) -> None:
        self.conversation.receive(json.dumps(message).encode())

    def notify(self, method: str, **params: object) -> None:
        self.tell({"jsonrpc": "2.0", "method": method, "params": params})

    def request(self, id: object, method: str, params: object = None) -> None:
        self.tell({"jsonrpc": "2.0", "id": id, "method": method} | ({} if params is None else {"params": params}))

    async def heard(self) -> dict[str, Any]:
        return await asyncio.wait_for(self.said.get(), 10)

    async def ask(self, id: object, method: str, params: object = None) -> dict[str, Any]:
        self.request(id, method, params)
        return await self.heard()

    async def open(self) -> Client:
        await self.ask("open", "initialize", INITIALIZE)
        self.notify("notifications/initialized")
        return self


def cell(source: str, **meta: object) -> dict[str, Any]:
    return {"name": "run_cell", "arguments": {"freeform": source}, "_meta": meta}


def modern(**params: object) -> dict[str, Any]:
    return {**params, "_meta": ENVELOPE}


# -- calls -----------------------------------------------------------------------


async def test_a_call_is_answered_and_then_counts_as_told() -> None:
    client = await Client().open()
    answer = await client.ask(1, "tools/call", cell("1"))
    assert answer["result"]["content"][0]["text"] == "ran 1 · é"
    await asyncio.sleep(0)
    assert client.calls.delivered == ["1"]
    assert client.calls.callers == [("agent", False)]


async def test_a_modern_call_says_who_calls_in_its_envelope() -> None:
    client = Client()
    answer = await client.ask(1, "tools/call", modern(name="run_cell", arguments={"freeform": "1"}))
    assert answer["result"]["resultType"] == "complete"
    assert answer["result"]["_meta"] == {eras.SERVER_KEY: eras.SERVER_INFO}
    assert client.calls.callers == [("agent", True)]


@pytest.mark.parametrize("cancelled_as", [5, "5"])
async def test_a_cancelled_call_ends_and_is_not_answered(cancelled_as: object) -> None:
    client = await Client().open()
    client.request(5, "tools/call", cell("slow"))
    await asyncio.wait_for(client.calls.began.wait(), 10)
    client.notify("notifications/cancelled", requestId=cancelled_as)
    assert (await client.ask(6, "ping"))["id"] == 6
    assert client.calls.cancelled == ["slow"]
    assert client.said.empty()


async def test_fifty_cancelled_calls_leave_nothing_behind() -> None:
    client = await Client().open()
    before = len(asyncio.all_tasks())
    for id in range(50):
        client.request(id, "tools/call", cell("slow"))
        await asyncio.sleep(0)
        client.notify("notifications/cancelled", requestId=id)
    await client.ask("end", "ping")
    await asyncio.sleep(0)
    assert len(client.calls.cancelled) == 50
    assert len(asyncio.all_tasks()) == before


async def test_others_are_answered_while_a_call_waits() -> None:
    client = await Client().open()
    client.request(1, "tools/call", cell("slow"))
    for id in range(50):
        client.request(f"ping {id}", "ping")
    assert [(await client.heard())["id"] for _ in range(50)] == [f"ping {id}" for id in range(50)]
    client.calls.release.set()
    assert (await client.heard())["id"] == 1


@pytest.mark.parametrize("token", ["t", 7])
async def test_progress_goes_to_the_token_of_the_call(token: object) -> None:
    client = await Client().open()
    client.request(1, "tools/call", cell("slow", progressToken=token))
    told = await client.heard()
    assert told["method"] == "notifications/progress"
    assert told["params"] == {"progressToken": token, "progress": 4.0, "message": "4.0 s · epoch 3"}
    client.calls.release.set()
    await client.heard()


async def test_a_call_without_a_token_gets_no_progress() -> None:
    client = await Client().open()
    client.request(1, "tools/call", cell("slow", progressToken=True))
    await asyncio.wait_for(client.calls.began.wait(), 10)
    client.calls.release.set()
    assert (await client.heard())["id"] == 1


async def test_a_fault_of_ours_is_an_internal_error_and_the_connection_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = await Client().open()
    answer = await client.ask(1, "tools/call", cell("fail"))
    assert answer["error"]["code"] == eras.INTERNAL_ERROR
    assert "a fault of ours" in answer["error"]["message"]
    assert "a fault of ours" in caplog.text
    assert "result" in await client.ask(2, "tools/call", cell("1"))


async def test_the_end_lets_calls_be_answered_and_gives_up_those_that_are_not() -> None:
    client = await Client().open()
    client.request(1, "tools/call", cell("slow"))
    await asyncio.wait_for(client.calls.began.wait(), 10)
    finishing = asyncio.create_task(client.conversation.finish(10))
    client.calls.release.set()
    await asyncio.wait_for(finishing, 10)
    assert (await client.heard())["id"] == 1
    client.calls.release.clear()
    client.request(2, "tools/call", cell("slow"))
    await asyncio.wait_for(client.conversation.finish(0.01), 10)
    assert client.calls.cancelled == ["slow"]
    assert client.said.empty()


# -- what cannot be understood -----------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code", "id"),
    [
        (b"not json", eras.PARSE_ERROR, None),
        (b"\xff\xfe", eras.PARSE_ERROR, None),
        (b"[" * 100_000, eras.PARSE_ERROR, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', eras.INVALID_REQUEST, None),
        (b'"ping"', eras.INVALID_REQUEST, None),
        (b'{"id":3,"method":"ping"}', eras.INVALID_REQUEST, 3),
        (b'{"jsonrpc":"2.0","id":3,"method":7}', eras.INVALID_REQUEST, 3),
        (b'{"jsonrpc":"2.0","id":3}', eras.INVALID_REQUEST, 3),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', eras.INVALID_REQUEST, None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', eras.INVALID_REQUEST, None),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', eras.INVALID_REQUEST, None),
        (b'{"jsonrpc":"2.0","id":3,"method":"ping","params":[1]}', eras.INVALID_PARAMS, 3),
        (b'{"jsonrpc":"2.0","id":3,"method":"ping","params":{"_meta":3}}', eras.INVALID_PARAMS, 3),
    ],
)
async def test_a_line_that_is_no_request_is_a_protocol_error(line: bytes, code: int, id: object) -> None:
    client = await Client().open()
    client.conversation.receive(line)
    answer = await client.heard()
    assert answer["error"]["code"] == code
    assert answer["id"] == id
    assert "result" in await client.ask(9, "ping")


@pytest.mark.parametrize(
    "line",
    [
        b"", b"  \r", b'{"jsonrpc":"2.0","method":"notifications/unknown"}', b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"x"}}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"None"}}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled"}',
    ],
)  # fmt: skip
async def test_what_wants_no_answer_gets_none(line: bytes) -> None:
    client = await Client().open()
    client.conversation.receive(line)
    assert (await client.ask(9, "ping"))["id"] == 9
    assert client.said.empty()


async def test_an_id_in_flight_cannot_be_used_again() -> None:
    client = await Client().open()
    client.request(1, "tools/call", cell("slow"))
    assert (await client.ask(1, "ping"))["error"]["code"] == eras.INVALID_REQUEST
    client.calls.release.set()
    assert "result" in await client.heard()


async def test_windows_line_ends_are_taken() -> None:
    client = await Client().open()
    client.conversation.receive(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\r')
    assert (await client.heard())["result"] == {}


# -- eras --------------------------------------------------------------------------


async def test_a_server_for_the_handshake_alone_lets_modern_clients_fall_back() -> None:
    client = Client(modern=False)
    answer = await client.ask(1, "server/discover", modern())
    assert answer["error"]["code"] == eras.METHOD_NOT_FOUND
    assert "result" in await client.ask(2, "initialize", INITIALIZE)
    assert "result" in await client.ask(3, "tools/list")


async def test_an_unserved_modern_version_does_not_close_the_way_to_the_handshake() -> None:
    client = Client()
    answer = await client.ask(1, "server/discover", {"_meta": {**ENVELOPE, eras.VERSION_KEY: "2031-01-01"}})
    assert answer["error"]["data"] == {"supported": ["2026-07-28"], "requested": "2031-01-01"}
    assert "result" in await client.ask(2, "initialize", INITIALIZE)


HANDSHAKE_TALK: list[tuple[str, object]] = [
    ("ping", None),
    ("tools/list", None),
    ("nope", None),
    ("initialize", {}),
    ("initialize", {**INITIALIZE, "protocolVersion": "1999-01-01"}),
    ("initialize", {**INITIALIZE, "protocolVersion": "2026-07-28"}),
    ("initialize", INITIALIZE),
    ("tools/list", None),
    ("tools/list", {"cursor": "x"}),
    ("tools/list", {"cursor": 5}),
    ("ping", None),
    ("tools/call", cell("1")),
    ("tools/call", {"name": "status"}),
    ("tools/call", {"name": "status", "arguments": None}),
    ("tools/call", {"name": "no_such_tool", "arguments": {}}),
    ("tools/call", {}),
    ("tools/call", {"name": 7}),
    ("tools/call", {"name": "status", "arguments": [1]}),
    ("resources/list", None),
    ("prompts/list", None),
    ("logging/setLevel", {"level": "info"}),
    ("server/discover", None),
    ("tools/list", modern()),
    ("initialize", {**INITIALIZE, "protocolVersion": "2024-11-05"}),
]
MODERN_TALK: list[tuple[str, object]] = [
    ("server/discover", modern()),
    ("tools/list", modern()),
    ("tools/call", modern(name="run_cell", arguments={"freeform": "1"})),
    ("tools/call", modern(name="no_such_tool")),
    ("tools/call", modern()),
    ("tools/call", modern(name="status", arguments=7)),
    ("ping", modern()),
    ("nope", modern()),
    ("resources/list", modern()),
    ("initialize", INITIALIZE),
    ("initialize", {**INITIALIZE, "protocolVersion": 7}),
    ("tools/list", None),
    ("tools/list", {"_meta": {}}),
    ("tools/list", {"_meta": {eras.VERSION_KEY: "2026-07-28"}}),
    ("tools/list", {"_meta": {**ENVELOPE, eras.VERSION_KEY: 7}}),
    ("tools/list", {"_meta": {**ENVELOPE, eras.VERSION_KEY: "2027-01-01"}}),
    ("tools/list", {"_meta": {**ENVELOPE, eras.CAPABILITIES_KEY: 7}}),
    ("tools/list", modern(cursor=5)),
]


async def sdk_answers(server: Server[Any], talk: list[tuple[str, object]]) -> list[dict[str, Any]]:
    """What the SDK's server says to the same requests."""
    to_server, server_reads = anyio.create_memory_object_stream[SessionMessage | Exception](1)
    server_writes, from_server = anyio.create_memory_object_stream[SessionMessage](1)
    answers = []
    async with anyio.create_task_group() as tasks, to_server, from_server:
        tasks.start_soon(server.run, server_reads, server_writes, server.create_initialization_options())
        for id, (method, params) in enumerate(talk):
            request = {"jsonrpc": "2.0", "id": id, "method": method} | ({} if params is None else {"params": params})
            await to_server.send(SessionMessage(mcp_types.jsonrpc_message_adapter.validate_python(request)))
            with anyio.fail_after(10):
                message = (await from_server.receive()).message
            answers.append(message.model_dump(by_alias=True, exclude_unset=True, mode="json"))
        tasks.cancel_scope.cancel()
    return answers


@pytest.mark.parametrize("talk", [HANDSHAKE_TALK, MODERN_TALK])
async def test_stdio_answers_as_the_sdks_server_does(talk: list[tuple[str, object]]) -> None:
    client = Client()
    ours = [await client.ask(id, method, params) for id, (method, params) in enumerate(talk)]
    server = sdk.build_server(cast(Calls, FakeCalls()), cast(Any, lambda context: None))
    theirs = await sdk_answers(server, talk)
    for request, our, their in zip(talk, ours, theirs, strict=True):
        if "error" in their and their["error"]["code"] == eras.INVALID_PARAMS:  # ours say which parameter is wrong
            assert our["error"]["code"] == eras.INVALID_PARAMS, request
        else:
            assert our == their, request


def test_the_versions_are_those_of_the_sdk() -> None:
    from mcp_types import version

    assert eras.HANDSHAKE_VERSIONS == version.HANDSHAKE_PROTOCOL_VERSIONS
    assert eras.MODERN_VERSIONS == version.MODERN_PROTOCOL_VERSIONS
    keys = (
        mcp_types.PROTOCOL_VERSION_META_KEY, mcp_types.CLIENT_CAPABILITIES_META_KEY, mcp_types.CLIENT_INFO_META_KEY,
        mcp_types.SERVER_INFO_META_KEY,
    )  # fmt: skip
    assert keys == (eras.VERSION_KEY, eras.CAPABILITIES_KEY, eras.CLIENT_KEY, eras.SERVER_KEY)


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert version("loommux") == eras.SERVER_INFO["version"]


def test_what_a_first_answer_does_not_need_is_not_imported_for_it() -> None:
    late = ("mcp", "pydantic", "anyio", "zmq", "jupyter_client", "sqlite3", "regex", "tiktoken", "PIL", "starlette")
    start = "import sys, loommux_host.cli, loommux_host.command_line.server_options, loommux_host.server.host"
    code = f"{start}; print([m for m in {late} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
