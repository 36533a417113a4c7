"""What gets past the checks in front of every route, and what does not."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from starlette.types import Message, Receive, Scope, Send

from loommux_host.web import auth, body_limit
from loommux_host.web.auth import Access, Guard, access, cookie_value, is_loopback, matches, set_cookie, split_host

TOKEN = "correct-horse-battery-staple"
LOOPBACK = access("127.0.0.1", None, auth=True)
pytestmark = pytest.mark.anyio


class Reached:
    """The app behind the guard: remembers what it was given."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message["more_body"]:
                break
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-frame-options", b"DENY")]})
        await send({"type": "http.response.body", "body": b"reached"})


def client(rules: Access, app: Reached | None = None) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(Guard(app or Reached(), rules))
    return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8801", trust_env=False)


async def status(rules: Access, method: str = "GET", path: str = "/api/resources", **given: Any) -> int:
    async with client(rules) as http:
        answer = await http.request(method, path, **given)
    if answer.status_code != 200:
        refused = answer.json()
        assert refused["ok"] is False
        assert set(refused) == {"ok", "status", "message"}
    return answer.status_code


# -- host and origin ----------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8801", "localhost:8801", "localhost", "LOCALHOST:1", "[::1]:8801", "[::1]"]
)
async def test_the_names_of_loopback_are_this_server_with_any_port(host: str) -> None:
    assert await status(LOOPBACK, headers={"Host": host}) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8801", "127.0.0.1.evil.example", "localhost.evil.example:8801", "127.0.0.2",
        "localhost@evil.example", "evil.example#localhost", "localhost:notaport", "", "10.0.0.1:8801", "localhost, x",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/mcp", "/api/resources", "/no/such/route"])
async def test_any_other_name_is_misdirected_on_every_route(host: str, path: str) -> None:
    assert await status(LOOPBACK, path=path, headers={"Host": host}) == 421


async def test_two_host_headers_are_misdirected() -> None:
    assert await status(LOOPBACK, headers=[("Host", "localhost"), ("Host", "localhost")]) == 421


@pytest.mark.parametrize(
    "origin", ["http://127.0.0.1:8801", "http://localhost:8801", "https://localhost:8801", "http://[::1]:8801"]
)
async def test_pages_of_this_server_are_let_in(origin: str) -> None:
    assert await status(LOOPBACK, headers={"Origin": origin}) == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example", "null", "http://localhost:3000", "http://localhost", "http://localhost.evil.example:8801",
        "file://", "http://127.0.0.1:8801/page", "ftp://localhost:8801", "", "http://localhost:8801@evil.example",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "DELETE"])
async def test_pages_of_another_origin_are_refused(origin: str, method: str) -> None:
    assert await status(LOOPBACK, method, headers={"Origin": origin}) == 403


async def test_no_answer_permits_another_origin_to_read_it() -> None:
    async with client(LOOPBACK) as http:
        for origin in ("http://127.0.0.1:8801", "http://evil.example"):
            preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            answer = await http.options("/mcp", headers=preflight)
            assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_allowed_hosts_add_names_for_a_reverse_proxy() -> None:
    rules = access("127.0.0.1", None, auth=True, allowed_hosts=["Lab.example.org", "other.example:8443"])
    assert await status(rules, headers={"Host": "lab.example.org"}) == 200
    assert await status(rules, headers={"Host": "lab.example.org:443", "Origin": "https://lab.example.org"}) == 200
    assert await status(rules, headers={"Origin": "https://lab.example.org"}) == 200, "a proxy that rewrites Host"
    assert await status(rules, headers={"Host": "other.example:8443", "Origin": "https://other.example:8443"}) == 200
    assert await status(rules, headers={"Host": "other.example"}) == 421
    assert await status(rules, headers={"Origin": "https://other.example"}) == 403


