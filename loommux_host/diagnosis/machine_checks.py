"""What ``loommux doctor`` looks at on this machine: interpreter, packages, directories, servers, hosts.

Each check says what it found, and where something is not as it should be, what to do. Starts no
server and changes nothing. How kernels start and what ends with them is `loommux_host.diagnosis.kernel_checks`'s.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from loommux_host.command_line.reach import wait_for, waiting
from loommux_host.command_line.reporting import Refused
from loommux_host.config import Config, ConfigError
from loommux_host.facts.phrases import plural
from loommux_host.installation.configuration_file import SettingsFile
from loommux_host.installation.mcp_hosts import HOSTS
from loommux_host.interpreters.choice import choose
from loommux_host.interpreters.overlays import NoOverlay, Overlays
from loommux_host.processes.environment import kernel_environment
from loommux_host.processes.running_servers import DirectoryRefused, Server, living_servers
from loommux_host.version import VERSION
from loommux_kernel.shared.api_client import Daemon, DaemonError

Grade = Literal["ok", "warn", "bad"]
LOOPBACK = ("127.0.0.1", "[::1]", "localhost")
#: Below that, records of a busy kernel may not find room.
ROOM_BYTES = 2 << 30
SKIPPED = "name the environment with --python or kernel_python, or see that nobody else may write it"
FIRST_PERSON = 1000
NOBODY = 65_534


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `mend` says what to do where it is not `ok`."""

    subject: str
    text: str
    grade: Grade = "ok"
    mend: str | None = None


def all_of(config: Config | ConfigError) -> Iterator[Check]:
    """Everything, in the order in which one thing needs the other; of a refused configuration what needs none."""
    yield Check("version", f"loommux {VERSION}")
    yield interpreter()
    if isinstance(config, ConfigError):
        yield packages()
        mend = "change what it names; no server starts before that, and what depends on it was not looked at"
        yield Check("configuration", f"{config.status}: {config.message}", "bad", mend)
    else:
        yield kernel_interpreter(config)
        yield packages()
        where = str(config.config_dir) if config.config_dir else "none; every setting has its default"
        yield Check("configuration", where)
        yield workspace(config)
    yield room()
    yield from servers()
    yield from hosts()


def interpreter() -> Check:
    kind = "" if sys.prefix == sys.base_prefix else ", in a virtual environment"
    return Check("interpreter", f"{sys.executable}, Python {platform.python_version()} on {platform.system()}{kind}")


def kernel_interpreter(config: Config) -> Check:
    """Whether kernels have what they need, where they run with another interpreter."""
    choice = choose(config, os.environ)
    python, skipped = choice.python, "".join(f"; {one}" for one in choice.skipped)
    grade: Grade = "warn" if choice.skipped else "ok"
    if python == Path(sys.executable):
        text = f"the same ({choice.why}); cells import what is installed there{skipped}"
        return Check("kernels' interpreter", text, grade, SKIPPED if skipped else None)
    environment = kernel_environment(
        os.environ, python=python, programs=None, kernel_id="", kernel_name="", control_url=None
    )
    try:
        found, pieces = asyncio.run(Overlays(config.kernel_overlay).planned(python, environment))
    except NoOverlay as error:
        mend = 'set kernel_python to a CPython 3.11 or newer that runs, or leave it out; kernel_overlay to "download"'
        return Check("kernels' interpreter", str(error), "bad", mend)
    old = [f"{one.name} {one.instead}" for one in pieces if one.instead is not None]
    beside = f"; {plural(len(pieces), 'package')} that it lacks come from this server" if pieces else ""
    shadowed = f"; too old for a kernel, so another one stands before it: {', '.join(old)}" if old else ""
    text = f"{found.named} ({choice.why}){beside}{shadowed}{skipped}"
    return Check("kernels' interpreter", text, grade, SKIPPED if skipped else None)


