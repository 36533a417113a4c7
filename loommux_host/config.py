"""Command line and configuration directory into one frozen `Config`.

Every option is normalised here, once, before anything starts; nothing after this reads
arguments, the environment or ``config.py``. What cannot work ends as `ConfigError`
(contract 2), which the command line prints as one line with exit code 2. `settings`
knows the settings, `command_line.server_options` the flags; `cli` calls this; everybody reads
the `Config`.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from loommux_host.settings import (
    ConfigDirectory,
    ConfigError,
    ResolveWorkspace,
    Settings,
    described,
    read_directory,
    read_token,
    require_private,
)

__all__ = ["CONFIG_DIRECTORY", "Config", "ConfigError", "Settings", "load", "read_token", "require_private"]

CONFIG_DIRECTORY = ".loommux"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8801
DEFAULT_PATH = "/mcp"

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
    #: Who named `kernel_python`, in words; None where nobody did.
    python_named_by: str | None = None
    #: The kernels' working directory.
    workspace: Path = field(default_factory=Path.cwd)
    workspace_resolution: WorkspaceResolution = "launch_cwd"
    config_dir: Path | None = None
    startup_dir: Path | None = None


def load(parsed: argparse.Namespace, launch_cwd: Path | None = None) -> Config:
    """The configuration of a server with that command line, started in `launch_cwd` (default: here).

    Raises `ConfigError`. Runs ``config.py``: in stdio mode the standard streams must be safe by now.
    """
    start = _start_directory() if launch_cwd is None else launch_cwd
    directory = _config_directory(parsed.config, start)
    workspace, resolution = _workspace(directory.resolve_workspace if directory else None, start)
    settings = dict(directory.settings) if directory else {}
    python, named_by = _python(parsed.python, settings.pop("kernel_python", None), workspace)
    return Config(
        **settings,
        kernel_python=python,
        python_named_by=named_by,
        server=parsed.server,
        host=parsed.host or DEFAULT_HOST,
        port=DEFAULT_PORT if parsed.port is None else parsed.port,
        path=parsed.path or DEFAULT_PATH,
        uds=start / Path(parsed.uds).expanduser() if parsed.uds else None,
        structured=parsed.result_mode == "structured",
        protocol=parsed.protocol,
        auth=not parsed.no_auth,
        spawn=parsed.spawn,
        workspace=workspace,
        workspace_resolution=resolution,
        config_dir=directory.path if directory else None,
        startup_dir=directory.startup if directory else None,
    )


def _python(flag: str | None, setting: str | None, workspace: Path) -> tuple[Path | None, str | None]:
    """The interpreter that was named for kernels, and where."""
    if flag is None and setting is None:
        return None, None
    from loommux_host.interpreters.choice import NotFound, named  # most starts name none

    try:
        if flag is not None:
            return named(flag, workspace, os.environ), "--python"
        return named(setting or "", workspace, os.environ), "config.py"
    except NotFound as error:
        if flag is not None:
            raise ConfigError("python_not_found", f"--python {flag}: {error}") from None
        raise ConfigError("config_invalid_setting", f"kernel_python is {setting!r}: {error}") from None


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