async def test_a_websocket_is_closed_before_it_opens() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    await Guard(Reached(), LOOPBACK)({"type": "websocket", "path": "/mcp", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


# -- token --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "authorization",
    [
        None, "Bearer", "Bearer ", "Bearer wrong", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN,
        "Bearer \xe9", f"Token {TOKEN}", f"Bearer {cookie_value(TOKEN)}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/mcp", "/api/events", "/no/such/route"])
async def test_without_the_whole_token_every_route_is_closed(authorization: str | None, path: str) -> None:
    rules = access("127.0.0.1", TOKEN, auth=True)
    headers = {} if authorization is None else {"Authorization": authorization.encode("latin-1")}
    assert await status(rules, path=path, headers=headers) == 401


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_token_opens_every_route(scheme: str) -> None:
    rules = access("127.0.0.1", TOKEN, auth=True)
    assert await status(rules, headers={"Authorization": f"{scheme} {TOKEN}"}) == 200


async def test_a_token_in_the_query_opens_nothing() -> None:
    rules = access("127.0.0.1", TOKEN, auth=True)
    assert await status(rules, path=f"/api/resources?token={TOKEN}&xtoken={TOKEN}") == 401


async def test_the_cookie_of_a_login_opens_every_route_and_does_not_hold_the_token() -> None:
    rules = access("127.0.0.1", TOKEN, auth=True)
    cookie = set_cookie(TOKEN, secure=False)
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" in set_cookie(TOKEN, secure=True)
    assert await status(rules, headers={"Cookie": cookie.partition(";")[0]}) == 200
    name = auth.cookie_name(TOKEN)
    assert cookie.startswith(f"{name}=") and name != auth.cookie_name(f"{TOKEN}x")
    assert await status(rules, headers={"Cookie": f"{name}=wrong"}) == 401
    assert await status(rules, headers={"Cookie": f"{name}={TOKEN}"}) == 401
    assert await status(rules, headers={"Cookie": "a\x00=;;==,[]"}) == 401


async def test_only_open_paths_need_no_token() -> None:
    rules = Access(LOOPBACK.hosts, token=TOKEN, open_paths=frozenset({"/", "/login", "/static/"}))
    assert await status(rules, path="/") == 200
    assert await status(rules, path="/login") == 200
    assert await status(rules, path="/static/console.css") == 401
    assert await status(rules, path="/login/x") == 401
    assert await status(rules, path="/static") == 401
    assert await status(rules, path="/login", headers={"Host": "evil.example"}) == 421


async def test_a_refusal_is_logged_without_query_headers_or_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    rules = access("127.0.0.1", TOKEN, auth=True)
    headers = {"Authorization": f"Bearer {TOKEN}x", "Cookie": f"a={TOKEN}"}
    assert await status(rules, path=f"/api/resources?token={TOKEN}", headers=headers) == 401
    said = [record.getMessage() for record in caplog.records if record.name == "loommux_host.web.auth"]
    assert said == ["refused GET '/api/resources': 401 unauthorized"]
    assert TOKEN not in repr(said)


def test_tokens_are_compared_in_constant_time() -> None:
    assert "compare_digest" in inspect.getsource(matches)
    assert matches(TOKEN, TOKEN)
    assert not matches(None, TOKEN)
    assert not matches("", TOKEN)
    assert not matches("\udce9", TOKEN)


# -- binding ------------------------------------------------------------------------


def test_loopback_needs_no_token_but_takes_one() -> None:
    assert access("127.0.0.1", None, auth=True).token is None
    assert access("localhost", TOKEN, auth=True).token == TOKEN
    assert access(None, None, auth=True).token is None, "a unix socket has permissions of its own"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "lab.example.org"])
def test_beyond_loopback_there_is_always_a_token_unless_it_is_declined(host: str) -> None:
    made = access(host, None, auth=True).token
    assert made is not None
    assert len(made) >= 32
    assert made != access(host, None, auth=True).token
    assert access(host, TOKEN, auth=True).token == TOKEN
    assert access(host, TOKEN, auth=False).token is None


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("[::1]", True), ("localhost", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("localhost.example", False), ("", False),
    ],
)  # fmt: skip
def test_what_counts_as_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


