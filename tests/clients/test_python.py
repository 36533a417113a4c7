"""The official Python client and fastmcp's, in every mode they know, over stdio and HTTP."""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import fastmcp
import pytest
from fastmcp.client.transports import StdioTransport
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

pytestmark = pytest.mark.anyio
HANDLE = re.compile(r"kernel=(k_\S+)")
#: What each mode comes to speak.
MODES = {"legacy": "2025-11-25", "auto": "2026-07-28", "2026-07-28": "2026-07-28"}
PICTURE = "from PIL import Image\nImage.new('RGB', (8, 8), 'red')"


async def has_a_session(call: Callable[[str, dict[str, Any]], Awaitable[Any]]) -> None:
    """State is kept; an error is a result; an image arrives; a refusal is an error."""
    kernel: dict[str, str] = {}
    first = await call("run_cell", {"freeform": "x = 41"})
    if found := HANDLE.search(first.content[-1].text):
        kernel = {"kernel": found[1]}
    kept = await call("run_cell", {"freeform": "x + 1", **kernel})
    assert kept.content[0].text.splitlines()[1] == "Out[2]: 42"
    failed = await call("run_cell", {"freeform": "1 / 0", **kernel})
    assert not failed.is_error
    assert "ZeroDivisionError" in failed.content[0].text
    picture = await call("run_cell", {"freeform": PICTURE, **kernel})
    images = [block for block in picture.content if block.type == "image"]
    assert [image.mime_type for image in images] == ["image/png"]
    assert base64.b64decode(images[0].data).startswith(b"\x89PNG")
    refused = await call("read_output", {"execution": 99, **kernel})
    assert refused.is_error
    assert refused.content[0].text.startswith("execution_not_found")


@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_has_a_session_over_stdio(mode: str, loommux: str, tmp_path: Path) -> None:
    with (tmp_path / "errors").open("w") as errors:
        transport = stdio_client(StdioServerParameters(command=loommux, cwd=tmp_path), errlog=errors)
        async with Client(transport, mode=mode) as client:
            assert client.protocol_version == MODES[mode]
            await has_a_session(client.call_tool)


@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_has_a_session_over_http(mode: str, served: str) -> None:
    async with Client(served, mode=mode) as client:
        assert client.protocol_version == MODES[mode]
        await has_a_session(client.call_tool)


@pytest.mark.parametrize("mode", MODES)
async def test_fastmcps_client_has_a_session_over_http(mode: str, served: str) -> None:
    async with fastmcp.Client(served, mode=mode) as client:
        await has_a_session(lambda name, arguments: client.call_tool(name, arguments, raise_on_error=False))


async def test_fastmcps_client_has_a_session_over_stdio(loommux: str, tmp_path: Path) -> None:
    transport = StdioTransport(loommux, [], cwd=str(tmp_path), keep_alive=False)
    async with fastmcp.Client(transport) as client:
        await has_a_session(lambda name, arguments: client.call_tool(name, arguments, raise_on_error=False))
