"""Write loommux into the configuration of an MCP host, and leave everything else there as it is.

Without --client every host that is found on this machine is set up. With --http the host is
told of a server that runs by itself, and of the kernel to work in there; without it the host
starts a server of its own.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from loommux_host.command_line.remote_server import mcp_url, token_file
from loommux_host.command_line.reporting import DONE, Refused, json_argument, say, show, show_json
from loommux_host.installation.configuration_file import SettingsFile
from loommux_host.installation.mcp_hosts import HOSTS, Entry, Host, Scope

SCOPES: tuple[Scope, ...] = ("user", "project")
DEFAULT_NAME = "loommux"
RESOURCE_HEADER = "X-Loommux-Resource"


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--client", choices=HOSTS, action="append", help="the host; may be given several times")
    parser.add_argument("--scope", choices=SCOPES, help="all your projects (user, the default), or this directory's")
    parser.add_argument("--http", metavar="URL", help="connect to the server there instead of starting one")
    parser.add_argument(
        "--resource", metavar="NAME",
        help="with --http: the kernel that all who name it share (default: this directory's name)",
    )  # fmt: skip
    parser.add_argument(
        "--token-file", metavar="FILE", help="with --http: holds the server's token; no token is written anywhere"
    )
    parser.add_argument("--name", default=DEFAULT_NAME, help=f"the entry's name (default {DEFAULT_NAME})")
    parser.add_argument("--replace", action="store_true", help="replace an entry that differs")
    parser.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")
    json_argument(parser)
    parser.add_argument("flags", nargs="*", metavar="-- FLAG", help="flags for the server that the host starts")


@dataclass(frozen=True)
class Change:
    """What is to become of one file."""

    client: str
    host: Host
    scope: Scope
    file: SettingsFile
    entry: Entry
    #: None when the entry is there already.
    text: str | None

    @property
    def difference(self) -> str:
        return "" if self.text is None else self.file.difference(self.text)


def run(options: Namespace) -> int:
    _check(options)
    # All are read before one is written: a refusal leaves every file as it was.
    changes = [_planned(options, client) for client in _clients(options)]
    if not options.dry_run:
        for change in changes:
            if change.text is not None:
                change.file.write(change.text)
    if options.json:
        show_json({"ok": True, "dry_run": options.dry_run, "changes": [_fields(options, change) for change in changes]})
        return DONE
    for change in changes:
        _tell(options, change)
    return DONE


def _check(options: Namespace) -> None:
    if options.http is None and (options.resource is not None or options.token_file is not None):
        raise Refused("invalid_argument", "--resource and --token-file need --http")
    if options.http is not None and options.flags:
        raise Refused("invalid_argument", "with --http no server is started that flags could be for")
    if options.token_file is not None:
        token_file(options.token_file)


def _clients(options: Namespace) -> list[str]:
    if options.client:
        return list(dict.fromkeys(options.client))
    wanted: Scope = options.scope or "user"
    found = [name for name, host in HOSTS.items() if host.present() and wanted in host.files]
    if not found:
        raise Refused("host_not_found", f"no MCP host was found here; name one with --client: {', '.join(HOSTS)}")
    return found


def _planned(options: Namespace, client: str) -> Change:
    host, scope = HOSTS[client], options.scope or "user"
    if scope not in host.files:
        raise Refused("invalid_argument", f"{host.title} has no configuration by project; use --scope user")
    file = SettingsFile(host.files[scope](), host.format, host.container)
    entry = _entry(options, host)
    there = file.entry(options.name)
    if there == entry:
        return Change(client, host, scope, file, entry, None)
    change = Change(client, host, scope, file, entry, file.with_entry(options.name, entry))
    if there is not None and not options.replace and not options.dry_run:
        raise Refused(
            "entry_differs",
            f"{file.path} has another entry {options.name!r}; nothing was changed."
            f" --replace replaces it, --dry-run shows how, --name NAME adds one beside it.\n{change.difference}",
        )
    return change


def _entry(options: Namespace, host: Host) -> Entry:
    if options.http is None:
        return host.local([*_command(), *options.flags])
    url, resource = mcp_url(options.http, "--http "), options.resource or Path.cwd().name or DEFAULT_NAME
    if host.remote is not None and options.token_file is None:
        return host.remote(url, {RESOURCE_HEADER: quote(resource, safe="")})
    # A token has no place in a host's file, least of all in one that is shared.
    token = ["--token-file", str(token_file(options.token_file).absolute())] if options.token_file else []
    return host.local([*_command(), "connect", url, "--resource", resource, *token])


def _command() -> list[str]:
    """This very installation, wherever the host starts it."""
    script = Path(sys.executable).with_name("loommux.exe" if sys.platform == "win32" else "loommux")
    return [str(script)] if script.is_file() else [sys.executable, "-m", "loommux_host.cli"]


def _fields(options: Namespace, change: Change) -> dict[str, object]:
    return {
        "client": change.client, "scope": change.scope, "file": str(change.file.path), "name": options.name,
        "changed": change.text is not None, "entry": change.entry, "difference": change.difference,
    }  # fmt: skip


def _tell(options: Namespace, change: Change) -> None:
    where = f"{change.host.title}: {change.file.path}"
    if change.text is None:
        show(f"{where} has the entry {options.name!r} already; nothing was changed")
    elif options.dry_run:
        show(f"{where} would be changed:\n{change.difference}".rstrip("\n"))
    else:
        show(f"{where} now has the entry {options.name!r}")
        say(f"next: {change.host.then}")
