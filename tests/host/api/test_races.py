"""Any two acts on one kernel at once: both are answered, and so is what comes next."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import httpx2
import pytest

from tests.host.server.http_server import HttpServer, Raw

pytestmark = pytest.mark.anyio
ACTS: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "restart": ("POST", "/restart", {}),
    "recycle": ("POST", "/recycle", {"force": True}),
    "rename": ("POST", "/rename", {"name": "other"}),
    "interrupt": ("POST", "/interrupt", {}),
    "run": ("POST", "/executions", {"source": "say", "wait_seconds": 1}),
    "wait": ("POST", "/wait", {"wait_seconds": 1}),
    "health": ("POST", "/health", {}),
    "export": ("GET", "/notebook", None),
    "status": ("GET", "/status", None),
    "snapshot": ("GET", "", None),
    "executions": ("GET", "/executions", None),
    "output": ("GET", "/output", None),
    "lines": ("GET", "/lines", None),
    "displays": ("GET", "/displays", None),
    "variables": ("GET", "/variables", None),
}
PAIRS = list(itertools.combinations_with_replacement(ACTS, 2))


async def act(http: httpx2.AsyncClient, path: str, name: str) -> str | None:
    """What is wrong with the answer, None when nothing is."""
    method, rest, body = ACTS[name]
    answer = await http.request(method, path + rest, json=body)
    word = None if answer.status_code == 200 else answer.json().get("status")
    fine = answer.status_code == 200 or (answer.status_code in (400, 404, 409, 503) and word != "internal_error")
    return None if fine else f"{name}: {answer.status_code} {answer.text[:300]}"


@pytest.mark.case("X13")
@pytest.mark.parametrize("first", ACTS)
async def test_two_acts_at_once_are_both_answered(server: HttpServer, http: httpx2.AsyncClient, first: str) -> None:
    wrong: list[str] = []
    for number, second in enumerate(ACTS):
        raw = await Raw.open(http)
        raw.headers["X-Loommux-Resource"] = f"lab{number}"
        await raw.cell("say")
        path = f"/api/resources/{server.kernel(f'lab{number}').id}"
        begun = asyncio.create_task(act(http, path, first))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        said = await asyncio.gather(begun, act(http, path, second))
        wrong += [f"{first} and {second}: {one}" for one in said if one is not None]
        assert (await http.get("/api/resources")).status_code == 200
    assert wrong == []
