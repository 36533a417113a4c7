"""Saying to the SDK's session manager what a client has said before, to the server that died.

Owns the making of such a request and that its answer goes nowhere. `http` reopens sessions
with it, under the ids that they had.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.types import ASGIApp, Message, Scope

from loommux_host.mcp.http_callers import SESSION_HEADER


async def exchanged(app: ASGIApp, message: dict[str, Any], session_id: str | None = None) -> None:
    """Have a message of a client answered, and throw the answer away."""
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    if session_id is not None:
        headers[SESSION_HEADER] = session_id
    scope: Scope = {
        "type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "scheme": "http",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "client": None,
    }  # fmt: skip
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    over = asyncio.Event()
    bodies = [body]

    async def receive() -> Message:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body"):
            over.set()

    await app(scope, receive, send)
