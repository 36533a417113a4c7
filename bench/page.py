"""What an open console costs its server while nothing happens: ``python -m bench idle_page``.

Does what the page does then: hold the stream of events, and look at all kernels four
times a minute. Processor time by the system's count, over the same time without a page.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import httpx2
import psutil
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from bench.measures import Row
from bench.sessions import http_server

KERNELS = 8
SECONDS = 60.0
LOOK_SECONDS = 15.0
#: Of one processor, in milliseconds a minute: next to nothing, and nothing but the loop's own timers.
WITH_PAGE, WITHOUT = 600.0, 60.0


async def idle_page() -> list[Row]:
    """Milliseconds of processor time a minute that a server with idle kernels takes, without a page and with one."""
    async with http_server() as (host, url), AsyncExitStack() as stack:
        for _ in range(KERNELS):
            client = await stack.enter_async_context(Client(streamable_http_client(url), mode="legacy"))
            await client.call_tool("run_cell", {"freeform": "1"})
        await asyncio.sleep(5)  # what follows a start
        without = await _processor_time(host)
        async with httpx2.AsyncClient(base_url=url.removesuffix("/mcp"), timeout=None, trust_env=False) as http:
            page = [asyncio.create_task(_follow(http)), asyncio.create_task(_look(http))]
            await asyncio.sleep(5)
            with_page = await _processor_time(host)
            for task in page:
                assert not task.done(), task
                task.cancel()
    name = f"processor time a minute, {KERNELS} idle kernels"
    return [
        Row(f"{name}: no page", without, None, WITHOUT, "ms"),
        Row(f"{name}: a page", with_page, None, WITH_PAGE, "ms"),
    ]


async def _processor_time(host: psutil.Process) -> float:
    before, begin = host.cpu_times(), time.monotonic()
    await asyncio.sleep(SECONDS)
    after, minutes = host.cpu_times(), (time.monotonic() - begin) / 60
    return (after.user + after.system - before.user - before.system) * 1000 / minutes


async def _follow(http: httpx2.AsyncClient) -> None:
    async with http.stream("GET", "/api/events?recent=300") as answer:
        answer.raise_for_status()
        async for _ in answer.aiter_lines():
            pass


async def _look(http: httpx2.AsyncClient) -> None:
    while True:
        (await http.get("/api/resources")).raise_for_status()
        await asyncio.sleep(LOOK_SECONDS)
