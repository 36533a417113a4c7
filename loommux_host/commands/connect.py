"""Be an MCP server over stdio that forwards everything to a server over HTTP.

For a host that only starts programs: its kernel then lives in a server that outlives it, and
with --resource the next start works in the same kernel. It reconnects by itself; calls are
answered as unreachable once the server is away for 30 seconds, at the start for 10.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from urllib.parse import unquote, urlsplit

from loommux_host.bridge.conversation import Bridge
from loommux_host.bridge.remote import Endpoint, Remote
from loommux_host.command_line.remote_server import mcp_url, token_file
from loommux_host.command_line.reporting import DONE, Refused, say
from loommux_host.config import DEFAULT_PATH
from loommux_host.mcp.stdio_lines import Reader, claim, writer

#: How long, in seconds, calls in flight may take to end once the host is gone.
LEAVE_SECONDS = 2.0


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="like http://127.0.0.1:8801/mcp, or unix:PATH for a server's --uds")
    parser.add_argument("--token-file", metavar="FILE", help="holds the server's token; read again when it changes")
    parser.add_argument("--resource", metavar="NAME", help="the kernel to work in, opened if missing; it stays")


def run(options: Namespace) -> int:
    remote = endpoint(options)
    if sys.stdin is not None and sys.stdin.isatty():
        say("speaks MCP on its standard input and output; an MCP host starts it, see loommux connect --help")
    try:
        wire = claim()
    except OSError:
        raise Refused("no_standard_streams", "there is no standard input or output to speak MCP over") from None
    # The wire is watched by a selector, which is not Windows' own choice.
    factory = asyncio.SelectorEventLoop if sys.platform == "win32" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_forward(remote, wire))
    return DONE


def endpoint(options: Namespace) -> Endpoint:
    """Where to, from the command line. Raises `Refused`."""
    token = token_file(options.token_file) if options.token_file else None
    if options.url.startswith("unix:"):
        path = options.url.removeprefix("unix:")
        return Endpoint(f"http://localhost{DEFAULT_PATH}", options.resource, token, uds=path)
    if options.url.startswith("http+unix://"):
        parts = urlsplit(options.url)
        where = parts.path if parts.path not in ("", "/") else DEFAULT_PATH
        return Endpoint(f"http://localhost{where}", options.resource, token, uds=unquote(parts.netloc))
    return Endpoint(mcp_url(options.url), options.resource, token)


async def _forward(to: Endpoint, wire: tuple[int, int]) -> None:
    """Until the host is gone, or somebody ends this process."""
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # Windows: Ctrl+C ends the loop
            loop.add_signal_handler(number, gone.set)
    read, write = wire
    out = writer(write, gone.set)
    async with Remote(to) as remote:
        bridge = Bridge(remote, out.write)
        lines = Reader(read, bridge.receive, gone.set, bridge.answered)
        try:
            await gone.wait()
        finally:
            lines.close()
            await bridge.leave(LEAVE_SECONDS)
