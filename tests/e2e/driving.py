"""What tests drive a real stdio server with: the official client in both protocol eras, or line by line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import IO, Any

import anyio
import psutil
from jupyter_client.asynchronous.client import AsyncKernelClient
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CallToolResult

from tests.e2e.trees import below

COMMAND = [sys.executable, "-m", "loommux_host.cli"]
MARK = "TEST_MARK_OF_A_SERVER"
#: Seconds within which everything a server started has to be gone.
GONE = 10.0
#: Seconds for anything that a loaded machine may take long for.
PATIENCE = 60.0
ERAS = ["legacy", "2026-07-28"]


class Place:
    """Where one test's servers run, and what they must not leave behind."""

    def __init__(self, workspace: Path, temporary: Path, runtime: Path) -> None:
        self.workspace, self.temporary, self.runtime = workspace, temporary, runtime
        self.mark = uuid.uuid4().hex
        self.errors = temporary / "stderr"
        #: What a test adds to the environment of its servers.
        self.more: dict[str, str] = {}

    @property
    def environment(self) -> dict[str, str]:
        """What a host passes on; nothing of it is configuration."""
        own = {"JUPYTER_RUNTIME_DIR": str(self.runtime), "TMPDIR": str(self.temporary), MARK: self.mark}
        return own | self.more

    def processes(self) -> list[psutil.Process]:
        """Everything alive that a server of this test is or started."""
        found, closed = [], []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess):
                try:
                    if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
                except psutil.AccessDenied:
                    closed.append(process)
        return found + self._of_a_server(found, closed)

    def _of_a_server(self, open: list[psutil.Process], closed: list[psutil.Process]) -> list[psutil.Process]:
        """Those that are closed to their own account (all but root's): what stands above a kernel, and what is told."""
        own = {process.pid for process in open}
        own |= {said["pid"] for file in below(self.temporary, "server.json") if (said := _json(file))}
        above_us = {os.getpid(), *(process.pid for process in psutil.Process().parents())}
        told = {
            str(self.temporary),
            *(said["kernel_id"] for f in below(self.temporary, "kernel.json") if (said := _json(f))),
        }
        around = {p: _around(p) for p in closed if p.pid not in above_us and _is_alive_and_ours(p)}
        found: list[psutil.Process] = []
        while more := [
            process
            for process, (parent, children, words) in around.items()
            if process not in found
            and (process.pid in own or parent in own or children & own or any(word in words for word in told))
        ]:
            found += more
            own |= {process.pid for process in more}
        return found

    def wait_until_empty(self) -> list[str]:
        """Wait for every process to be gone; what is left after all is named, and ended."""
        end = time.monotonic() + GONE
        while (left := self.processes()) and time.monotonic() < end:
            psutil.wait_procs(left, timeout=0.2)
        named = []
        for process in left:
            with contextlib.suppress(psutil.Error):
                named.append(f"{process.pid} {process.cmdline()}")
                process.kill()
        return named

    def files(self) -> list[str]:
        """Every file that servers of this test have made and not removed."""
        made = [p for p in below(self.temporary) if p != self.errors]
        return [str(p) for p in [*made, *self.runtime.iterdir()]]

    def stores(self) -> list[Path]:
        """The record stores, by process."""
        return sorted(below(self.temporary, "records.sqlite"), key=lambda path: int(path.parent.name))

    def log(self) -> str:
        """What the servers wrote to stderr."""
        return self.errors.read_text() if self.errors.exists() else ""


def _json(file: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        return json.loads(file.read_text())
    return {}


def _is_alive_and_ours(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.uids().real == os.getuid() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _around(process: psutil.Process) -> tuple[int, set[int], str]:
    """Its parent, its children, its command line."""
    with contextlib.suppress(psutil.Error):
        return process.ppid(), {child.pid for child in process.children()}, " ".join(process.cmdline())
    return 0, set(), ""


class Agent:
    """An MCP client at work; `mode` is the protocol era it speaks."""

    def __init__(self, client: Client, mode: str) -> None:
        self.client, self.mode = client, mode

    async def call(self, tool: str, /, progress: Any = None, **arguments: Any) -> CallToolResult:
        result = await self.client.call_tool(tool, arguments, read_timeout_seconds=PATIENCE, progress_callback=progress)
        assert isinstance(result, CallToolResult)
        return result

    async def text(self, tool: str, /, **arguments: Any) -> str:
        """The text of a result that did something."""
        result = await self.call(tool, **arguments)
        assert not result.is_error, text_of(result)
        return text_of(result)

    async def refusal(self, tool: str, /, **arguments: Any) -> str:
        """The text of a result that did nothing."""
        result = await self.call(tool, **arguments)
        assert result.is_error, text_of(result)
        return text_of(result)

    async def run(self, source: str, **arguments: Any) -> str:
        return await self.text("run_cell", freeform=source, **arguments)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = PATIENCE) -> None:
    """Wait for something in another process, which has no event to wait for; at most `seconds`."""
    with anyio.fail_after(seconds):
        while not await condition():  # noqa: ASYNC110
            await anyio.sleep(0.02)


def text_of(result: CallToolResult) -> str:
    return "".join(block.text for block in result.content if block.type == "text")


Start = Callable[..., AbstractAsyncContextManager[Agent]]


@asynccontextmanager
async def serving(place: Place, *flags: str, mode: str = "legacy", cwd: Path | None = None) -> AsyncIterator[Agent]:
    """A server with one client."""
    parameters = StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], *flags], env=place.environment, cwd=cwd or place.workspace
    )
    with place.errors.open("a") as errors:
        async with mcp_client(stdio_client(parameters, errlog=errors), mode) as client:
            yield Agent(client, mode)


