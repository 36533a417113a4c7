"""loommux over stdio, driven by the official Python client."""

from __future__ import annotations

import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

COMMAND = Path(sys.executable).parent / "loommux"


class Server:
    """One stdio server with one session; an async context manager."""

    async def __aenter__(self) -> Server:
        self._stack = AsyncExitStack()
        parameters = StdioServerParameters(command=str(COMMAND), args=[])
        before = {p.pid for p in psutil.Process().children()}
        streams = await self._stack.enter_async_context(stdio_client(parameters))
        self.process = next(p for p in psutil.Process().children() if p.pid not in before)
        self.session = await self._stack.enter_async_context(ClientSession(streams[0], streams[1]))
        await self.session.initialize()
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    async def call(self, tool: str, **arguments: Any) -> str:
        """The text that an agent reads."""
        result: Any = await self.session.call_tool(tool, arguments, read_timeout_seconds=300)
        return "".join(getattr(block, "text", "") for block in result.content)

    async def run(self, source: str, wait: float | None = None) -> str:
        header = f"%%loommux --wait {wait:g} --silence {wait:g}\n" if wait else ""
        return await self.call("run_cell", freeform=header + source)

    async def kernel_process(self) -> psutil.Process:
        text = await self.run("import os; os.getpid()")
        found = re.search(r"Out\[\d+\]: (\d+)", text)
        assert found, text
        return psutil.Process(int(found[1]))
