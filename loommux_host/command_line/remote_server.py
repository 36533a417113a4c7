"""A server over HTTP as a command line names it: the URL of its MCP, and the file with its token.

Used by `commands.connect`, which goes there, and `commands.install`, which tells hosts to.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from loommux_host.command_line.reporting import Refused
from loommux_host.config import DEFAULT_PATH, ConfigError, require_private


def mcp_url(given: str, flag: str = "") -> str:
    """The URL, at the usual path if it has none; `flag` is named when it cannot be one. Raises `Refused`."""
    parts = SplitResult("", "", "", "", "")
    try:
        parts = urlsplit(given)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets or a port that are none
        usable = False
    if not usable:
        raise Refused("invalid_argument", f"{flag}{given!r} is not possible: a URL like http://127.0.0.1:8801/mcp")
    if parts.username is not None or parts.password is not None:
        raise Refused("invalid_argument", f"{flag}{parts.scheme}://…@{parts.hostname}: every account can read a command"
                      " line; put the token into a file and name it with --token-file")  # fmt: skip
    return given if parts.path not in ("", "/") else f"{parts.scheme}://{parts.netloc}{DEFAULT_PATH}"


def token_file(given: str) -> Path:
    """The file that ``--token-file`` names. Raises `Refused`."""
    path = Path(given).expanduser()
    if not path.is_file():
        raise Refused("invalid_argument", f"--token-file {given} is not there")
    try:
        require_private(path, path.stat())
    except ConfigError as error:
        raise Refused("invalid_argument", f"--token-file {given}: {error.message}") from None
    return path
