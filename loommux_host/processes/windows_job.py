"""A kernel's process in a Job Object, and what is known of it from outside (Windows).

The methods of jupyter_client's ``KernelProvisionerBase``, as `spawn.SpawnedByInit` has
them. The job holds every descendant and ends them all when its last handle closes, also
when this process is killed: no init is needed. The process begins suspended, so that
nothing of it runs outside the job. Called by `launcher`.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import subprocess
import sys
from typing import Any

from loommux_host.processes.spawn import Ending
from loommux_kernel.shared.protocol import now

CREATE_SUSPENDED = 0x00000004
BASIC_ACCOUNTING, EXTENDED_LIMIT = 1, 9
KILL_ON_JOB_CLOSE = 0x00002000


class BasicAccounting(ctypes.Structure):
    """JOBOBJECT_BASIC_ACCOUNTING_INFORMATION."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("user", "kernel", "period_user", "period_kernel")),
        *((name, ctypes.c_uint32) for name in ("faults", "total", "active", "terminated")),
    ]


class ExtendedLimit(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = [
        ("process_time", ctypes.c_int64), ("job_time", ctypes.c_int64), ("flags", ctypes.c_uint32),
        ("min_set", ctypes.c_size_t), ("max_set", ctypes.c_size_t), ("process_limit", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t), ("priority", ctypes.c_uint32), ("scheduling", ctypes.c_uint32),
        *((f"io_{i}", ctypes.c_uint64) for i in range(6)),
        ("process_memory", ctypes.c_size_t), ("job_memory", ctypes.c_size_t),
        ("peak_process_memory", ctypes.c_size_t), ("peak_job_memory", ctypes.c_size_t),
    ]  # fmt: skip


if sys.platform == "win32":

    class SpawnedInJob:
        """One kernel's process in a job of its own. One instance starts one process."""

        pid: int | None = None
        ending: Ending | None = None
        _process: subprocess.Popen[bytes] | None = None
        _waiter: asyncio.Task[None] | None = None

        @property
        def has_process(self) -> bool:
            return self._process is not None and self.ending is None

        async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
            """Start `cmd`; ``env``, ``cwd``, ``stdout`` and ``stderr`` as for ``Popen``, ``pass_fds`` are handles."""
            from jupyter_client.win_interrupt import create_interrupt_event

            self._api = ctypes.WinDLL("kernel32", use_last_error=True)
            self._job = self._made(self._api.CreateJobObjectW(None, None))
            limit = ExtendedLimit(flags=KILL_ON_JOB_CLOSE)
            self._made(
                self._api.SetInformationJobObject(self._job, EXTENDED_LIMIT, ctypes.byref(limit), ctypes.sizeof(limit))
            )
            self._interrupt = create_interrupt_event()
            self._process = self._spawn(cmd, **kwargs)
            self.pid = self._process.pid
            process = int(self._process._handle)  # pyright: ignore[reportAttributeAccessIssue]
            self._made(self._api.AssignProcessToJobObject(self._job, process))
            ctypes.WinDLL("ntdll").NtResumeProcess(process)
            self._waiter = asyncio.create_task(self._await_end(self._process), name=f"end of process {self.pid}")
            return getattr(self, "connection_info", None)

        def _spawn(self, cmd: list[str], **kwargs: Any) -> subprocess.Popen[bytes]:
            handles = [*kwargs.get("pass_fds", ()), self._interrupt]
            return subprocess.Popen(
                cmd,
                env=kwargs["env"] | {"JPY_INTERRUPT_EVENT": str(self._interrupt)},
                cwd=kwargs.get("cwd"),
                stdin=subprocess.DEVNULL,
                stdout=kwargs.get("stdout"),
                stderr=kwargs.get("stderr"),
                creationflags=CREATE_SUSPENDED | subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW,
                startupinfo=subprocess.STARTUPINFO(lpAttributeList={"handle_list": handles}),
            )

        def _made(self, result: int) -> int:
            if not result:
                raise ctypes.WinError(ctypes.get_last_error())
            return result

        async def _await_end(self, process: subprocess.Popen[bytes]) -> None:
            code = await asyncio.to_thread(process.wait)
            at = now()
            facts, limit = BasicAccounting(), ExtendedLimit()
            for number, into in ((BASIC_ACCOUNTING, facts), (EXTENDED_LIMIT, limit)):
                self._api.QueryInformationJobObject(self._job, number, ctypes.byref(into), ctypes.sizeof(into), None)
            self._api.TerminateJobObject(self._job, 1)
            self.ending = Ending(at, code, limit.peak_process_memory, facts.active)

        async def poll(self) -> int | None:
            return None if self.ending is None else self.ending.code

        async def wait(self) -> int | None:
            assert self._waiter is not None
            await asyncio.shield(self._waiter)
            return await self.poll()

        async def send_signal(self, signum: int) -> None:
            """SIGINT sets the kernel's interrupt event; anything else ends the process."""
            from jupyter_client.win_interrupt import send_interrupt

            if signum == signal.SIGINT:
                send_interrupt(self._interrupt)
            else:
                await self.kill()

        async def terminate(self, restart: bool = False) -> None:
            await self.kill()

        async def kill(self, restart: bool = False) -> None:
            """End the process; its end ends the job."""
            if self._process is not None and self.ending is None:
                self._process.kill()

        async def cleanup(self, restart: bool = False) -> None:
            """Close the job, which ends whatever is still in it."""
            await self.kill()
            if self._waiter is not None:
                await self.wait()
                self._api.CloseHandle(self._job)
