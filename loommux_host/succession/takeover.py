"""Finding the kernels that a dead server of this user has left for us, and becoming their owner.

Owns whose they may be: a server's that was killed, or is only stopped (its process is then
ended: nothing else frees its endpoint), on the same workspace and endpoint, with the same
interpreter and a version that writes the same notes. Of other servers it touches nothing.
What is found and cannot be taken over ends, and the start says which and why. `server.adoption`
makes kernels of the rest. Called by `server.http_server`, once it listens: who has the endpoint is the
only one to get here; and by commands, which only look.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loommux_host.config import Config
from loommux_host.facts.phrases import one_line
from loommux_host.interpreters.choice import choose
from loommux_host.keeper.client import KeeperClient, KeeperGone, KeeperRefused, Kept
from loommux_host.keeper.supervisor import obstacle
from loommux_host.keeper.wire import SOCKET_NAME
from loommux_host.processes.running_servers import Server, was_there
from loommux_host.processes.running_servers import read as who_wrote
from loommux_host.processes.runtime_files import (
    DirectoryRefused,
    ServerDirectory,
    check_private,
    server_directories,
    taken_over,
)
from loommux_host.succession.manifest import VERSIONS, Identity
from loommux_host.succession.storage import IDENTITY, KERNEL, Damaged, read

Say = Callable[[str], None]

#: A server that was just killed may be a moment away from being gone for its keeper.
DYING_SECONDS = 3.0
LOOK_SECONDS = 0.05
#: How long what cannot be taken over may take to end.
END_SECONDS = 5.0


@dataclass(frozen=True)
class Inheritance:
    """What a dead server has left: its directory and keeper are ours now."""

    directory: ServerDirectory
    client: KeeperClient
    identity: Identity
    kept: dict[str, Kept]


async def inherit(config: Config, endpoint: str, say: Say) -> Inheritance | None:
    """Become the owner of what a dead server has left for us; None without such a server."""
    for path, identity in _left(config, endpoint, say):
        found = await _own(path, identity, config.adopt_grace_seconds, say)
        if found is None:
            continue
        reason = _obstacle(config, identity)
        if reason is None:
            return found
        for name in _names(path):
            say(f"kernel {name} is not taken over, and ends: {reason}")
        await _end(found)
    return None


def replace_stopped(config: Config, endpoint: str) -> int | None:
    """End the process of a server that has our endpoint and is stopped, if we can succeed it; returns its pid."""
    for _, identity in _left(config, endpoint, lambda line: None):
        if _obstacle(config, identity) is None and _end_if_stopped(identity):
            return identity.pid
    return None


@dataclass(frozen=True)
class Waiting:
    """Kernels of a server that is gone, by name: the next one in its place takes them over."""

    server: Server
    kernels: list[str]


def waiting() -> list[Waiting]:
    """What this user's dead servers have left and a keeper still holds. Raises `DirectoryRefused`."""
    return [
        Waiting(server, names)
        for path in server_directories()
        if os.path.lexists(path / IDENTITY)
        and (server := who_wrote(path)) is not None
        and not server.alive
        and (names := _names(path))
        and _is_kept(path)
    ]


def _is_kept(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking, contextlib.suppress(OSError):
        asking.connect(str(path / SOCKET_NAME))
        return True
    return False


# -- whose ---------------------------------------------------------------------------------


def _left(config: Config, endpoint: str, say: Say) -> Iterator[tuple[Path, Identity]]:
    """The directories of servers with our workspace and endpoint, living or dead; never ours yet."""
    try:
        directories = server_directories()
    except DirectoryRefused as error:
        say(f"kernels of another server are not looked for: {error}")
        return
    for path in directories:
        if not os.path.lexists(path / IDENTITY):
            continue
        try:
            check_private(path)
            identity = read(path / IDENTITY, Identity)
        except FileNotFoundError:
            continue
        except (Damaged, DirectoryRefused) as error:
            say(f"the kernels of one server are not taken over, and end by themselves: {error}")
            continue
        if (identity.workspace, identity.endpoint) == (str(config.workspace), endpoint):
            yield path, identity


def _obstacle(config: Config, identity: Identity) -> str | None:
    """Why we cannot go on with these kernels; None when we can."""
    if identity.versions != VERSIONS:
        return "the server before this was of a version that leaves other notes"
    if identity.python != (python := str(choose(config, os.environ).python)):
        return f"it runs with {identity.python}, the kernels of this server with {python}"
    if (without := obstacle(config.spawn)) is not None:
        return f"this server has no keeper: {without}"
    return None


def _names(path: Path) -> list[str]:
    """The kernels in a directory, by name as far as that can be read."""
    names = []
    for directory in sorted(path.glob("k-*")):
        try:
            note = read(directory / KERNEL, dict[str, Any])
            names.append(one_line(str(note["name"])))
        except (Damaged, FileNotFoundError, KeyError):
            names.append(directory.name)
    return names


# -- one owner at a time -----------------------------------------------------------------------


async def _own(path: Path, identity: Identity, grace: float, say: Say) -> Inheritance | None:
    deadline = time.monotonic() + DYING_SECONDS
    while True:
        try:
            client = await KeeperClient.take_over(path, grace)
            break
        except KeeperGone:
            say(f"the kernels of the server before this (pid {identity.pid}) are gone: so is their keeper")
            return None
        except KeeperRefused as error:
            if str(error) != "owned":
                say(f"the kernels of the server before this are not taken over, and end: {error}")
                _kill_keeper(path)
                return None
            if time.monotonic() > deadline:
                say(f"the kernels in {path} are not taken over: another server (pid {identity.pid}) has them")
                return None
            await asyncio.sleep(LOOK_SECONDS)
    if client.lock < 0:
        client.close()
        return None
    try:
        kept = {one.name: one for one in await client.kernels()}
    except (KeeperGone, KeeperRefused):
        say(f"the kernels of the server before this (pid {identity.pid}) are gone: so is their keeper")
        client.close()
        os.close(client.lock)
        return None
    return Inheritance(taken_over(path, client.lock), client, identity, kept)


async def _end(found: Inheritance) -> None:
    """Without their keeper, guards and inits end everything, and remove the files."""
    for kept in found.kept.values():
        kept.sock.close()
    (found.directory.path / IDENTITY).unlink(missing_ok=True)
    await found.client.end()
    found.client.close()
    deadline = time.monotonic() + END_SECONDS
    while any(found.directory.path.glob("k-*")) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_SECONDS)
    await asyncio.to_thread(found.directory.remove)


def _kill_keeper(path: Path) -> None:
    """End a keeper that does not let us own it."""
    with socket.socket(socket.AF_UNIX) as asking, contextlib.suppress(OSError):
        asking.connect(str(path / SOCKET_NAME))
        credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", credentials)
        if uid == os.getuid():
            os.kill(pid, signal.SIGKILL)


def _end_if_stopped(identity: Identity) -> bool:
    """Whether the server's process was stopped, and is no more."""
    import psutil

    try:
        pidfd = os.pidfd_open(identity.pid)
    except OSError:
        return False
    try:
        process = psutil.Process(identity.pid)
        same = was_there(process, identity.uptime, identity.boot) and process.uids().real == os.getuid()
        if not same or process.status() != psutil.STATUS_STOPPED:
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(DYING_SECONDS * 1000))
    except (psutil.Error, OSError):
        return False
    finally:
        os.close(pidfd)


__all__ = ["Inheritance", "Waiting", "inherit", "replace_stopped", "waiting"]
