"""The console's page: what is sent, under which policy, who gets in, and what it is made of."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from loommux_host.console import page
from loommux_host.web.auth import access, cookie_name
from tests.host.server.http_server import http_server

pytestmark = pytest.mark.anyio
TOKEN = "a-long-secret-token"
OWN = [path for path in page.HERE.glob("*") if path.suffix in page.TYPES]
VENDOR = page.HERE / "vendor"


async def test_every_file_is_sent_under_a_policy_that_lets_in_nothing_else(tmp_path: Path) -> None:
    async with http_server(tmp_path) as server, server.http() as http:
        for path, file in page.files().items():
            answer = await http.get(path)
            assert (answer.status_code, answer.content) == (200, file.read_bytes())
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'self';")
            assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = await http.get(path, headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        assert (await http.get("/")).headers["content-type"].startswith("text/html")
        for path in ("/console/", "/console/vendor", "/console/../api.py", "/console/%2e%2e/api.py", "/console/x.js"):
            assert (await http.get(path)).status_code == 404


async def test_a_token_lets_a_browser_in_once_and_for_all_routes(tmp_path: Path) -> None:
    rules = access("127.0.0.1", TOKEN, auth=True)
    async with http_server(tmp_path, rules=rules) as server, server.http() as http:
        for path in page.files():
            assert (await http.get(path)).status_code == 200
        assert (await http.get("/api/resources")).status_code == 401
        for wrong in ({}, {"token": "x"}, {"token": TOKEN[:-1]}, {"token": None}):
            refused = await http.post("/api/login", json=wrong)
            assert (refused.status_code, refused.json()["status"]) == (401, "unauthorized")
            assert "set-cookie" not in refused.headers
        assert (await http.post("/api/login", content=f"token={TOKEN}")).status_code == 415
        foreign = {"Origin": "http://evil.example"}
        assert (await http.post("/api/login", json={"token": TOKEN}, headers=foreign)).status_code == 403
        let_in = await http.post("/api/login", json={"token": TOKEN})
        cookie = let_in.headers["set-cookie"]
        assert cookie.startswith(cookie_name(TOKEN)) and TOKEN not in cookie
        assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
        assert (await http.get("/api/resources")).status_code == 200


async def test_a_server_without_a_token_asks_for_none(tmp_path: Path) -> None:
    async with http_server(tmp_path) as server, server.http() as http:
        answer = await http.post("/api/login", json={"token": "anything"})
        assert answer.json() == {"ok": True, "token_needed": False}
        assert "set-cookie" not in answer.headers


async def test_a_path_of_the_page_given_to_mcp_is_not_open(tmp_path: Path) -> None:
    rules = access("127.0.0.1", TOKEN, auth=True)
    async with http_server(tmp_path, rules=rules, path="/console/app.js") as server, server.http() as http:
        assert (await http.post("/console/app.js", json={})).status_code == 401


def test_the_page_is_made_of_its_own_files_alone() -> None:
    """No inline script or style, no markup from text, nothing from elsewhere: the policy would stop it unseen."""
    for file in OWN:
        text = file.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function", text), file
        assert not re.search(r"""(?:src|href|url|import|from)\s*[=(]?\s*["'(]\s*(?:https?:)?//""", text), file
        for target in re.findall(r'from "\./([^"]+)"', text):
            assert (page.HERE / target).is_file(), f"{file.name} imports {target}"
        for target in re.findall(r'(?:src|href)="/console/([^"]+)"', text):
            assert (page.HERE / target).is_file(), f"{file.name} names {target}"
    index = (page.HERE / page.INDEX).read_text()
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", index)
    assert all(len(file.read_text().splitlines()) <= 400 for file in OWN)


def test_what_others_wrote_is_what_they_published() -> None:
    vendored = json.loads((VENDOR / "vendored.json").read_text())
    assert {file.name for file in VENDOR.glob("*.js")} == set(vendored)
    for name, told in vendored.items():
        content = (VENDOR / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == told["sha256"], name
        assert told["version"] in name
        assert (VENDOR / told["licence_file"]).is_file()
    assert sum(file.stat().st_size for file in page.HERE.rglob("*.js") if file.parent == VENDOR) < 45_000