async def test_beyond_loopback_addresses_and_the_machines_own_names_are_let_in_but_no_others() -> None:
    rules = access("0.0.0.0", None, auth=False, names=["Workstation"])
    for host in ("192.168.1.7:8801", "[fe80::1]:8801", "workstation:8801", "localhost"):
        assert await status(rules, headers={"Host": host}) == 200, host
    assert await status(rules, headers={"Host": "evil.example"}) == 421
    own = {"Host": "192.168.1.7:8801", "Origin": "http://192.168.1.7:8801"}
    assert await status(rules, headers=own) == 200
    assert await status(rules, headers={**own, "Origin": "http://192.168.1.8:8801"}) == 403


# -- bodies -------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx", ""]
)
async def test_a_body_that_is_not_json_is_refused(method: str, kind: str) -> None:
    headers = {"Content-Type": kind} if kind else {}
    assert await status(LOOPBACK, method, content=b"{}", headers=headers) == 415


async def test_a_form_without_a_body_is_refused_too() -> None:
    assert await status(LOOPBACK, "POST", headers={"Content-Type": "text/plain"}) == 415
    assert await status(LOOPBACK, "POST") == 200


async def test_json_reaches_the_app_whole() -> None:
    app = Reached()
    content = json.dumps({"source": "x" * 100_000}).encode()
    async with client(LOOPBACK, app) as http:
        kind = {"Content-Type": "application/json; charset=utf-8"}
        assert (await http.post("/api", content=content, headers=kind)).status_code == 200
    assert app.bodies == [content]


async def test_a_body_that_says_it_is_too_large_is_refused_unread() -> None:
    rules = Access(LOOPBACK.hosts, body_limit=1000)
    headers = {"Content-Type": "application/json"}
    assert await status(rules, "POST", content=b"x" * 1001, headers=headers) == 413
    assert await status(rules, "POST", content=b"x" * 1000, headers=headers) == 200
    absurd = {**headers, "Content-Length": "9" * 5000}
    assert await status(rules, "POST", content=b"x", headers=absurd) == 413


async def test_a_body_that_grows_too_large_never_reaches_the_app() -> None:
    async def growing() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b"x" * 100

    app = Reached()
    async with client(Access(LOOPBACK.hosts, body_limit=1000), app) as http:
        answer = await http.post("/mcp", content=growing(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert app.bodies == []


async def test_a_body_that_does_not_come_is_waited_for_until_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limit, "BODY_SECONDS", 0.05)
    monkeypatch.setattr(body_limit, "PAUSE_SECONDS", 0.05)

    async def stalling() -> Message:
        if not begun:
            begun.append(True)
            return {"type": "http.request", "body": b"{", "more_body": True}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    begun: list[bool] = []
    sent: list[Message] = []
    app = Reached()
    headers = [(b"host", b"127.0.0.1:8801"), (b"content-type", b"application/json"), (b"content-length", b"9")]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers, "query_string": b""}
    async with asyncio.timeout(10):
        await Guard(app, LOOPBACK)(scope, stalling, send)
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]
    assert json.loads(sent[1]["body"])["status"] == "request_timeout"
    assert sent[-1]["more_body"] is False
    assert app.bodies == []


# -- answers ------------------------------------------------------------------------


async def test_every_answer_carries_the_safe_headers_and_keeps_the_apps_own() -> None:
    async with client(LOOPBACK) as http:
        for headers in ({}, {"Origin": "null"}):
            answer = await http.get("/", headers=headers)
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
        assert (await http.get("/")).headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("bad", ["", "a@b", "a/b", "a b", "[::1", "a:b", "a,b"])
def test_what_is_no_host_is_no_host(bad: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        split_host(bad)
