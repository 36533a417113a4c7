"""The private socket is served from the first request on, also when that could not be imported once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from loommux_host.processes.private_socket import ControlSocket
from loommux_host.server import private_server
from loommux_host.server.private_server import Private
from loommux_host.web.json_answer import JsonAnswer

pytestmark = pytest.mark.anyio


async def answer_all(scope: Any, receive: Any, send: Any) -> None:
    await JsonAnswer({"ok": True})(scope, receive, send)


@dataclass
class App:
    asgi: Any = field(default_factory=lambda: answer_all)

    def close(self) -> None: ...


async def made() -> App:
    return App()


@pytest.mark.case("X13")
async def test_after_a_failed_import_the_next_request_works(
    short_temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = ControlSocket(short_temporary)
    private = Private(control, made)
    monkeypatch.setattr(private_server, "HEAVY", ("loommux_host.no_such_module",))
    transport = httpx2.AsyncHTTPTransport(uds=str(short_temporary / "c"))
    try:
        async with httpx2.AsyncClient(base_url="http://x", transport=transport) as http:
            for _ in range(2):
                refused = await asyncio.wait_for(http.get("/api/health"), 20)
                assert (refused.status_code, json.loads(refused.content)["status"]) == (503, "internal_error")
            monkeypatch.undo()
            answer = await asyncio.wait_for(http.get("/api/health"), 20)
            assert answer.json() == {"ok": True}
    finally:
        await private.close()
        control.close()
