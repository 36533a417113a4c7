"""How long a server takes to start that takes over a killed one's kernels: ``python -m bench takeover``."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import statistics
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from bench.measures import Row
from bench.ours import COMMAND

KERNELS = 4
TIMES = 5
START = 60.0


async def takeover() -> list[Row]:
    """Seconds from the command to its line that it listens, with kernels to take over and with none."""
    plain, taking = [], []
    for _ in range(TIMES):
        with tempfile.TemporaryDirectory() as workspace, socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            server, url, seconds = await _start(workspace, port)
            plain.append(seconds)
            for n in range(KERNELS):
                headers = {"X-Loommux-Resource": f"kernel-{n}"}
                await _run(url, headers, f"mine = {n}")
            server.send_signal(signal.SIGKILL)
            await server.wait()
            server, url, seconds = await _start(workspace, port)
            taking.append(seconds)
            for n in range(KERNELS):
                assert f"Out[2]: {n}" in await _run(url, {"X-Loommux-Resource": f"kernel-{n}"}, "mine")
            server.terminate()
            await server.wait()
    name = f"start of a server that takes over {KERNELS} kernels (floor: that has none)"
    return [Row(name, statistics.median(taking), statistics.median(plain))]


async def _start(workspace: str, port: int) -> tuple[Process, str, float]:
    began = time.monotonic()
    server = await asyncio.create_subprocess_exec(
        str(COMMAND), "--server", "--port", str(port), stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, cwd=workspace
    )
    assert server.stderr is not None
    said = ""
    async with asyncio.timeout(START):
        while (listens := re.search(r"listening on (http\S+)", said)) is None:
            line = (await server.stderr.readline()).decode()
            assert line, f"the server did not start: {said}"
            said += line
    return server, listens[1], time.monotonic() - began


async def _run(url: str, headers: dict[str, str], source: str) -> str:
    async with (
        httpx2.AsyncClient(headers=headers, timeout=START, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http), mode="legacy") as client,
    ):
        result = await client.call_tool("run_cell", {"freeform": source})
    return "".join(block.text for block in result.content if block.type == "text")
