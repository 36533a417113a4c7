"""All that the host knows of one kernel process: `wait` for its end, `end` it, what it started.

Owns one provisioner and the reading of the process's own log after its death. Knows
nothing of channels, cells or records. Made by `launcher`; used by `kernels.process_life` and `kernels.kernel`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from loommux_host.processes.crash_stacks import shown
from loommux_host.processes.spawn import Ending
from loommux_kernel.shared.protocol import LaunchFile, now

if TYPE_CHECKING:
    import psutil

LOG_TAIL_LINES = 20
#: Of a log, at most this much is read; it can hold what a cell's threads wrote to a raw descriptor.
LOG_TAIL_BYTES = 1 << 16
FATAL = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
FAULT = re.compile(r"^(?:Fatal Python error|Windows fatal exception): ", re.MULTILINE)


class Provisioner(Protocol):
    """What is used of jupyter_client's ``KernelProvisionerBase``."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any: ...
    async def wait(self) -> int | None: ...
    async def send_signal(self, signum: int) -> None: ...
    async def kill(self, restart: bool = False) -> None: ...
    async def cleanup(self, restart: bool = False) -> None: ...


@dataclass(frozen=True)
class Exit:
    """How a process ended. `signal` is a name (``SIGKILL``); `code` and `signal` are None when nobody saw it.

    `max_rss_bytes` is the most that the process or one of its children had; `ended_processes`
    counts what was ended besides it, `left` are pids and commands of another user's programs
    that we may not end. `faults` are the Python stacks at a fatal signal; `log_tail` is the end of the log.
    """

    at: float
    code: int | None
    signal: str | None
    max_rss_bytes: int | None
    ended_processes: int
    left: tuple[tuple[int, str], ...]
    faults: str | None
    log_tail: str
    #: What it was ended for, when more is known than the signal: a limit, the death of its keeper.
    reason: str | None = None


@dataclass(frozen=True)
class ProcessInfo:
    """One process that a kernel started. `session` is its session id, None where there are none."""

    pid: int
    command: str
    started_at: float
    session: int | None


class KernelProcess:
    """One process of a kernel, from its start; `pid` stays what it was after its end."""

    def __init__(self, provisioner: Provisioner, launch: LaunchFile, started_at: float) -> None:
        self.launch = launch
        self.process = launch.process
        self.started_at = started_at
        self.pid: int = getattr(provisioner, "pid", None) or 0
        self.init_pid: int | None = getattr(provisioner, "init_pid", None)
        self._provisioner = provisioner
        self._exit = asyncio.create_task(self._await_exit(), name=f"end of process {self.pid}")

    async def wait(self) -> Exit:
        """How it ended, once it has, within a second of its death. Any number may wait."""
        return await asyncio.shield(self._exit)

    async def signal(self, signum: int) -> None:
        """Send a signal to the process alone; nothing happens when it has ended."""
        await self._provisioner.send_signal(signum)

    async def end(self, *, grace: float) -> Exit:
        """Give it `grace` seconds for an exit that it was asked for, then end it and all that it started.

        Takes at most 7 seconds more, whatever the process does; ordinarily some milliseconds.
        """
        if grace > 0:
            await asyncio.wait({self._exit}, timeout=grace)
        if not self._exit.done():
            await self._provisioner.kill()
        return await self.wait()

    async def release(self) -> None:
        """Let go of what guards its files. For a process that has ended."""
        await self._provisioner.cleanup()
        if not self._exit.done():
            self._exit.cancel()
            await asyncio.wait({self._exit})

    async def descendants(self) -> list[ProcessInfo]:
        """What it has started, daemons included where they can be told."""
        if self._exit.done():
            return []
        return await asyncio.to_thread(_descendants, self.pid, self.init_pid)

    async def _await_exit(self) -> Exit:
        code = await self._provisioner.wait()
        ending: Ending = getattr(self._provisioner, "ending", None) or Ending(now(), code, None)
        name = _signal_name(ending.code)
        tail, faults = await asyncio.to_thread(read_log, Path(self.launch.log))
        return Exit(
            at=ending.at,
            code=ending.code if name is None else None,
            signal=name,
            max_rss_bytes=ending.max_rss_bytes,
            ended_processes=ending.ended,
            left=await asyncio.to_thread(_named, ending.left) if ending.left else (),
            faults=shown(faults) if faults and (name in FATAL or os.name == "nt") else None,
            log_tail=tail,
            reason=ending.reason if name is not None else None,
        )


def read_log(path: Path) -> tuple[str, str | None]:
    """The last lines of a log, and what faulthandler wrote at its end."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:  # gone, or no descriptor is left: the death is told all the same
        return "", None
    faults = [match.start() for match in FAULT.finditer(text)]
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:]), text[faults[-1] :].rstrip() if faults else None


def _signal_name(code: int | None) -> str | None:
    if code is None or code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"  # a real-time one


def _named(pids: tuple[int, ...]) -> tuple[tuple[int, str], ...]:
    """Those that still live, with their commands."""
    import psutil

    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            found.append((pid, _command(process)))
    return tuple(found)


def _descendants(pid: int, init_pid: int | None) -> list[ProcessInfo]:
    import psutil  # an import of 40 ms that a start does not wait for

    found = []
    try:
        below = psutil.Process(init_pid or pid).children(recursive=True)
    except psutil.Error:
        return []
    for process in below:
        try:
            if process.pid != pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(ProcessInfo(process.pid, _command(process), process.create_time(), _session(process.pid)))
        except psutil.Error:
            continue  # ended meanwhile
    return found


def _command(process: psutil.Process) -> str:
    return " ".join(process.cmdline()) or process.name()


def _session(pid: int) -> int | None:
    if not hasattr(os, "getsid"):
        return None
    try:
        return os.getsid(pid)
    except OSError:
        return None
