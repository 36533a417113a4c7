"""Who an MCP request over HTTP comes from: its headers into a `Caller` (contract 9.1, 9.3).

Owns the names and the reading of the headers that say so. Used by `http` and by `server.http_app`.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from urllib.parse import quote, unquote

from starlette.datastructures import Headers
from starlette.requests import Request

from loommux_host.mcp.sdk import SESSION_HEADER, Context
from loommux_host.sessions.binding import RESOURCE_HEADER
from loommux_host.sessions.callers import LABEL_CHARACTERS, Caller
from loommux_host.sessions.lease_enforcement import POLICY_HEADER

OPERATOR_HEADER = "X-Loommux-Operator"
VALUE_CHARACTERS = 1000


def caller_id(session_id: str) -> str:
    """What others may see of a session: its id opens the session, so it is told to nobody."""
    return hashlib.blake2b(session_id.encode(), digest_size=8).hexdigest()


def caller_of(context: Context) -> Caller:
    """Who a request comes from, by its session or, in the modern era, by its operator or client name."""
    headers = _request(context).headers
    session_id = headers.get(SESSION_HEADER)
    operator = _decoded(headers.get(OPERATOR_HEADER))
    resource, policy = _decoded(headers.get(RESOURCE_HEADER), "surrogateescape"), _number(headers.get(POLICY_HEADER))
    if session_id is not None:
        short = session_id[:8]
        label = operator or f"client-{short}"
        return Caller(caller_id(session_id), label, resource=resource, short=short, policy=policy)
    client = context.session.client_params
    name = operator or (client.client_info.name if client else "") or "client"
    return Caller(_modern_id(name), name[:LABEL_CHARACTERS], modern=True, resource=resource, policy=policy)


def leaver(headers: Headers) -> str | None:
    """The caller whose `DELETE` says that it is gone: one without a session, by the operator that it is."""
    operator = _decoded(headers.get(OPERATOR_HEADER))
    return _modern_id(operator) if operator and SESSION_HEADER not in headers else None


def _modern_id(name: str) -> str:
    """Without ``@``, behind which a lease's key names the kernel."""
    return f"modern {quote(name, safe=' ', errors='backslashreplace')}"


def address_of(context: Context) -> str | None:
    """Where a request comes from; None over a unix socket."""
    client = _request(context).client
    return f"{client.host}:{client.port}" if client else None


def _decoded(value: str | None, errors: str = "replace") -> str | None:
    """A header's text: URL-encoded, or bytes of UTF-8 as they are. With surrogates a name is refused, not mended."""
    if not value:
        return None
    with suppress(UnicodeError):
        value = value.encode("latin-1").decode()
    return unquote(value, errors=errors)[:VALUE_CHARACTERS]


def _number(value: str | None) -> int | str | None:
    """A generation; what is no number stays as it is, and is one that does not exist."""
    if value is None:
        return None
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else value[:VALUE_CHARACTERS]


def _request(context: Context) -> Request:
    assert context.request is not None, "over HTTP every message comes with its request"
    return context.request
