"""The MCP hosts that `commands.install` knows: where each keeps its configuration, and what an entry looks like there.

Owns nothing but these facts; reads no file but to see whether a host is there. Checked against
the hosts' documentation of November 2026.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Format = Literal["jsonc", "toml"]
Scope = Literal["user", "project"]
Entry = dict[str, Any]


@dataclass(frozen=True)
class Host:
    """One MCP host. `program` and `traces` tell whether it is installed here."""

    title: str
    format: Format
    #: The table of servers in its file.
    container: str
    files: Mapping[Scope, Callable[[], Path]]
    #: Command and arguments into an entry that the host starts.
    local: Callable[[list[str]], Entry]
    #: URL and headers into an entry that the host connects to; None where its file cannot say that.
    remote: Callable[[str, Mapping[str, str]], Entry] | None
    program: str | None
    traces: Callable[[], list[Path]]
    #: What a person does next.
    then: str

    def present(self) -> bool:
        found = self.program is not None and shutil.which(self.program) is not None
        return found or any(path.exists() for path in self.traces())


def _home() -> Path:
    return Path.home()


def _application(name: str) -> Path:
    """Where this system keeps what desktop programs are told."""
    if sys.platform == "darwin":
        return _home() / "Library" / "Application Support" / name
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or _home() / "AppData" / "Roaming") / name
    return Path(os.environ.get("XDG_CONFIG_HOME") or _home() / ".config") / name


def _claude_settings() -> Path:
    own = os.environ.get("CLAUDE_CONFIG_DIR")
    return (Path(own) if own else _home()) / ".claude.json"


def _codex_home() -> Path:
    own = os.environ.get("CODEX_HOME")
    return Path(own) if own else _home() / ".codex"


def _here(*parts: str) -> Callable[[], Path]:
    return lambda: Path.cwd().joinpath(*parts)


def _plain(command: list[str]) -> Entry:
    return {"command": command[0], "args": command[1:]}


def _typed(command: list[str]) -> Entry:
    return {"type": "stdio", **_plain(command)}


def _in_folder(command: list[str]) -> Entry:
    """For editors, which start servers anywhere unless told."""
    return {"type": "stdio", **_plain(command), "cwd": "${workspaceFolder}"}


def _by_shell(command: list[str]) -> Entry:
    """For a host that starts servers at the root of the file system: kernels work where this command runs."""
    where = str(Path.cwd())
    if sys.platform == "win32":
        return {"command": "cmd", "args": ["/d", "/c", "cd", "/d", where, "&&", *command]}
    return {"command": "/bin/sh", "args": ["-c", 'cd "$0" && exec "$@"', where, *command]}


def _http(url: str, headers: Mapping[str, str]) -> Entry:
    return {"type": "http", "url": url, "headers": dict(headers)}


def _bare_http(url: str, headers: Mapping[str, str]) -> Entry:
    return {"url": url, "headers": dict(headers)}


def _codex_http(url: str, headers: Mapping[str, str]) -> Entry:
    return {"url": url, "http_headers": dict(headers)}


HOSTS: Mapping[str, Host] = {
    "claude-code": Host(
        title="Claude Code",
        format="jsonc",
        container="mcpServers",
        files={"user": _claude_settings, "project": _here(".mcp.json")},
        local=_typed,
        remote=_http,
        program="claude",
        traces=lambda: [_claude_settings()],
        then="start Claude Code in your project anew; /mcp lists the server",
    ),
    "codex": Host(
        title="Codex",
        format="toml",
        container="mcp_servers",
        files={"user": lambda: _codex_home() / "config.toml", "project": _here(".codex", "config.toml")},
        local=_plain,
        remote=_codex_http,
        program="codex",
        traces=lambda: [_codex_home()],
        then="start codex anew; /mcp lists the server",
    ),
    "cursor": Host(
        title="Cursor",
        format="jsonc",
        container="mcpServers",
        files={"user": lambda: _home() / ".cursor" / "mcp.json", "project": _here(".cursor", "mcp.json")},
        local=_in_folder,
        remote=_bare_http,
        program="cursor",
        traces=lambda: [_home() / ".cursor"],
        then="restart Cursor and switch the server on in its settings, under MCP",
    ),
    "vscode": Host(
        title="VS Code",
        format="jsonc",
        container="servers",
        files={"user": lambda: _application("Code") / "User" / "mcp.json", "project": _here(".vscode", "mcp.json")},
        local=_in_folder,
        remote=_http,
        program="code",
        traces=lambda: [_application("Code")],
        then="run the command MCP: List Servers in VS Code and start it there",
    ),
    "claude-desktop": Host(
        title="Claude Desktop",
        format="jsonc",
        container="mcpServers",
        files={"user": lambda: _application("Claude") / "claude_desktop_config.json"},
        local=_by_shell,
        remote=None,
        program=None,
        traces=lambda: [_application("Claude")],
        then="quit Claude Desktop and start it again",
    ),
}
