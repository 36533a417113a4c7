"""The console command ``loommux``: an MCP server, over stdio unless told otherwise; `command_line` has the rest.

Owns what happens before there is an event loop and after it: the standard streams, the
line and the exit code of a start that cannot work, the stacks on ``SIGUSR1``, logging.
Imports little at first, because a client waits.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from loommux_host.init.system_calls import close_process

if TYPE_CHECKING:
    from loommux_host.config import Config

EXIT_CANNOT_START = 2
LOG_FORMAT = "loommux: %(levelname)s: %(name)s: %(message)s"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    close_process()
    arguments = sys.argv[1:] if arguments is None else arguments
    if "_ARGCOMPLETE" in os.environ:
        from loommux_host.command_line.dispatch import complete

        complete()
    if arguments and not arguments[0].startswith("-"):
        from loommux_host.command_line.dispatch import dispatch

        return dispatch(arguments)
    return run_server(arguments)


def run_server(arguments: Sequence[str]) -> int:
    """Be the MCP server that the flags describe, until its client is gone; returns the exit code."""
    # Hundreds of modules are about to be made and none let go: to collect meanwhile costs a third of the start.
    gc.disable()
    from loommux_host.command_line.server_options import parse
    from loommux_host.config import ConfigError, load

    options = parse(arguments)
    wire = None
    if not options.server:
        from loommux_host.mcp.stdio_lines import claim

        if sys.stdin is not None and sys.stdin.isatty():
            say("speaks MCP on its standard input and output; an MCP host starts it, see loommux --help")
        try:
            wire = claim()  # before config.py runs: it may print
        except OSError:
            return cannot_start("there is no standard input or output to speak MCP over")
    try:
        config = load(options)
    except ConfigError as error:
        return cannot_start(str(error))
    say(f"configuration directory: {config.config_dir or 'none, the defaults hold'}")
    prepare()
    return serve_http(config) if wire is None else serve(config, wire)


def serve(config: Config, wire: tuple[int, int]) -> int:
    """Serve one client over stdio until it is gone."""
    from loommux_host.processes.runtime_files import DirectoryRefused
    from loommux_host.server.host import serve_stdio

    try:
        run(serve_stdio(config, wire))
    except DirectoryRefused as error:
        return cannot_start(str(error))
    return 0


def serve_http(config: Config) -> int:
    """Serve over HTTP until a signal comes."""
    from loommux_host.config import ConfigError
    from loommux_host.processes.runtime_files import DirectoryRefused
    from loommux_host.server import http_server

    try:
        run(http_server.serve_http(config, say))
    except (DirectoryRefused, ConfigError, http_server.CannotListen) as error:
        return cannot_start(str(error))
    return 0


def run(serving: Coroutine[Any, Any, None]) -> None:
    """Serve to the end, on a loop of its own."""
    import asyncio

    # ZMQ's sockets are watched by a selector, which is not Windows' own choice.
    factory = asyncio.SelectorEventLoop if sys.platform == "win32" else None
    served = False
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(serving)
            served = True
    except RuntimeError:
        # asyncio waits for its threads in one more, and the account may have no more: they end with the process.
        if not served:
            raise


def prepare() -> None:
    """Make this process fit to be a server."""
    import faulthandler
    import logging
    import signal

    from loommux_host.command_line.reporting import LogFormatter
    from loommux_host.processes.descriptor_limit import raise_to_hard
    from loommux_host.processes.launcher import become_subreaper

    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter(LOG_FORMAT))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    faulthandler.enable()
    if sys.platform != "win32":
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    become_subreaper()
    raise_to_hard()


def say(text: str) -> None:
    """One line for people, on stderr."""
    from loommux_host.command_line import reporting

    reporting.say(text)


def cannot_start(why: str) -> int:
    """A start that cannot work: one line, and the exit code."""
    say(why)
    return EXIT_CANNOT_START


if __name__ == "__main__":
    sys.exit(main())
