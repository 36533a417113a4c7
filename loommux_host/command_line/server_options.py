"""The flags of the server, as contract 2 lists them: declared, parsed, checked against each other.

Owns the words of ``loommux --help`` and of a refused flag. What the flags make of a server
is `config`'s. Called by `cli`, and by `dispatch` for completion.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from loommux_host.command_line import catalogue
from loommux_host.command_line.reporting import Parser
from loommux_host.config import CONFIG_DIRECTORY, DEFAULT_HOST, DEFAULT_PATH, DEFAULT_PORT
from loommux_host.version import VERSION

SHELLS = ("bash", "zsh", "fish")


#: Paths at which MCP may be served: what needs no escape and is no pattern; and those that have other uses.
MCP_PATH = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~+=@-]+)+/?")
OURS = re.compile(r"/(api|console|servers)(/|$)")


def parser() -> Parser:
    """The flags of the server, as contract 2 lists them."""
    made = Parser(
        prog="loommux",
        description="Persistent, inspectable IPython for AI agents, as an MCP server over stdio."
        " Not a sandbox: cells run with the full rights of this account.",
        epilog=catalogue.described(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"loommux {VERSION}")
    made.add_argument("--server", action="store_true", help="MCP over Streamable HTTP instead of stdio")
    made.add_argument("--host", help=f"with --server: address to bind (default {DEFAULT_HOST})")
    made.add_argument("--port", type=int, help=f"with --server: port, 0 for a free one (default {DEFAULT_PORT})")
    made.add_argument("--path", help=f"with --server: where MCP is served (default {DEFAULT_PATH})")
    made.add_argument("--uds", metavar="PATH", help="with --server: a unix socket instead of a port")
    made.add_argument("--no-auth", action="store_true", help="with --server: no token, even beyond loopback")
    made.add_argument(
        "--result-mode", choices=("content", "structured"), default="content",
        help="structured: results carry structuredContent too",
    )  # fmt: skip
    made.add_argument(
        "--config", metavar="DIR",
        help=f"configuration directory (default: the nearest {CONFIG_DIRECTORY}/ at or above the start directory)",
    )  # fmt: skip
    made.add_argument(
        "--protocol", choices=("both", "handshake"), default="both",
        help="handshake: refuse MCP revisions newer than 2025-11-25",
    )  # fmt: skip
    made.add_argument(
        "--python", metavar="PATH|NAME|VERSION",
        help="kernels' interpreter: a path, a name on PATH, or a version like 3.12 (default: the project's own)",
    )  # fmt: skip
    made.add_argument("--spawn", action="store_true", help="start every kernel in a new interpreter, never by fork")
    made.add_argument(
        "--print-completion", choices=SHELLS, metavar="SHELL", action=_PrintCompletion,
        help=f"print what {', '.join(SHELLS)} evaluates to complete loommux's command lines",
    )  # fmt: skip
    return made


class _PrintCompletion(argparse.Action):
    """Like ``--version``: print and end."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: object, **named: object) -> None:
        _, shell, *_ = rest
        sys.stdout.write(completion_code(str(shell)))
        parser.exit()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line, taken by itself; bad flags end the process as argparse does, with exit code 2."""
    options = parser()
    parsed = options.parse_args(arguments)
    _check_flags(options, parsed)
    return parsed


def _check_flags(options: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    """Flags that say nothing together, or nothing sensible, end the start."""
    http_only = {
        "--host": parsed.host, "--port": parsed.port, "--path": parsed.path, "--uds": parsed.uds,
        "--no-auth": parsed.no_auth or None,
    }  # fmt: skip
    given = [flag for flag, value in http_only.items() if value is not None]
    if given and not parsed.server:
        options.error(f"{', '.join(given)} needs --server")
    if parsed.uds is not None and (parsed.host is not None or parsed.port is not None):
        options.error("--uds takes the place of --host and --port")
    if parsed.uds is not None:
        from loommux_host.processes.runtime_files import SOCKET_PATH_BYTES  # not wanted for --help

        if len(os.fsencode(Path(parsed.uds).absolute())) > SOCKET_PATH_BYTES:
            options.error(f"--uds: a socket's path has at most {SOCKET_PATH_BYTES} bytes")
    if parsed.port is not None and not 0 <= parsed.port <= 65535:
        options.error(f"--port is {parsed.port}; allowed: 0 to 65535")
    for flag in ("config", "host", "uds"):
        if getattr(parsed, flag) == "":
            options.error(f"--{flag} is empty; leave it out for the default")
    path = DEFAULT_PATH if parsed.path is None else parsed.path
    if not MCP_PATH.fullmatch(path) or OURS.match(path):
        allowed = "a path like /mcp of letters, digits and -._~+=@, not below /api, /console or /servers"
        options.error(f"--path is {path!r}; allowed: {allowed}")


def completion_code(shell: str) -> str:
    """What a shell has to evaluate for completion to work."""
    from argcomplete.shell_integration import shellcode

    return shellcode(["loommux"], shell=shell)
