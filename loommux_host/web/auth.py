"""Who may speak to the HTTP server: the checks in front of every route (contract 10).

Owns the checks of Host, Origin, token, content type and body size, the console's
login cookie, and the rule which address may be bound without a token. `Guard` is
plain ASGI around the whole app, so no route can be forgotten. Knows no route but
those it is told are open, and never logs a query, a header or the token.
`server.http_app` builds it; `config` supplies what it needs to know.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loommux_host.web.body_limit import LimitedBody, drain

log = logging.getLogger(__name__)

COOKIE = "loommux"
#: Bytes of a request's body; a cell of this size is no cell.
BODY_LIMIT = 4 * 1024 * 1024
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
#: On every answer, whatever made it.
SAFE_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True)
class Access:
    """Who is let in.

    `hosts` are names that a Host header may carry: with any port, or with exactly the
    one given. `any_address` lets in every IP address as a name: a page that rebinds DNS
    needs a name of its own. `open_paths` need no token: these very paths, and nothing below them.
    """

    hosts: frozenset[str]
    any_address: bool = False
    token: str | None = None
    open_paths: frozenset[str] = frozenset()
    body_limit: int = BODY_LIMIT

    def opens(self, path: str) -> bool:
        return path in self.open_paths


def is_loopback(host: str) -> bool:
    """Whether a bind address can be reached from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def access(
    host: str | None, token: str | None, *, auth: bool, allowed_hosts: Iterable[str] = (), names: Iterable[str] = ()
) -> Access:
    """The access rules of a server bound to `host` (None for a unix socket).

    `token` is the content of ``auth_token_file``, if there is one; beyond loopback one is
    made when there is none, unless `auth` is False. `names` are those of this machine.
    """
    beyond = host is not None and not is_loopback(host)
    if not auth:
        token = None
    elif beyond and token is None:
        token = secrets.token_urlsafe(32)
    hosts = set(LOOPBACK_NAMES) | {name.lower() for name in allowed_hosts}
    if beyond and host is not None:
        hosts |= {host.strip("[]").lower()} | {name.lower() for name in names}
    return Access(frozenset(hosts), any_address=beyond, token=token)


def matches(given: str | None, token: str) -> bool:
    """Whether a token is the right one, in a time that tells nothing about it."""
    given_hash = hashlib.sha256((given or "").encode("utf-8", "surrogatepass")).digest()
    return hmac.compare_digest(given_hash, hashlib.sha256(token.encode()).digest()) and given is not None


def cookie_value(token: str) -> str:
    """What the console's cookie holds: proof of the token from which it cannot be had back."""
    return hmac.new(token.encode(), b"loommux console", hashlib.sha256).hexdigest()


def cookie_name(token: str) -> str:
    """One for each token: browsers tell hosts apart and not ports, where another server may want its own."""
    return f"{COOKIE}-{hmac.new(token.encode(), b'loommux cookie', hashlib.sha256).hexdigest()[:8]}"


def set_cookie(token: str, *, secure: bool) -> str:
    """The Set-Cookie header of a login. Without an age: it goes when the browser ends."""
    ends = "; Secure" if secure else ""
    return f"{cookie_name(token)}={cookie_value(token)}; Path=/; HttpOnly; SameSite=Strict{ends}"


@dataclass
class Refused(Exception):
    """A request that goes no further: the HTTP status, its word and what to say."""

    code: int
    status: str
    message: str


