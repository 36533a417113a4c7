"""Whatever is sent to a server, every answer is JSON with a status word, and the next request works.

What is sent is made of the tables of endpoints and tools, so a new route, tool or parameter is
fuzzed by itself. Seeded; `LOOMMUX_FUZZ` multiplies the number of requests (`make stress`), and
`LOOMMUX_FUZZ_SEED` has others sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import quote_from_bytes, unquote

import pytest

from loommux_host.api.endpoint_table import endpoints
from loommux_host.mcp.parameters import Parameter
from loommux_host.mcp.tools import TOOLS
from loommux_host.processes.running_servers import FILE
from tests.e2e.driving import PATIENCE, Place
from tests.e2e.http_driving import Session, Web, web

pytestmark = pytest.mark.anyio
TIMES = int(os.environ.get("LOOMMUX_FUZZ", "1"))
SEED = int(os.environ.get("LOOMMUX_FUZZ_SEED", "17"))
NASTY: list[Any] = [
    "\ud800", "\udfff x", "a\ud83d", "\x00", "a\x00b", "", " ", "\n", "\x1b]0;t\x07", "\u2028", "é" * 300,
    "x" * 100_000,
    "%", "%%", "%00", "%ZZ", "../..", "//", "NaN", "inf", "-1", "1e999", "9" * 5_000, "0x10", "null", "true", "[]",
    0, -1, 1, 2**31, 2**63, 2**64, 10**400, -(10**400), 0.0, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), -float("inf"),
    True, False, None, [], {}, ["\ud800"], {"\ud800": "\ud800"}, [[]] * 50,
]  # fmt: skip
BODIES = [
    b"", b"{", b"[]", b"null", b"0", b'"\\ud800"', b'{"\\ud800": "\\ud800"}', b"\xff\xfe", b"\x00", b"[" * 50_000,
    b"NaN",
    b'{"x": NaN}', b'{"x": 1e999}', b"9" * 10_000, b'{"x": "' + b"x" * 100_000 + b'"}', b'{"token": "\\udfff"}',
    b'{"path": ' + b"9" * 6_000 + b"}",
]  # fmt: skip
PATHS = [
    b"%",
    b"%00",
    b"%ff%fe",
    b"%ed%a0%80",
    b"%ZZ",
    b"..%2f..",
    b"x" * 3_000,
    b"%E2%80%A8",
    b"*",
    b"%7B%7D",
    b"a;b",
    b"\xe9",
]
HEADER_NAMES = [
    "X-Loommux-Kernel", "X-Loommux-Operator", "X-Loommux-Resource", "X-Loommux-Policy", "Mcp-Session-Id",
    "Mcp-Protocol-Version", "Mcp-Method", "Mcp-Name", "Last-Event-Id", "Content-Type", "Content-Length", "Host",
    "Origin",
    "Authorization", "Cookie", "Accept", "If-None-Match", "Transfer-Encoding", "Expect", "Range", "Accept-Encoding",
    "Content-Encoding", "Connection", "Upgrade",
]  # fmt: skip
HEADERS = [
    b"", b"\xff\xfe", b"\xe2\x80\xa8", b"%ed%a0%80", b"%", b"%00", b"x" * 20_000, b"9" * 5_000, b"-1", b"1e999", b"nan",
    b"\x00", b"\x1b[2J", b"a, b", b"chunked", b"text/plain", b"application/json; charset=bogus", b"[::1", b"http://[",
    b"Bearer \xff", b"=;=", b"100-continue", b"2026-07-28", b"bytes=-1-", b"=?base64?\xff?=", b"=?base64?////?=",
]  # fmt: skip


@dataclass
class Sent:
    method: str
    target: bytes
    body: bytes = b""
    headers: list[tuple[str, bytes]] = field(default_factory=list)

    def raw(self, host: str) -> bytes:
        given = {name.lower() for name, _ in self.headers}
        own = [("Host", host.encode()), ("Connection", b"close"), ("Accept", b"application/json, text/event-stream")]
        if self.body or self.method in ("POST", "PUT"):
            own += [("Content-Type", b"application/json"), ("Content-Length", str(len(self.body)).encode())]
        lines = [(n, v) for n, v in own if n.lower() not in given] + self.headers
        head = b"".join(b"%s: %s\r\n" % (name.encode(), value) for name, value in lines)
        return b"%s %s HTTP/1.1\r\n%s\r\n%s" % (self.method.encode(), self.target, head, self.body)

    def __str__(self) -> str:
        return f"{self.method} {self.target[:200]!r} {self.body[:200]!r} {[(n, v[:60]) for n, v in self.headers]}"


class Fuzzer:
    """Makes requests; `kernel` is the id of one that is there."""

    def __init__(self, seed: int, kernel: str) -> None:
        self.random, self.kernel = random.Random(seed), kernel
        self.table = endpoints(MagicMock())

    def value(self, parameter: Parameter) -> Any:
        """Mostly nasty, sometimes what is allowed; never one that waits."""
        kind = parameter.kind.schema
        if "wait" in parameter.name or "seconds" in parameter.name:
            allowed: Any = 0.01
            if kind.get("maximum", 0) > 1e9 or kind["type"] != "number":  # a lease's: it may end the kernel at once
                allowed = 3600
        elif "enum" in kind:
            allowed = self.random.choice(kind["enum"])
        else:
            allowed = {"integer": 1, "number": 0.01, "boolean": True}.get(kind["type"], "1")
        nasty = self.random.choice(NASTY)
        return allowed if self.random.random() < 0.4 else nasty

    def arguments(self, parameters: Any) -> dict[str, Any]:
        chosen = [p for p in parameters if p.required or self.random.random() < 0.4]
        made = {p.name: self.value(p) for p in chosen if self.random.random() < 0.95}
        if self.random.random() < 0.05:
            made[self.random.choice(["", "\ud800", "x" * 1000, "__class__"])] = self.random.choice(NASTY)
        return made

    def request(self, endpoint: Any) -> Sent:
        path = b"/".join(map(self.part, endpoint.path.split("/")))
        if endpoint.query and self.random.random() < 0.8:
            pairs = [(name, str(value)) for name, value in self.arguments(endpoint.query).items()]
            path += b"?" + b"&".join(self.encoded(n) + b"=" + self.encoded(v) for n, v in pairs)
        body = b""
        if endpoint.body is not None:
            body = json.dumps(self.arguments(endpoint.body)).encode()
            if self.random.random() < 0.15:
                body = self.random.choice(BODIES)
        headers = []
        if self.random.random() < 0.25:
            headers = [(self.random.choice(HEADER_NAMES), self.random.choice(HEADERS))]
        return Sent(endpoint.method, path, body, headers)

    def part(self, part: str) -> bytes:
        if not part.startswith("{"):
            return part.encode()
        if self.random.random() < 0.2:
            return self.random.choice(PATHS)
        return self.kernel.encode() if part == "{id}" else b"1"

    def encoded(self, text: str) -> bytes:
        if self.random.random() < 0.1:
            return self.random.choice([p for p in PATHS if b"\xe9" not in p])
        return quote_from_bytes(text[:3_000].encode("utf-8", "surrogatepass")).encode()


async def ask(server: Web, sent: Sent, private: str | None = None) -> tuple[int, bytes]:
    """Status and body of the answer, of a stream its status alone; with `private` on that socket."""
    host = server.base.removeprefix("http://")
    name, _, port = host.rpartition(":")
    # Those may promise more than there is.
    cut = any(n in ("Content-Length", "Transfer-Encoding", "Expect") for n, _ in sent.headers)
    if private is None:
        reader, writer = await asyncio.open_connection(name, int(port), limit=1 << 24)
    else:
        reader, writer = await asyncio.open_unix_connection(private, limit=1 << 24)
    cut = any(n in ("Content-Length", "Transfer-Encoding", "Expect") for n, _ in sent.headers)
    try:
        writer.write(sent.raw(host))
        if cut:
            writer.write_eof()
        async with asyncio.timeout(PATIENCE):
            code, headers = 100, {}
            while code == 100:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                code = int(lines[0].split()[1])
                headers = {n.lower(): v for n, _, v in (line.partition(": ") for line in lines[1:])}
            if sent.method == "GET" and "text/event-stream" in headers.get("content-type", ""):
                return code, b""
            if "content-length" in headers:
                return code, await reader.readexactly(int(headers["content-length"]))
            return code, _whole(headers, await reader.readuntil(b"0\r\n\r\n"))
    except asyncio.IncompleteReadError:
        if not cut:
            raise
        return 0, b""  # who says no more may be taken for gone
    finally:
        writer.close()


def _whole(headers: dict[str, str], body: bytes) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return body
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        whole, body = whole + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return whole


def fault(code: int, body: bytes) -> str | None:
    """What is wrong with an answer; None when nothing is."""
    if code < 400:
        return None
    try:
        said = json.loads(body.decode("utf-8"))
    except ValueError:
        return f"{code} without JSON: {body[:200]!r}"
    if code >= 500 and said.get("status") == "internal_error":
        return f"{code} {body[:200]!r}"
    refused = said.get("ok") is False and isinstance(said.get("status"), str)
    return None if refused or "error" in said else f"{code} without a status word: {body[:200]!r}"


class Target:
    """One server with a kernel that is there, whatever the requests do to it."""

    def __init__(self, server: Web) -> None:
        self.server = server
        self.policy: dict[str, Any] = {}

    async def kernel(self) -> str:
        """Its id; opened when there is none any more, under the policy that there was."""
        async with self.server.http() as http:
            there = (await http.get("/api/resources")).json()["resources"]
            if there:
                return there[0]["resource_id"]
            session = await Session.open(http)
            await session.cell("print('said'); import IPython; display({'text/plain': '\\ud800'}, raw=True); '\\udc00'")
            return (await http.get("/api/resources")).json()["resources"][0]["resource_id"]

    async def restore(self) -> None:
        async with self.server.http() as http:
            if not self.policy:
                self.policy = (await http.get("/api/lease-policy")).json()
                del self.policy["generation"]
            assert (await http.put("/api/lease-policy", json=self.policy)).status_code == 200


@pytest.fixture(scope="module")
async def target(common_place: Place) -> Any:
    async with web(common_place) as server:
        made = Target(server)
        await made.restore()
        yield made
    assert "Traceback" not in common_place.log(), common_place.log()


@pytest.mark.case("X13")
@pytest.mark.parametrize("face", ["public", "private"])
async def test_every_route_answers_whatever_it_is_sent(target: Target, common_place: Place, face: str) -> None:
    published = next(common_place.temporary.glob(f"loommux-*/*/{FILE}"))
    private = unquote(json.loads(published.read_text())["control_url"].removeprefix("http+unix://"))
    fuzzer = Fuzzer(SEED, await target.kernel())
    wrong: dict[str, str] = {}
    for _ in range(2 * TIMES):
        for endpoint in fuzzer.table:
            fuzzer.kernel = await target.kernel()
            sent = fuzzer.request(endpoint)
            said = fault(*await ask(target.server, sent, private if face == "private" else None))
            if said is not None:
                wrong[str(sent)] = said
            if endpoint.method == "PUT":
                await target.restore()
    assert wrong == {}


@pytest.mark.case("X13")
async def test_every_tool_answers_whatever_it_is_given(target: Target) -> None:
    fuzzer = Fuzzer(SEED, "")
    wrong: dict[str, str] = {}
    async with target.server.http() as http:
        session = await Session.open(http)
        await session.cell("1")
        for id in range(4 * TIMES):
            for name, tool in TOOLS.items():
                arguments: Any = fuzzer.arguments(tool.parameters)
                if name == "run_cell" and "freeform" in arguments:
                    arguments["freeform"] = fuzzer.random.choice(["1", arguments["freeform"]])
                params = {"name": name, "arguments": arguments}
                body = json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
                headers = {**session.headers, "content-type": "application/json"}
                answer = await http.post("/mcp", content=body, headers=headers)
                if (said := _tool_fault(answer.status_code, answer.text)) is not None:
                    wrong[body[:300]] = said
        assert "Out[" in (await session.cell("6 * 7")).text
    assert wrong == {}


def _tool_fault(code: int, text: str) -> str | None:
    line = next((line[6:] for line in text.split("\n") if line.startswith("data: {")), text)
    try:
        said = json.loads(line)
    except ValueError:
        return f"{code} without JSON: {text[:200]}"
    internal = said.get("error", {}).get("code") == -32603 or "Internal" in str(said.get("error", ""))
    return f"{code} {line[:300]}" if code >= 500 or internal or not {"result", "error", "status"} & set(said) else None
