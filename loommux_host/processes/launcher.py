"""Starting a kernel's process: command, environment, files, until it serves requests.

Owns `Launcher`. What a process is made with is a provisioner (jupyter_client's interface):
`SpawnedByInit` on POSIX, a Job Object on Windows, or any other. Knows nothing of cells,
sessions or channels. Called by `kernels.process_factory` and the composition root. Imports little: the
first kernel of a server waits for it.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

from loommux_host.facts.phrases import size
from loommux_host.processes.cgroups import end_groups
from loommux_host.processes.descriptor_limit import users_soft_limit
from loommux_host.processes.environment import kernel_environment
from loommux_host.processes.kernel_process import Exit, KernelProcess, ProcessInfo, Provisioner
from loommux_host.processes.process_protocol import StartFailed
from loommux_host.processes.runtime_files import (
    ENDED_KEPT,
    DirectoryRefused,
    KernelFiles,
    ServerDirectory,
    create_server_directory,
    kernels_in,
    remove_stale_connection_files,
    stale_server_directories,
)
from loommux_host.processes.spawn import SpawnedByInit
from loommux_host.processes.stray_processes import become_subreaper, end_left_by
from loommux_kernel.shared.clock import clock
from loommux_kernel.shared.protocol import LaunchFile, now
from loommux_kernel.shared.transport import SECRET_VARIABLE

__all__ = [
    "DirectoryRefused",
    "Exit",
    "KernelFiles",
    "KernelProcess",
    "Launcher",
    "ProcessInfo",
    "ServerDirectory",
    "StartFailed",
    "become_subreaper",
    "clean_up_after_dead_servers",
    "create_server_directory",
]

ENTER = Path(__file__).parent.parent / "enter.py"
READY_SECONDS = 60.0
#: What each startup file may take besides: the kernel stops one after 60 seconds.
STARTUP_FILE_SECONDS = 70.0
#: How long a process that closed its ready line without a word may take to be seen dead.
SILENT_SECONDS = 2.0
MISSING_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([^'.]+)", re.MULTILINE)
REQUIREMENTS = {"ipykernel": "ipykernel>=7.4,<8", "IPython": "ipython>=9.18,<10", "zmq": "pyzmq>=27.3"}


#: How the command of a kernel begins, for an interpreter and an environment: with what it needs to become a kernel.
WayIn = Callable[[Path, dict[str, str]], Awaitable[list[str]]]

Made = TypeVar("Made", bound=SpawnedByInit)


class LaunchSettings(Protocol):
    """What of the configuration concerns a start (contract 9.5)."""

    @property
    def records_budget_bytes(self) -> int: ...


class Launcher:
    """Starts processes. One for a server.

    `choose` gives the interpreter of the next process, and why it is that one: ours without it.
    `secrets` are texts that no kernel's environment may contain. `control_url` is where
    kernels reach the server; `write_secret` puts a kernel's secret for it into a file, where
    one is needed, and returns the file. `command` makes the command from the path of the
    launch file; `provisioner` makes what starts one process. `way_in` gives the words before it for an
    interpreter and a kernel's environment, and raises `StartFailed`.
    """

    def __init__(
        self,
        config: LaunchSettings,
        *,
        choose: Callable[[], tuple[Path, str]] | None = None,
        control_url: str | None = None,
        write_secret: Callable[[Path, str], Path | None] = lambda path, kernel: None,
        secrets: Iterable[str] = (),
        command: Callable[[Path], list[str]] | None = None,
        provisioner: Callable[[KernelFiles, int], Provisioner] | None = None,
        way_in: WayIn | None = None,
    ) -> None:
        self._choose = choose or (lambda: (Path(sys.executable), ""))
        self._budget = config.records_budget_bytes
        self._control_url, self._write_secret = control_url, write_secret
        self._secrets = tuple(secrets)
        self._command = command
        self._way_in = way_in
        self._provisioner = provisioner or default_provisioner
        #: The last process of each kernel; its guard removes the kernel's files should we die.
        self._last: dict[KernelFiles, KernelProcess] = {}

    async def start(
        self,
        files: KernelFiles,
        name: str,
        process_number: int,
        workspace: Path,
        server_session: str,
        startup: Path | None = None,
    ) -> KernelProcess:
        """A process that serves requests and has run its startup files.

        Raises `StartFailed`: then nothing of the process is left but its directory. The
        process before it must have ended.
        """
        _see_that_it_is_there(workspace)
        try:
            directory = files.add_process(process_number)
            reading, writing = os.pipe()
        except OSError as error:
            raise StartFailed(f"no process could be made: {error}") from error
        python, why = self._choose()
        launch = LaunchFile(
            kernel_id=files.kernel_id,
            kernel_name=name,
            process=process_number,
            connection_file=str(files.connection_file),
            server_session=server_session,
            records=str(files.records(process_number)),
            descriptors=str(directory / "descriptors"),
            log=str(directory / "log"),
            workspace=str(workspace),
            python=str(python),
            python_why=why,
            startup=str(startup) if startup is not None else None,
            ready_fd=_inheritable(writing),
            records_budget_bytes=self._budget - await self._kept(files, process_number),
            control_url=self._control_url,
            clock=clock(),
            profile=str(files.profile),
            extra={"descriptor_limit": users_soft_limit()},
        )
        try:
            try:
                process = await self._spawn(files, launch, directory / "launch.json")
            finally:
                os.close(writing)
            await self._until_ready(process, reading)
        finally:
            os.close(reading)
        return process

    async def _kept(self, files: KernelFiles, process_number: int) -> int:
        """What the records of the kernel's earlier processes keep of its budget."""
        kept = range(process_number - 1, max(0, process_number - 1 - ENDED_KEPT), -1)  # what is older is being removed
        earlier = [store for n in kept if (store := files.records(n)).exists()]
        if not earlier:
            return 0
        from loommux_kernel.shared.records.kernel_budget import retain  # not needed for a first process

        return await asyncio.to_thread(retain, earlier, self._budget)

    def adopt(self, files: KernelFiles, process: KernelProcess) -> None:
        """Take charge of a process that another server has started."""
        self._last[files] = process

    async def retire(self, files: KernelFiles) -> None:
        """Remove a kernel's files, after its last process has ended."""
        process = self._last.pop(files, None)
        if process is not None:
            await process.release()
        await asyncio.to_thread(files.remove)

    async def _spawn(self, files: KernelFiles, launch: LaunchFile, path: Path) -> KernelProcess:
        provisioner = self._provisioner(files, launch.process)
        started_at = now()
        try:
            launch.write(path)
            await self._launch(provisioner, launch, path, files.directory / "bin")
        except OSError as error:
            raise StartFailed(f"no process could be made: {error}") from error
        except asyncio.CancelledError:
            await asyncio.shield(provisioner.cleanup())  # an init that is let go ends what it has begun
            raise
        process = KernelProcess(provisioner, launch, started_at)
        previous = self._last.get(files)
        self._last[files] = process
        if previous is not None:
            await previous.release()
        return process

    async def _launch(self, provisioner: Provisioner, launch: LaunchFile, path: Path, programs: Path) -> None:
        environment = kernel_environment(
            os.environ,
            python=Path(launch.python),
            programs=programs,
            kernel_id=launch.kernel_id,
            kernel_name=launch.kernel_name,
            control_url=self._control_url,
            secrets=self._secrets,
        )
        if (secret := self._write_secret(programs.parent / "secret", launch.kernel_id)) is not None:
            environment[SECRET_VARIABLE] = str(secret)
        log = os.open(launch.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            await provisioner.launch_kernel(
                await self._words(launch, path, environment),
                env=environment,
                cwd=launch.workspace,
                stdout=log,
                stderr=log,
                pass_fds=(launch.ready_fd,),
            )
        finally:
            os.close(log)

    async def _words(self, launch: LaunchFile, path: Path, environment: dict[str, str]) -> list[str]:
        """The command that starts a kernel."""
        if self._command is not None:
            return self._command(path)
        if self._way_in is None:
            return [launch.python, str(ENTER), str(path)]
        return [*await self._way_in(Path(launch.python), environment), str(path)]

    async def _until_ready(self, process: KernelProcess, reading: int) -> None:
        seconds = _seconds_to_ready(process.launch.startup)
        try:
            async with asyncio.timeout(seconds):
                line = await _ready_line(reading)
        except TimeoutError:
            ended = await process.end(grace=0)
            raise StartFailed(f"not ready after {seconds:.0f} s", ended.log_tail) from None
        except asyncio.CancelledError:
            await asyncio.shield(process.end(grace=0))
            raise
        if not line:
            raise _failure(process.launch.python, await process.end(grace=SILENT_SECONDS))


def _failure(python: str, ended: Exit) -> StartFailed:
    how = f"ended by {ended.signal}" if ended.signal else f"exited with code {ended.code}"
    missing = MISSING_MODULE.findall(ended.log_tail)
    if missing and missing[-1] in REQUIREMENTS:
        need = REQUIREMENTS[missing[-1]]
        return StartFailed(f"{python} has no {missing[-1]}; run: {python} -m pip install '{need}'", ended.log_tail)
    return StartFailed(f"the process {how} before it was ready", ended.log_tail)


def default_provisioner(files: KernelFiles, process: int) -> Provisioner:
    """What starts a process on this system."""
    if sys.platform == "win32":
        from loommux_host.processes.windows_job import SpawnedInJob

        return SpawnedInJob()
    return guarding(SpawnedByInit(), files, process)


def guarding(made: Made, files: KernelFiles, process: int) -> Made:
    """Tell a provisioner whose process it makes, so that init and guard know what to end and to remove."""
    made.kernel_directory = str(files.directory)
    made.connection_file = str(files.connection_file)
    made.hold = files.server.lock
    made.group = str(files.group(process) or "")
    limits = files.server.limits
    made.limits = limits.told(files.group_name(process))
    made.memory_limit = "" if limits.memory_bytes is None else size(limits.memory_bytes)
    return made


def _see_that_it_is_there(workspace: Path) -> None:
    if not workspace.is_dir():
        raise StartFailed(f"the workspace {workspace} is gone; make that directory again")


def _seconds_to_ready(startup: str | None) -> float:
    files = [p for p in Path(startup).iterdir() if p.suffix in (".py", ".ipy")] if startup else []
    return READY_SECONDS + STARTUP_FILE_SECONDS * len(files)


def _inheritable(fd: int) -> int:
    """What another process knows the descriptor by: its number, or on Windows its handle."""
    if sys.platform == "win32":
        import msvcrt

        handle = msvcrt.get_osfhandle(fd)
        os.set_handle_inheritable(handle, True)
        return handle
    return fd


async def _ready_line(fd: int) -> bytes:
    """What the process says when it serves requests; empty when it ends, or closes it, without a word."""
    loop = asyncio.get_running_loop()
    if sys.platform == "win32":
        return await asyncio.to_thread(os.read, fd, 4096)
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: readable.done() or readable.set_result(None))
    try:
        await readable
    finally:
        loop.remove_reader(fd)
    return os.read(fd, 4096)


def clean_up_after_dead_servers() -> None:
    """End and remove what killed servers of this user left. Blocks: call it in a thread, after the first start."""
    for directory in stale_server_directories():
        for group in directory.groups:
            end_groups(group, f"loommux-{directory.path.name}-")
        kernels = kernels_in(directory.path)
        if kernels:
            end_left_by({kernel["kernel_id"] for kernel in kernels}, SpawnedByInit.guards)
        for kernel in kernels:
            Path(kernel["connection_file"]).unlink(missing_ok=True)
        directory.remove()
    remove_stale_connection_files()
