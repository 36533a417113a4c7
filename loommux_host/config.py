"""Command line and configuration directory into one frozen `Config`.

Every option is normalised here, once, before anything starts; nothing after this reads
arguments, the environment or ``config.py``. What cannot work ends as `ConfigError`
(contract 2), which the command line prints as one line with exit code 2. `settings`
knows the settings; `cli` calls this; everybody reads the `Config`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from loommux_host.command_line import catalogue
from loommux_host.settings import ConfigDirectory, ConfigError, ResolveWorkspace, Settings, described, read_directory
from loommux_host.version import VERSION

__all__ = ["CONFIG_DIRECTORY", "Config", "ConfigError", "Settings", "load", "parse", "parser"]

CONFIG_DIRECTORY = ".loommux"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8801
DEFAULT_PATH = "/mcp"
#: Longest path of a unix socket, without the closing zero.
SOCKET_PATH_BYTES = 107

WorkspaceResolution = Literal["launch_cwd", "explicit_config"]


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """All that a server is told, settings included. Paths are absolute."""

    server: bool = False
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    path: str = DEFAULT_PATH
    uds: Path | None = None
    #: Results carry `structuredContent` too.
    structured: bool = False
    protocol: Literal["both", "handshake"] = "both"
    auth: bool = True
    #: Start kernels by spawning an interpreter for each, never by forking a warm one.
    spawn: bool = False
    #: The directory the server was started in.
    launch_cwd: Path = field(default_factory=Path.cwd)
    #: The kernels' working directory.
    workspace: Path = field(default_factory=Path.cwd)
    workspace_resolution: WorkspaceResolution = "launch_cwd"
    config_dir: Path | None = None
    startup_dir: Path | None = None


def parser() -> argparse.ArgumentParser:
    """The flags of the server, as contract 2 lists them."""
    made = argparse.ArgumentParser(
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
    made.add_argument("--spawn", action="store_true", help="start every kernel in a new interpreter, never by fork")
    made.add_argument(
        "--print-completion", choices=catalogue.SHELLS, metavar="SHELL", action=_PrintCompletion,
        help=f"print what {', '.join(catalogue.SHELLS)} evaluates to complete loommux's command lines",
    )  # fmt: skip
    return made


class _PrintCompletion(argparse.Action):
    """Like ``--version``: print and end."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: object, **named: object) -> None:
        _, shell, *_ = rest
        sys.stdout.write(catalogue.completion_code(str(shell)))
        parser.exit()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line, taken by itself; bad flags end the process as argparse does, with exit code 2."""
    options = parser()
    parsed = options.parse_args(arguments)
    _check_flags(options, parsed)
    return parsed


def load(parsed: argparse.Namespace, launch_cwd: Path | None = None) -> Config:
    """The configuration of a server with that command line, started in `launch_cwd` (default: here).

    Raises `ConfigError`. Runs ``config.py``: in stdio mode the standard streams must be safe by now.
    """
    start = _start_directory() if launch_cwd is None else launch_cwd
    directory = _config_directory(parsed.config, start)
    workspace, resolution = _workspace(directory.resolve_workspace if directory else None, start)
    return Config(
        **(directory.settings if directory else {}),
        server=parsed.server,
        host=parsed.host or DEFAULT_HOST,
        port=DEFAULT_PORT if parsed.port is None else parsed.port,
        path=parsed.path or DEFAULT_PATH,
        uds=start / Path(parsed.uds).expanduser() if parsed.uds else None,
        structured=parsed.result_mode == "structured",
        protocol=parsed.protocol,
        auth=not parsed.no_auth,
        spawn=parsed.spawn,
        launch_cwd=start,
        workspace=workspace,
        workspace_resolution=resolution,
        config_dir=directory.path if directory else None,
        startup_dir=directory.startup if directory else None,
    )


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
    if parsed.uds is not None and len(os.fsencode(Path(parsed.uds).absolute())) > SOCKET_PATH_BYTES:
        options.error(f"--uds: a socket's path has at most {SOCKET_PATH_BYTES} bytes")
    if parsed.port is not None and not 0 <= parsed.port <= 65535:
        options.error(f"--port is {parsed.port}; allowed: 0 to 65535")
    path = DEFAULT_PATH if parsed.path is None else parsed.path
    if not path.startswith("/") or path.rstrip("/") in ("", "/api") or path.startswith("/api/"):
        options.error(f"--path is {path!r}; allowed: a path that starts with / and is not /, /api or below /api")


def _start_directory() -> Path:
    try:
        return Path.cwd()
    except OSError:
        raise ConfigError("workspace_not_found", "the directory that loommux was started in is gone") from None


def _config_directory(given: str | None, start: Path) -> ConfigDirectory | None:
    if given is None:
        found = next((d for d in (start, *start.parents) if (d / CONFIG_DIRECTORY).is_dir()), None)
        return None if found is None else read_directory(found / CONFIG_DIRECTORY)
    path = (start / Path(given).expanduser()).resolve()
    if not path.exists():
        raise ConfigError("config_not_found", f"--config {path} does not exist")
    if not path.is_dir():
        raise ConfigError("config_not_directory", f"--config {path} is not a directory")
    return read_directory(path)


def _workspace(resolve: ResolveWorkspace | None, start: Path) -> tuple[Path, WorkspaceResolution]:
    """The kernels' working directory: what ``resolve_workspace`` returns, else `start`."""
    if resolve is None:
        return start, "launch_cwd"
    try:
        answer = resolve(start)
    except (Exception, SystemExit) as error:
        message = f"resolve_workspace({str(start)!r}) failed: {described(error)}"
        raise ConfigError("workspace_config_load_failed", message) from error
    if not isinstance(answer, str | Path) or not str(answer):
        message = f"resolve_workspace returned {answer!r}; allowed: a Path or a string"
        raise ConfigError("workspace_config_invalid_return", message)
    path = (start / Path(answer).expanduser()).resolve()
    if not path.exists():
        raise ConfigError("workspace_not_found", f"resolve_workspace returned {path}, which does not exist")
    if not path.is_dir():
        raise ConfigError("workspace_not_directory", f"resolve_workspace returned {path}, which is not a directory")
    return path, "explicit_config"
