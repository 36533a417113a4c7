"""schemathesis against the API of a server with real kernels, by the description that the server gives."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
HERE = Path(__file__).resolve().parent
#: Seconds that schemathesis may take.
BUDGET = 60
CELLS = ["for i in range(50):\n    print('line', i)", "1 / 0", "'last'"]


@pytest.fixture
def settings() -> str:
    return "max_kernels = 3\n"


async def test_schemathesis_finds_nothing_that_the_description_does_not_say(served: str, tmp_path: Path) -> None:
    base = served.removesuffix("/mcp")
    async with (
        httpx2.AsyncClient(headers={"X-Loommux-Resource": "lab"}) as http,
        Client(streamable_http_client(served, http_client=http), mode="legacy") as client,
    ):
        for cell in CELLS:
            await client.call_tool("run_cell", {"freeform": cell})
        (lab,) = (await http.get(f"{base}/api/resources")).json()["resources"]
        environment = os.environ | {"LAB": lab["resource_id"]}
        command = schemathesis(f"{base}/api/openapi.json")
        ran = await anyio.run_process(command, check=False, env=environment, cwd=tmp_path)
        after = await http.get(f"{base}/api/resources/{lab['resource_id']}")
    assert ran.returncode == 0, ran.stdout.decode()
    assert after.status_code == 200


def schemathesis(description: str) -> list[str]:
    return [
        str(Path(sys.executable).parent / "schemathesis"), "--config-file", str(HERE / "schemathesis.toml"),
        "run", description, "--checks", "all",
        # Ids in paths are LAB's, or of none that is there: never that of a kernel which was just opened.
        "--exclude-checks", "ensure_resource_availability", "--max-time", str(BUDGET), "--request-timeout", "20",
        "--generation-database", "none", "--no-color",
    ]  # fmt: skip