@asynccontextmanager
async def mcp_client(transport: Any, mode: str) -> AsyncIterator[Client]:
    """The official client; an error inside comes out as it is, not in the groups of the client's tasks."""
    failure: Exception | None = None
    async with Client(transport, mode=mode) as client:
        try:
            yield client
        except Exception as error:
            failure = error
    if failure is not None:
        raise failure


def configure(place: Place, text: str) -> None:
    directory = place.workspace / ".loommux"
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / "config.py").write_text(text)
    (directory / "config.py").chmod(0o600)


def interpreter(place: Place, script: str) -> None:
    """Have a shell script stand for the interpreter of the kernels there."""
    path = place.workspace / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    configure(place, f"kernel_python = {str(path)!r}")


class Lines:
    """A server driven line by line, as no client library would."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.heard: list[dict[str, Any]] = []
        self._next = 0

    @property
    def stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    def send(self, *messages: object) -> None:
        """Lines as they are, or messages as JSON."""
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode()
            self.stdin.write(line + b"\n")
        self.stdin.flush()

    def request(self, method: str, params: dict[str, Any] | None = None, id: object = None) -> object:
        self._next += 1
        id = self._next if id is None else id
        self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}})
        return id

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params or {}})

    async def read(self) -> dict[str, Any]:
        """The next line; it has to be a JSON-RPC message."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(asyncio.to_thread(self.process.stdout.readline), PATIENCE)
        assert line, "the server closed its output"
        message = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        self.heard.append(message)
        return message

    async def answer(self, id: object) -> dict[str, Any]:
        """The answer to `id`; what comes before it is kept in `heard`."""
        while (message := await self.read()).get("id") != id:
            pass
        return message

    async def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        return await self.answer(self.request(method, params))

    async def cell(self, source: str, **meta: object) -> str:
        answer = await self.answer(self.begin_cell(source, **meta))
        return "".join(block.get("text", "") for block in answer["result"]["content"])

    def begin_cell(self, source: str, **meta: object) -> object:
        return self.request("tools/call", {"name": "run_cell", "arguments": {"freeform": source}, "_meta": meta})

    async def open(self) -> Lines:
        client = {"name": "lines", "version": "1"}
        await self.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client})
        self.notify("notifications/initialized")
        return self

    async def rest(self) -> bytes:
        """Everything until the server closes its output."""
        assert self.process.stdout is not None
        return await asyncio.wait_for(asyncio.to_thread(self.process.stdout.read), PATIENCE)

    async def exit_code(self) -> int:
        return await asyncio.to_thread(self.process.wait, PATIENCE)


StartLines = Callable[..., Lines]


@asynccontextmanager
async def attached(agent: Agent) -> AsyncIterator[AsyncKernelClient]:
    """A foreign client, connected by the file that status names."""
    found = re.search(r"--existing (\S+\.json)", await agent.text("status"))
    assert found is not None
    async with connected(found[1]) as client:
        yield client


@asynccontextmanager
async def connected(file: str) -> AsyncIterator[AsyncKernelClient]:
    """A foreign client, connected by that file."""
    client: Any = AsyncKernelClient(connection_file=file)
    client.load_connection_file()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=30)
        yield client
    finally:
        client.stop_channels()


async def foreign(client: AsyncKernelClient, source: str) -> None:
    """Run a cell as the foreign client and wait for its end."""
    running = client.execute_interactive(source, output_hook=lambda message: None, timeout=30)
    reply = await asyncio.wait_for(running, 40)
    assert reply["content"]["status"] != "aborted", reply
