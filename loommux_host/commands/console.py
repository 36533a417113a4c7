"""Open the console for all of your servers, those over stdio included.

A small server on loopback shows every living server of this account through its private
socket. The address that is printed lets one browser in, once; the page ends with this command. A browser that
may not read temporary files (one from snap or flatpak) opens nothing by itself: give it the printed address.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import signal
import socket
import tempfile
import threading
import webbrowser
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from loommux_host.command_line.reporting import DONE, Refused, say

PAGE = """\
<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>loommux console</title>
<a href="{address}">Open the console</a>
"""


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
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        with contextlib.suppress(AttributeError, NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(getattr(signal, name), stop.set)
    say(f"console for one browser, until Ctrl+C: {address}")

    async def end() -> None:
        return

    with contextlib.ExitStack() as pages:
        if browser:
            page = pages.enter_context(opening_page(address))
            gateway.on_login = pages.close
            # some return when the browser is closed, and nobody waits for that at the end
            threading.Thread(target=open_in_browser, args=(page.as_uri(),), daemon=True).start()
        await WebServer(gateway.asgi, stop, end).serve(sockets=[listener])


def open_in_browser(page: str) -> None:
    if not webbrowser.open(page):
        say("no browser could be opened here; open the address above in one")


@contextlib.contextmanager
def opening_page(address: str) -> Iterator[Path]:
    """A page of this account alone that leads to the address, for as long as the block lasts.

    A browser is told what to open on its command line, which everybody on the machine can read.
    """
    with tempfile.TemporaryDirectory(prefix="loommux-console-") as directory:
        page = Path(directory) / "open.html"
        page.touch(mode=0o600)
        page.write_text(PAGE.format(address=html.escape(address, quote=True)), encoding="utf-8")
        yield page