def packages() -> Check:
    """Whether everything is there in a version that was tested."""
    wrong = []
    for line in requires("loommux") or ():
        needed = Requirement(line)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(needed.name)
        except PackageNotFoundError:
            wrong.append(f"{needed.name} is missing")
            continue
        if not needed.specifier.contains(found, prereleases=True):
            wrong.append(f"{needed.name} is {found}, needed: {needed.specifier}")
    if wrong:
        return Check("packages", "; ".join(wrong), "bad", f"{sys.executable} -m pip install --upgrade loommux")
    names = ("ipykernel", "ipython", "mcp")
    return Check("packages", ", ".join(f"{name} {version(name)}" for name in names) + ", and all else that is needed")


def workspace(config: Config) -> Check:
    where = config.workspace
    with suppress(OSError), tempfile.TemporaryFile(dir=where):
        how = "resolve_workspace" if config.workspace_resolution == "explicit_config" else "the start directory"
        return Check("workspace", f"{where}, by {how}")
    return Check("workspace", f"{where} cannot be written", "warn", "cells that write files there will fail")


def room() -> Check:
    """Where records, sockets and connection files go."""
    where = Path(tempfile.gettempdir())
    try:
        living_servers()
    except DirectoryRefused as error:
        return Check("runtime directory", str(error), "bad", "remove it, or set TMPDIR to a directory of your own")
    free = shutil.disk_usage(where).free
    text = f"{where}, {free / (1 << 30):.1f} GiB free"
    if free < ROOM_BYTES:
        mend = "make room, or set TMPDIR to a larger disk; cells go on without, their records would be incomplete"
        return Check("runtime directory", text, "warn", mend)
    return Check("runtime directory", text)


def servers() -> Iterator[Check]:
    """What runs now: whether it answers, is of this version, and is open to others on this machine."""
    with suppress(DirectoryRefused):
        found = living_servers()
        yield Check("servers", f"{len(found)} of yours run" if found else "none of yours runs now")
        for server in found:
            yield from _server(server)
    for left in waiting():
        mend = (
            f"start that server again, in {left.server.workspace}, with the same Python, flags and settings: loommux"
            " --server …; else they end when `adopt_grace_seconds` are over, 120 unless set"
        )
        yield Check("waiting kernels", wait_for(left), "warn", mend)


def _server(server: Server) -> Iterator[Check]:
    name = f"server {server.pid}"
    if server.version != VERSION:
        yield Check(name, f"is loommux {server.version}", "warn", "end it, or its host, and start it again")
    if server.endpoint is None or not any(f"//{host}:" in server.endpoint for host in LOOPBACK):
        return
    if (others := _other_people()) and _open(server.endpoint):
        text = f"{server.endpoint} has no token; other people with accounts on this machine: {others}"
        yield Check(name, text, "warn", "set auth_token_file in config.py, or start it with --uds PATH")


def _open(endpoint: str) -> bool:
    """Whether a server lets in whoever can reach it."""
    with suppress(DaemonError, ValueError):
        Daemon("/".join(endpoint.split("/")[:3])).kernels(timeout=3)
        return True
    return False


def _other_people() -> int:
    """How many others could log in here, as far as the system's own list says."""
    if sys.platform == "win32":
        return 0
    import os
    import pwd

    shells = ("nologin", "false", "sync")
    people = [one for one in pwd.getpwall() if FIRST_PERSON <= one.pw_uid < NOBODY and one.pw_uid != os.getuid()]
    return sum(not one.pw_shell.endswith(shells) for one in people)


def hosts() -> Iterator[Check]:
    """Which MCP hosts know loommux, and whether what they would start is there."""
    known = []
    for host in HOSTS.values():
        for scope, path in host.files.items():
            try:
                entry = SettingsFile(path(), host.format, host.container).entry("loommux")
            except Refused as error:
                yield Check(host.title, error.message, "warn", "its own program may be able to fix it")
                continue
            if not isinstance(entry, dict):
                continue
            known.append(f"{host.title} ({scope})")
            command = entry.get("command")
            if isinstance(command, str) and shutil.which(command) is None:
                mend = "loommux install --replace, from the environment that it should start"
                yield Check(host.title, f"{path()} starts {command}, which is not there", "bad", mend)
    mend = None if known else f"loommux install --client NAME, one of {', '.join(HOSTS)}"
    yield Check(
        "hosts", f"set up: {', '.join(known)}" if known else "none is set up yet", "ok" if known else "warn", mend
    )
