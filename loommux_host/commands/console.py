"""Open the console for all of your servers, those over stdio included.

A small server on loopback shows every living server of this account through its private
socket. The address that is printed lets one browser in, once; the page ends with this command.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import webbrowser
from argparse import ArgumentParser, Namespace

from loommux_host.command_line.reporting import DONE, Refused, say


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=0, help="port on loopback (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the address and open nothing")


def run(options: Namespace) -> int:
    with socket.socket(socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", options.port))
        except (OSError, OverflowError) as error:
            raise Refused("cannot_listen", f"cannot bind 127.0.0.1:{options.port}: {error}") from None
        listener.listen(128)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_serve(listener, browser=not options.no_browser))
    return DONE


async def _serve(listener: socket.socket, *, browser: bool) -> None:
    from loommux_host.console.gateway import Gateway
    from loommux_host.web.uvicorn_server import WebServer

    stop = asyncio.Event()
    gateway = Gateway()
    address = gateway.address(f"http://127.0.0.1:{listener.getsockname()[1]}")
    for name in ("SIGINT", "SIGTERM"):
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(getattr(signal, name), stop.set)
    say(f"console for one browser, until Ctrl+C: {address}")
    if browser:
        await asyncio.to_thread(webbrowser.open, address)

    async def end() -> None:
        return

    await WebServer(gateway.asgi, stop, end).serve(sockets=[listener])
