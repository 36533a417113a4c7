"""A tour of loommux: a real MCP client over stdio does the main job; what it prints is what an agent sees.

    python examples/tour.py

Starts its own server in a temporary directory and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CallToolResult

COMMAND = [sys.executable, "-m", "loommux_host.cli"]

TRAINING = """\
%%loommux --wait 2 --silence 2
import random, time
random.seed(7)
for epoch in range(1, 1001):
    loss = 1 / epoch + random.random() / 50
    print(f"epoch {epoch} loss {loss:.4f}", flush=True)
    if epoch % 100 == 0:
        print(f"checkpoint {epoch // 100} written")
    time.sleep(0.02)"""
FIGURE = """\
import matplotlib.pyplot as plt
plt.plot(roots)
plt.title("roots");"""


class Tour:
    """A client that prints every call and what came back."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def say(self, text: str) -> None:
        print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n# {text}")

    async def call(self, tool: str, **arguments: Any) -> str:
        """Call a tool, print what an agent would see of it, return the text."""
        print(f"\n→ {tool}({_shown(arguments)})")
        result = await self._client.call_tool(tool, arguments, progress_callback=self._progress)
        assert isinstance(result, CallToolResult)
        texts = []
        for block in result.content:
            if block.type == "text":
                texts.append(block.text)
                print(textwrap.indent(block.text.rstrip("\n"), "  "))
            elif block.type == "image":
                print(f"  [image block: {block.mime_type}, {len(block.data) * 3 // 4:,} bytes]")
        if result.is_error:
            print("  (marked as an error: nothing was done)")
        return "\n".join(texts)

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        print(f"  … progress: {message}")


def _shown(arguments: dict[str, Any]) -> str:
    lines = [f"{name}={value!r}" for name, value in arguments.items() if "\n" not in str(value)]
    blocks = [f"{name}=\n{textwrap.indent(v, '    ')}\n  " for name, v in arguments.items() if "\n" in str(v)]
    return ", ".join(lines + blocks)


def _number(text: str) -> int:
    """The execution that a result is about."""
    found = re.search(r"In \[(\d+)\]", text)
    assert found, text
    return int(found[1])


@asynccontextmanager
async def server(workspace: Path) -> AsyncIterator[Tour]:
    """A server of our own over stdio, with a client of the handshake era, as most hosts are."""
    parameters = StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], cwd=workspace)
    async with Client(stdio_client(parameters), mode="legacy") as client:
        yield Tour(client)


async def tour(t: Tour) -> None:
    t.say("State is kept between cells.")
    await t.call("run_cell", freeform="roots = [n ** 0.5 for n in range(8)]\nlen(roots)")
    await t.call("run_cell", freeform="max(roots)")

    t.say("A long cell goes on after its call has returned; it can be watched, read and searched meanwhile.")
    training = _number(await t.call("run_cell", freeform=TRAINING))
    await t.call("run_cell", freeform="1 + 1")
    await t.call("execution_status", execution=training)
    await t.call("read_output", execution=training, line_range="-3:")
    await t.call("search_output", query="checkpoint", execution=training)
    await t.call("wait", execution=training, timeout_seconds=5, silence_seconds=5)

    t.say("Exactly this cell is interrupted; variables stay.")
    await t.call("interrupt", execution=training)
    await t.call("run_cell", freeform="epoch, round(loss, 4)")

    t.say("The output of an ended cell stays readable; too much of it is left out of the result.")
    await t.call("run_cell", freeform="for i in range(20_000): print('row', i, 'NEEDLE' if i == 12_345 else '')")
    await t.call("search_output", query="NEEDLE", context_before=1, context_after=1)
    await t.call("read_output", line_range="3:5")

    t.say("Figures come as images.")
    await t.call("run_cell", freeform=FIGURE)

    t.say("A Python error is a result with a traceback; what did nothing is marked as an error.")
    await t.call("run_cell", freeform="roots / 0")
    await t.call("read_output", execution=999)
    await t.call("read_output", line_range="x")

    t.say("Restart always works; records of the process before stay readable.")
    await t.call("restart")
    await t.call("run_cell", freeform="roots")
    await t.call("read_output", execution=2, process=1)
    await t.call("status")


async def main() -> None:
    with tempfile.TemporaryDirectory() as workspace:
        async with server(Path(workspace)) as t:
            await tour(t)


if __name__ == "__main__":
    asyncio.run(main())
