"""The console's own little server, whatever a page sends it."""

from __future__ import annotations

import httpx2
import pytest

from loommux_host.console.gateway import Gateway

pytestmark = pytest.mark.anyio


@pytest.mark.case("X13")
@pytest.mark.parametrize(
    "body", [b'{"token": "\\ud800"}', b"[]", b"{", b"[" * 50_000, b'{"token": {}}', b"\xff", b"null"]
)
async def test_a_login_that_cannot_be_right_is_refused_and_the_next_works(body: bytes) -> None:
    gateway = Gateway()
    ticket = gateway.address("http://127.0.0.1").partition("#token=")[2]
    transport = httpx2.ASGITransport(app=gateway.asgi)
    async with httpx2.AsyncClient(base_url="http://127.0.0.1", transport=transport) as http:
        refused = await http.post("/api/login", content=body, headers={"content-type": "application/json"})
        assert (refused.status_code, refused.json()["status"]) == (401, "unauthorized")
        assert (await http.post("/api/login", json={"token": ticket})).status_code == 200
        missing = await http.get("/servers/%ED%A0%80/api/resources")
        assert (missing.status_code, missing.json()["ok"]) == (404, False)
        nowhere = await http.get("/nowhere")
        assert (nowhere.status_code, nowhere.json()["status"]) == (404, "not_found")
