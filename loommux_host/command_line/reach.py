"""The servers of this user and their kernels, for commands: found, named, asked.

Owns how a kernel is named on a command line, across all servers, and the words for what
cannot be found. `processes.running_servers` knows the servers, the
kernel's `shared.api_client` asks them.
"""

from __future__ import annotations

import getpass
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from loommux_host.command_line.reporting import Refused
from loommux_host.facts.phrases import one_line
from loommux_host.processes.running_servers import DirectoryRefused, Server, living_servers
from loommux_host.succession import takeover
from loommux_host.succession.takeover import Waiting
from loommux_kernel.shared.api_client import Daemon, DaemonError
from loommux_kernel.shared.handles import KernelHandle

Snapshot = dict[str, Any]
#: What a server that does not answer may cost, in seconds.
ANSWER_SECONDS = 5.0
#: The shortest part of an id that may stand for it.
SHORTEST_ID = 4


class _Daemon(Daemon):
    """One of the user's servers, which people know by its process, not by the socket it is asked on."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.control_url, server.secret, client=f"{_user()} at the command line")
        self._pid = server.pid

    def ask_raw(self, *asked: Any, **options: Any) -> bytes:
        try:
            return super().ask_raw(*asked, **options)
        except DaemonError as error:
            if error.status != "unreachable":
                raise
            text = f"the server with the process id {self._pid} has ended or cannot be reached; see loommux kernels"
            raise DaemonError("unreachable", text) from error


@dataclass(frozen=True)
class Place:
    """A server and what it said of its kernels; `trouble` when it said nothing."""

    server: Server
    daemon: Daemon
    kernels: tuple[Snapshot, ...] = ()
    trouble: str | None = None


@dataclass(frozen=True)
class Found:
    """One kernel, as it was when it was looked for."""

    place: Place
    snapshot: Snapshot

    @property
    def handle(self) -> KernelHandle:
        s = self.snapshot
        return KernelHandle(self.place.daemon, s["resource_id"], s["name"], s.get("home"))

    @property
    def shown(self) -> str:
        return (
            f"{one_line(self.snapshot['path'])} (id {self.snapshot['resource_id'][:8]}, server {self.place.server.pid})"
        )


def server_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--server", type=int, metavar="PID", help="only the server with that process id")


def kernel_argument(parser: ArgumentParser) -> None:
    """The kernel to act on, completed by the shell from those that live."""
    kernel = parser.add_argument("kernel", metavar="KERNEL", help="a name, a path like /main/child, or an id")
    kernel.completer = complete_kernels  # pyright: ignore[reportAttributeAccessIssue]
    server_argument(parser)


def complete_kernels(**_: object) -> list[str]:
    """For the shell: it must be told something quickly, or nothing."""
    with suppress(Refused):
        return [_name(kernel) for place in places(None) for kernel in place.kernels]
    return []


def places(pid: int | None) -> list[Place]:
    """Every server of this user that lives, the oldest first, or only one. Raises `Refused`."""
    try:
        servers = living_servers()
    except DirectoryRefused as error:
        raise Refused("directory_refused", str(error)) from None
    if pid is not None:
        servers = [server for server in servers if server.pid == pid]
        if not servers:
            raise Refused("server_not_found", f"no server of yours has the process id {pid}; see loommux kernels")
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(_asked, servers))


def waiting() -> list[Waiting]:
    """Kernels that a dead server has left to the next one in its place."""
    with suppress(DirectoryRefused):
        return takeover.waiting()
    return []


def wait_for(left: Waiting) -> str:
    """What waits, and for what."""
    names, one = ", ".join(map(one_line, left.kernels)), len(left.kernels) == 1
    where = f"{left.server.endpoint} in {one_line(left.server.workspace, 1000)}"
    return (
        f"{'kernel' if one else 'kernels'} {names} of the server {left.server.pid}, which is gone,"
        f" {'waits' if one else 'wait'} for the next one at {where}"
    )


def find(options: Namespace, name: str | None = None) -> Found:
    """The kernel that a command line names, or the only main kernel there is. Raises `Refused`."""
    wanted = options.kernel if name is None else name
    everything = [Found(place, kernel) for place in places(options.server) for kernel in place.kernels]
    found = (
        [one for one in everything if one.snapshot["home"] is None] if wanted is None else _named(everything, wanted)
    )
    if len(found) == 1:
        return found[0]
    if found:
        several = "there are several main kernels; say which with --kernel"
        what = several if wanted is None else f"{wanted!r} names several kernels; say which by its id"
        raise Refused("kernel_ambiguous", f"{what}: {_listed(found)}")
    known = f"there are {_listed(everything)}" if everything else "no server of yours has one"
    text = "there is no kernel" if wanted is None else f"no kernel is called {wanted!r}"
    raise Refused("kernel_not_found", "; ".join([text, known, *map(wait_for, waiting())]))


def _named(everything: Sequence[Found], wanted: str) -> list[Found]:
    """By path or name, else by an id or how it begins; of one name main kernels come before children."""
    named = [one for one in everything if wanted in (one.snapshot["name"], *_paths(one.snapshot["path"]))]
    if mains := [one for one in named if one.snapshot["home"] is None]:
        return mains
    if named or len(wanted) < SHORTEST_ID:
        return named
    return [one for one in everything if one.snapshot["resource_id"].startswith(wanted)]


def _paths(path: str) -> tuple[str, str]:
    return path, path.removeprefix("/")


def _asked(server: Server) -> Place:
    daemon = _Daemon(server)
    try:
        kernels = daemon.ask("GET", "/api/resources", timeout=ANSWER_SECONDS)["resources"]
    except DaemonError as error:
        return Place(server, daemon, trouble=str(error))
    return Place(server, daemon, tuple(kernels))


def _user() -> str:
    with suppress(Exception):  # no such account: KeyError here, OSError there
        return getpass.getuser()
    return "somebody"


def _name(kernel: Snapshot) -> str:
    return kernel["path"] if kernel["home"] else kernel["name"]


def _listed(found: Sequence[Found]) -> str:
    return ", ".join(one.shown for one in found[:10]) + (f" and {len(found) - 10} more" if len(found) > 10 else "")
