"""A kernel's process, started by spawning an init (POSIX), and what is known of it from outside.

`SpawnedByInit` has the methods of jupyter_client's ``KernelProvisionerBase`` and their
meaning, so that any provisioner can stand in its place; `jupyter_provisioner` makes it a real one.
It is not one itself because importing jupyter_client takes a quarter of a second, which
the first kernel would wait for. Knows nothing of cells, channels or records. Called by
`launcher`; what the init does stands in `init.roles`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from loommux_host.processes.cgroups import end_groups
from loommux_host.processes.stray_processes import OwnChildren, end_orphans
from loommux_kernel.shared.clock import uptime
from loommux_kernel.shared.protocol import now

log = logging.getLogger(__name__)

INIT = Path(__file__).parent.parent / "init" / "start.py"
#: Seconds between attempts to look for what a kernel left, while the system has no descriptor for that.
ORPHAN_PAUSES = (0.1, 0.5, 2.0)
#: A death is told after this long even when ending what the kernel started takes longer.
TELL_SECONDS = 0.8
#: An init that was asked to end everything and has not is killed, and its guard does it;
#: a guard that has not either is killed, and this process does it.
INIT_SECONDS, GUARD_SECONDS = 2.5, 2.5
#: How long a guard that was let go may take to exit.
LEAVE_SECONDS = 5.0
OOM_SCORE_RAISE = 300


@dataclass(frozen=True)
class Ending:
    """How a process ended. `code` is negative for a signal, None when nobody saw it.

    `ended` counts what was ended besides; `left` are pids that we were not allowed to end.
    `reason` says what a signal was for, as far as that is known.
    """

    at: float
    code: int | None
    max_rss_bytes: int | None
    ended: int = 0
    left: tuple[int, ...] = ()
    reason: str | None = None


class Guard(Protocol):
    """A guard's process, as far as it is looked after."""

    @property
    def pid(self) -> int: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class SpawnedByInit:
    """One kernel's process below an init of its own; after `cleanup` it may launch another."""

    #: Every init and guard of this host, so that a sweep for orphans spares them.
    guards: ClassVar[OwnChildren] = OwnChildren()

    #: What the init removes when this process dies, and a descriptor it holds open for as long as it lives.
    kernel_directory: str = ""
    connection_file: str = ""
    hold: int = -1
    #: A control group to make for it, where that may be done; the limits it gets, as `resource_limits` tells them;
    #: and what is said of one that was killed for its memory.
    group: str = ""
    limits: str = ""
    memory_limit: str = ""

    pid: int | None = None
    init_pid: int | None = None
    ending: Ending | None = None
    #: Set by a subclass that knows; the host's kernels have theirs in the connection file.
    connection_info: Any
    _guard: Guard | None = None
    _writer: asyncio.StreamWriter | None = None
    _listener: asyncio.Task[None] | None = None
    _enforcer: asyncio.Task[None] | None = None
    _telling: asyncio.TimerHandle | None = None
    _exit: tuple[int, int, float] | None = None
    _ended = False
    #: ``limit`` or ``system`` when the process was ended for lack of memory.
    _shortage = ""

    @property
    def has_process(self) -> bool:
        return self._guard is not None and self.ending is None

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        """Start `cmd`; ``env``, ``cwd``, ``stdout``, ``stderr`` and ``pass_fds`` as for ``Popen``.

        Returns when the process exists. Its standard input is ``/dev/null``.
        """
        self._prepare(kwargs["env"].get("LOOMMUX_KERNEL_ID", "-"))
        self._guard, ours = await self._begin(cmd, self._facts(**kwargs), **kwargs)
        await self._attach(ours)
        await asyncio.shield(self._started)  # whoever gives up waiting does not take it from the listener
        return getattr(self, "connection_info", None)

    def _prepare(self, mark: str) -> None:
        self._mark, self._since = mark, uptime()
        self.pid = self.init_pid = self.ending = self._exit = self._enforcer = None
        self._ended, self._shortage = False, ""
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settled = asyncio.Event()

    async def _attach(self, ours: socket.socket) -> None:
        """Listen to the init and the guard that have the other end."""
        assert self._guard is not None
        self.guards.add(self._guard.pid)
        try:
            reader, self._writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()  # which ends what was begun
            raise
        self._listener = asyncio.create_task(self._listen(reader), name=f"init of {self._mark}")

    def _facts(self, **kwargs: Any) -> dict[str, str]:
        """What the guard is told of its job; `init.roles.Job` takes it in."""
        return {
            "owner": str(os.getpid()),
            "id": self._mark,
            "cwd": str(kwargs.get("cwd") or Path.cwd()),
            "pass": ",".join(map(str, kwargs.get("pass_fds", ()))),
            "hold": str(self.hold) if self.hold >= 0 else "",
            "oom": str(OOM_SCORE_RAISE),
            "dir": self.kernel_directory,
            "connection": self.connection_file,
            "group": self.group,
            "limits": self.limits,
        }

    async def _begin(self, cmd: list[str], facts: dict[str, str], **kwargs: Any) -> tuple[Guard, socket.socket]:
        """Start the guard; it, and our end of the socket that it reports to."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                return self._spawn(cmd, theirs, facts, **kwargs), ours
            except BaseException:
                ours.close()
                raise

    def _spawn(
        self, cmd: list[str], theirs: socket.socket, facts: dict[str, str], **kwargs: Any
    ) -> subprocess.Popen[bytes]:
        words = [f"{name}={value}" for name, value in facts.items()]
        held = (self.hold,) if self.hold >= 0 else ()
        with self.guards.starting():
            made = subprocess.Popen(
                [sys.executable, "-I", "-S", str(INIT), *words, "--", *cmd],
                stdin=theirs.fileno(),
                stdout=kwargs.get("stdout"),
                stderr=kwargs.get("stderr"),
                env=kwargs["env"],
                pass_fds=tuple(kwargs.get("pass_fds", ())) + held,
                start_new_session=True,
            )
            self.guards.add(made.pid)
        return made

    # -- what the init says -----------------------------------------------------------

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await self._line(reader):
            name, *values = line.decode().split()
            if name == "started":
                self.pid, self.init_pid = map(int, values)
                self.guards.add(self.init_pid)
                self._started.set_result(None)
            elif name == "unlimited":
                log.warning(
                    "a limit of kernel process %s does not hold: cannot write %s", self._mark, line[10:].decode()
                )
            elif name == "shortage":
                self._shortage = values[0]
            elif name == "exit":
                age = max(0.0, time.time() - float(values[2]))  # both by the system's clock, which may have been set
                self._exit = (int(values[0]), int(values[1]), now() - age)
                loop = asyncio.get_running_loop()
                self._telling = loop.call_later(TELL_SECONDS, self._settle, 0, self._exit[1], ())
            elif name == "ended":
                self._ended = True
                count, rss, *left = map(int, values)
                self._settle(count, rss, tuple(left))
        if not self._ended:
            await self._end_without_init()

    @staticmethod
    async def _line(reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.readline()
        except ConnectionError:
            return b""

    def _settle(self, ended: int, rss: int | None, left: tuple[int, ...]) -> None:
        """The first account of the end is the one that is told."""
        if self.ending is None:
            code, _, at = self._exit or (None, 0, now())
            self.ending = Ending(at, code, rss, ended, left, self._reason())
            self._settled.set()
            if not self._started.done():
                self._started.set_result(None)
        if left:
            log.warning("not ours to end, left by kernel process %s: %s", self.pid, left)

    def _reason(self) -> str | None:
        """What the process was ended for, when that is more than a signal tells."""
        if self._shortage == "limit":
            return f"it had reached its memory limit of {self.memory_limit}"
        return "the system had no memory left" if self._shortage else None

    async def _end_orphans(self, mark: str | None) -> tuple[int, int | None]:
        """How many were ended, and the kernel's exit code if it is ours to know; the end is told in any case."""
        for pause in (*ORPHAN_PAUSES, None):
            try:
                return await asyncio.to_thread(end_orphans, mark, self.pid, self.guards, self._since)
            except OSError as error:  # without a free descriptor nobody can be looked for
                if pause is None:
                    log.error("what kernel process %s left cannot be looked for: %s", self.pid, error)
                    break
                await asyncio.sleep(pause)
        return 0, None

    async def _end_without_init(self) -> None:
        """Init and guard are gone without a word: the system has ended the kernel, we end the rest."""
        if self._guard is not None:
            await asyncio.to_thread(self._reap, self._guard)
        # When the end has been told already, the next process may carry the same mark.
        mark = self._mark if self.ending is None else None
        self._forget()
        ended, code = await self._end_orphans(mark)
        if self.group:
            await asyncio.to_thread(end_groups, Path(self.group).parent, Path(self.group).name)
        if self._exit is None and code is not None:
            self._exit = (code, 0, now())
        self._settle(ended, self._exit[1] if self._exit else None, ())

    # -- jupyter_client's interface ------------------------------------------------------

    async def poll(self) -> int | None:
        """None while the process lives, else its exit code; 1 when nobody saw it."""
        return None if self.ending is None else self._code()

    async def wait(self) -> int | None:
        """The exit code, once the process and all that it started have ended."""
        await self._settled.wait()
        return self._code()

    def _code(self) -> int:
        assert self.ending is not None
        return 1 if self.ending.code is None else self.ending.code

    async def send_signal(self, signum: int) -> None:
        """Signal the kernel's process alone; its init does it, so that no other process can be hit."""
        self._tell(f"signal {int(signum)}")

    async def terminate(self, restart: bool = False) -> None:
        """Ask the process to end with SIGTERM."""
        await self.send_signal(signal.SIGTERM)

    async def kill(self, restart: bool = False) -> None:
        """End the process and everything that it started; `wait` then takes bounded time."""
        self._tell("end")
        if self._enforcer is None and self.ending is None:
            self._enforcer = asyncio.create_task(self._enforce(), name=f"end of {self._mark}")

    async def cleanup(self, restart: bool = False) -> None:
        """Let the guard go, which holds the kernel's files until then; ends a process that lives."""
        if self._guard is None:
            return
        if self._writer is not None:
            if self.ending is None:
                await self.kill()
                await self._settled.wait()
            self._tell("leave")
        await asyncio.to_thread(self._reap, self._guard)
        self._forget()
        if self._writer is not None:
            self._writer.close()
        if self._telling is not None:
            self._telling.cancel()
        for task in (self._enforcer, self._listener):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})

    # -- in the way -------------------------------------------------------------------

    def _tell(self, line: str) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(line.encode() + b"\n")

    async def _enforce(self) -> None:
        """An init can be stopped or stuck; whatever happens, what it guards ends."""
        for seconds, pid in ((INIT_SECONDS, self.init_pid), (GUARD_SECONDS, self._guard.pid if self._guard else None)):
            try:
                async with asyncio.timeout(seconds):
                    await self._settled.wait()
                    return
            except TimeoutError:
                log.warning("init process %s of kernel process %s does not end it; killed", pid, self.pid)
                if pid is not None:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def _forget(self) -> None:
        self.guards.discard(self._guard.pid if self._guard else None, self.init_pid)

    def _reap(self, guard: Guard) -> None:
        """Take note of the guard's end, and of the init's should it have become our child."""
        try:
            guard.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()
        if self.init_pid is not None:
            with suppress(ChildProcessError):
                if os.waitpid(self.init_pid, os.WNOHANG) == (0, 0):
                    os.kill(self.init_pid, signal.SIGKILL)
                    os.waitpid(self.init_pid, 0)
