"""32 clients of one HTTP server, each with a kernel of its own, for a minute: ``python -m bench sessions``.

Errors must not be; the host's memory has to level off, also with a result of 20,000
tokens among the small ones. The minute begins when every kernel has answered once.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import httpx2
import psutil
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from bench.measures import Row
from bench.ours import COMMAND

SESSIONS = 32
SECONDS = 60.0
#: When memory is looked at first: everybody has had many results by then.
SETTLED = 10.0
#: No single call may take longer, in seconds; opening one includes the start of its kernel.
CALL, OPENING = 60.0, 300.0
END = 30.0
#: Every small result is looked at, so that nobody is given another's.
SMALL = "mine = {mine}; count = globals().get('count', 0) + 1; print('mine', mine, count)"
#: 200 rows of 100 tokens.
LARGE = "%%loommux --full-output\nfor _ in range(200): print(' '.join('a' * 99))"
LARGE_ROWS = 200 * (" ".join("a" * 99) + "\n")


@dataclass
class Tally:
    """What happened to all sessions together."""

    cells: int = 0
    errors: Counter[str] = field(default_factory=Counter[str])


@contextlib.asynccontextmanager
async def http_server() -> AsyncIterator[tuple[psutil.Process, str]]:
    """A server on a free port, and its endpoint; ended in order with the block."""
    with tempfile.TemporaryDirectory() as workspace:
        process = await asyncio.create_subprocess_exec(
            str(COMMAND), "--server", "--port", "0", stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, cwd=workspace
        )
        assert process.stderr is not None
        said, listens = "", None
        try:
            async with asyncio.timeout(60):
                while listens is None:
                    line = (await process.stderr.readline()).decode()
                    assert line, f"the server did not start: {said}"
                    said += line
                    listens = re.search(r"listening on (http\S+)", line)
            draining = asyncio.create_task(process.stderr.read())
            yield psutil.Process(process.pid), listens[1]
            process.terminate()
            async with asyncio.timeout(END):
                if log := (await draining).decode():
                    print(log)
                await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _cell(client: Client, source: str, expected: str, limit: float) -> None:
    async with asyncio.timeout(limit):
        result = await client.call_tool("run_cell", {"freeform": source})
    text = "".join(block.text for block in result.content if block.type == "text")
    if result.is_error or expected not in text + "\n":
        raise AssertionError(text[:300])


async def _session(url: str, mine: int, tally: Tally, opened: asyncio.Barrier) -> None:
    """Small cells one after the other; the first session has every tenth of them large."""
    source, large = SMALL.format(mine=mine), False
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=OPENING, trust_env=False))
        transport = streamable_http_client(url, http_client=http)
        client = await stack.enter_async_context(Client(transport, mode="legacy"))
        await _cell(client, source, f"mine {mine} 1\n", OPENING)
        await opened.wait()
        end, small = time.monotonic() + SECONDS, 1
        while time.monotonic() < end:
            large = mine == 0 and small % 10 == 0 and not large
            small += not large
            try:
                if large:
                    await _cell(client, LARGE, LARGE_ROWS, CALL)
                else:
                    await _cell(client, source, f"mine {mine} {small}\n", CALL)
            except Exception as error:
                tally.errors[f"{type(error).__name__}: {error}"] += 1
            tally.cells += 1


async def sessions() -> list[Row]:
    """Cells per second and the host's memory, with no error at all."""
    tally, opened = Tally(), asyncio.Barrier(SESSIONS + 1)
    limit = OPENING + SECONDS + CALL
    async with http_server() as (host, url), asyncio.timeout(limit), asyncio.TaskGroup() as group:
        for mine in range(SESSIONS):
            group.create_task(_session(url, mine, tally, opened))
        await opened.wait()
        await asyncio.sleep(SETTLED)
        early = host.memory_info().rss / 1e6
        await asyncio.sleep(SECONDS - SETTLED)
        late, cells = host.memory_info().rss / 1e6, tally.cells
    for error, times in tally.errors.most_common(5):
        print(f"{times} × {error}")
    name = f"{SESSIONS} sessions for {SECONDS:g} s"
    return [
        Row(f"{name}: errors", sum(tally.errors.values()), None, 0, ""),
        Row(f"{name}: cells a second", cells / SECONDS, None, None, "/s"),
        Row(f"{name}: host memory after {SETTLED:g} s", early, None, 200, "MB"),
        Row(f"{name}: host memory at the end", late, None, 200, "MB"),
    ]
