"""Which servers of this user live, and where each is reached (contract 10).

Owns the file in which a server says who it is, ``server.json`` in its private directory.
Reads nothing else and connects to nobody: looking wakes no server. Servers call `publish`;
the user's commands call `living_servers`.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from loommux_host.processes.runtime_files import DirectoryRefused, server_directories

if TYPE_CHECKING:
    import psutil

FILE = "server.json"
#: How much later than its own start a process may seem to have begun: the system tells it by a coarse clock.
CLOCK_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Server:
    """One living server. Paths are absolute; `started_at` is in seconds since the epoch, `uptime` the system's then.

    `boot` says which run of the system that was; see `was_there`.

    `transport` is ``stdio`` or ``http``, `endpoint` what an HTTP server printed when it began
    to listen. `control_url` is its private socket, `secret_file` what has to be shown there, if anything.
    """

    pid: int
    version: str
    started_at: float
    uptime: float
    boot: str = ""
    workspace: str
    transport: str
    control_url: str
    python: str
    endpoint: str | None = None
    config_dir: str | None = None
    secret_file: str | None = None

    @property
    def secret(self) -> str | None:
        """What its private endpoint wants to see, where the rights of a file are not enough."""
        with suppress(OSError):
            return Path(self.secret_file).read_text().strip() if self.secret_file else None
        return None

    @property
    def alive(self) -> bool:
        """Whether the process that wrote this is still there, not another with its number."""
        import psutil

        try:
            process = psutil.Process(self.pid)
            return was_there(process, self.uptime, self.boot) and process.status() != "zombie"
        except (psutil.ZombieProcess, psutil.AccessDenied):  # the first is a kind of the next
            return False
        except psutil.NoSuchProcess:
            return is_hidden(self.pid)


def boot_id() -> str:
    """Which run of the system this is; empty where it does not say."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def was_there(process: psutil.Process, uptime: float, boot: str) -> bool:
    """Whether it had begun by then, in seconds since the system did: no clock that is set makes it another.

    In another run of the system (`boot`) it is another. Raises `psutil.Error`.
    """
    import psutil

    return boot == boot_id() and process.create_time() - psutil.boot_time() <= uptime + CLOCK_SECONDS


def is_hidden(pid: int) -> bool:
    """Whether there is such a process of this account, though it is not shown.

    Where /proc is mounted with hidepid, it has no processes that cannot be looked into, and no server can be.
    """
    if sys.platform == "win32":
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def publish(directory: Path, server: Server) -> None:
    """Say in the server's directory who it is; replaces what was said before."""
    beside = directory / f"{FILE}.new"
    beside.touch(mode=0o600)
    beside.write_text(json.dumps(asdict(server)))
    beside.replace(directory / FILE)


def living_servers(temporary: Path | None = None) -> list[Server]:
    """This user's servers that live, the oldest first. Raises `DirectoryRefused` when they cannot be trusted."""
    found = [server for path in server_directories(temporary) if (server := read(path)) is not None and server.alive]
    return sorted(found, key=lambda server: server.started_at)


def read(directory: Path) -> Server | None:
    """Who the server of a directory says it is; None when it has not said so, or not in a way that we know."""
    with suppress(OSError, ValueError, TypeError):
        said = json.loads((directory / FILE).read_text())
        known = {field.name for field in fields(Server)}
        return Server(**{name: value for name, value in said.items() if name in known})
    return None


__all__ = ["DirectoryRefused", "Server", "boot_id", "living_servers", "publish", "read", "was_there"]