class Guard:
    """ASGI around the whole app: what gets past it may be answered."""

    def __init__(self, app: ASGIApp, rules: Access) -> None:
        self.app = app
        self.rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            # No route speaks WebSocket; closing before accepting is HTTP 403.
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            self._check(scope)
            body = await self._body(receive)
        except Refused as refused:
            log.warning("refused %s %.200r: %d %s", scope["method"], scope["path"], refused.code, refused.status)
            await _answer(refused, scope, receive, send)
            return
        await self.app(scope, body.receive, _with_safe_headers(send))

    async def _body(self, receive: Receive) -> LimitedBody:
        try:
            body = await LimitedBody.read(receive, self.rules.body_limit)
        except TimeoutError:
            raise Refused(408, "request_timeout", "The request's body did not arrive in time.") from None
        if body is None:
            raise self._too_large()
        return body

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = self._check_host(headers)
        self._check_origin(headers, host)
        self._check_token(headers, scope["path"])
        if scope["method"] in WITH_BODY:
            _check_content_type(headers)
        length = headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length[:20]) > self.rules.body_limit:
            raise self._too_large()

    def _check_host(self, headers: Headers) -> str:
        given = headers.getlist("host")
        if len(given) != 1 or not self._knows(given[0]):
            raise Refused(
                421, "host_not_allowed", "This server is not known by the name in the Host header; see allowed_hosts."
            )
        return given[0].lower()

    def _check_origin(self, headers: Headers, host: str) -> None:
        for origin in headers.getlist("origin"):
            if not self._is_own(origin, host):
                raise Refused(
                    403, "origin_not_allowed", "Requests from pages of another origin are refused; see allowed_hosts."
                )

    def _is_own(self, origin: str, host: str) -> bool:
        """This server's own page: by the very name and port asked for, another name of loopback, or an allowed one."""
        try:
            parts = urlsplit(origin.lower())
            name, port = split_host(parts.netloc)
            asked_name, asked_port = split_host(host)
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or parts.path or parts.query or parts.fragment:
            return False
        port = port or (443 if parts.scheme == "https" else 80)
        same_port = port == (asked_port or (443 if parts.scheme == "https" else 80))
        if same_port and (name == asked_name or {name, asked_name} <= LOOPBACK_NAMES):
            return True
        extra = self.rules.hosts - LOOPBACK_NAMES
        return name in extra or f"{name}:{port}" in extra

    def _knows(self, host: str) -> bool:
        try:
            name, port = split_host(host.lower())
        except ValueError:
            return False
        if name in self.rules.hosts or (port is not None and f"{name}:{port}" in self.rules.hosts):
            return True
        return self.rules.any_address and _is_address(name)

    def _check_token(self, headers: Headers, path: str) -> None:
        token = self.rules.token
        if token is None or self.rules.opens(path):
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        bearer = matches(given.strip(), token) if scheme.lower() == "bearer" else False
        cookie = matches(_cookie(headers, cookie_name(token)), cookie_value(token))
        if not (bearer or cookie):
            raise Refused(401, "unauthorized", "This server needs its token: Authorization: Bearer TOKEN.")

    def _too_large(self) -> Refused:
        return Refused(413, "too_large", f"A request has at most {self.rules.body_limit:,} bytes.")


def split_host(host: str) -> tuple[str, int | None]:
    """Name and port of ``name``, ``name:port``, ``[v6]`` or ``[v6]:port``; ValueError for anything else."""
    if not host or any(c in host for c in "/@?#\\ \t,"):
        raise ValueError(host)
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError(host)
    return parts.hostname.rstrip("."), parts.port


def _check_content_type(headers: Headers) -> None:
    """JSON only: what a page can send without asking first (a form, plain text) is refused."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
    if kind != "application/json" and not (empty and not kind):
        raise Refused(415, "unsupported_media_type", "A request's body is JSON: Content-Type: application/json.")


def _cookie(headers: Headers, name: str) -> str | None:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return morsel.value if morsel else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _with_safe_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SAFE_HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


async def _answer(refused: Refused, scope: Scope, receive: Receive, send: Send) -> None:
    body = json.dumps({"ok": False, "status": refused.status, "message": refused.message}).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "cache-control": "no-store",
        # What follows on this connection may be the rest of a body that nobody reads.
        "connection": "close",
        **SAFE_HEADERS,
        **({"www-authenticate": "Bearer"} if refused.code == 401 else {}),
    }
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.code, "headers": raw})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body, "more_body": True})
    if "expect" not in Headers(scope=scope):
        await drain(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})
