"""The tools on the SDK's server, through the official client in both protocol eras."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult

from loommux_host.mcp.sdk import build_server
from loommux_host.mcp.tools import INSTRUCTIONS, TOOLS
from tests.host.faces import FakeService, calls_on, cell_answer, refusal

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("mode", ["legacy", "2026-07-28", "auto"])]


def client(service: FakeService, mode: str, *, structured: bool = False) -> Client:
    server = build_server(calls_on(service, structured=structured), lambda context: context.protocol_version)  # pyright: ignore
    return Client(server, mode=mode, raise_exceptions=True)


async def test_a_client_learns_the_tools_and_how_to_use_them(mode: str) -> None:
    async with client(FakeService(refusal()), mode) as agent:
        listed = {tool.name: tool for tool in (await agent.list_tools()).tools}
        assert set(listed) == set(TOOLS)
        for name, tool in listed.items():
            assert tool.description == TOOLS[name].description
            assert tool.output_schema is None
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint is TOOLS[name].hints["readOnlyHint"]
        assert (listed["wait"].meta or {})["anthropic/maxResultSizeChars"] == 200_000
        if mode != "2026-07-28":
            assert agent.instructions == INSTRUCTIONS


async def test_a_call_gives_text_images_and_fields(mode: str) -> None:
    service = FakeService(cell_answer("Out[7]: 1\n", image=True))
    async with client(service, mode, structured=True) as agent:
        result = await agent.call_tool("run_cell", {"freeform": "1"})
        assert isinstance(result, CallToolResult)
        assert result.is_error is False
        assert [block.type for block in result.content] == ["text", "image"]
        assert (result.structured_content or {})["execution"] == 7
    assert service.asked[0][1] == ("2025-11-25" if mode == "legacy" else "2026-07-28")


async def test_what_did_nothing_is_an_error_of_the_call_and_an_unknown_tool_one_of_the_protocol(mode: str) -> None:
    async with client(FakeService(refusal()), mode) as agent:
        result = await agent.call_tool("run_cell", {"freeform": "1"})
        assert isinstance(result, CallToolResult)
        assert result.is_error is True
        with pytest.raises(MCPError, match="Unknown tool: no_such_tool"):
            await agent.call_tool("no_such_tool", {})


async def test_a_waiting_call_reports_progress_to_who_asked_for_it(mode: str) -> None:
    service = FakeService(cell_answer(""))
    service.release = asyncio.Event()
    told: list[tuple[float, str | None]] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))
        assert service.release is not None
        service.release.set()

    async with client(service, mode) as agent:
        calling = agent.call_tool("run_cell", {"freeform": "1"}, progress_callback=progress)
        await asyncio.wait_for(calling, 10)
        assert told == [(75.0, "75.0 s · epoch 12")]
        await agent.call_tool("run_cell", {"freeform": "1"})
        assert len(told) == 1


async def test_cancelling_ends_the_call(mode: str) -> None:
    service = FakeService(cell_answer(""))
    service.release = asyncio.Event()
    async with client(service, mode) as agent:
        call: asyncio.Task[Any] = asyncio.create_task(agent.call_tool("run_cell", {"freeform": "1"}))
        await asyncio.wait_for(service.began.wait(), 10)
        call.cancel()
        await asyncio.wait_for(service.cancelled.wait(), 10)
