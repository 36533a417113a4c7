"""The composition root: puts a server's parts together, runs it, ends it in order.

Owns the server's private directory and socket, the order in which things start and end,
and the signals. `cli` calls `serve_stdio`; `http_app` builds on `Host`. What is imported here late
is imported late so that the first kernel's process and the answer to the client's first
request do not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from loommux_host.api.call_activity import WatchedCalls
from loommux_host.config import Config
from loommux_host.facts.result_limits import Limits
from loommux_host.interpreters.choice import choose
from loommux_host.keeper.supervisor import KeeperSupervisor, obstacle
from loommux_host.kernels.process_factory import ProcessFactory
from loommux_host.mcp.stdio import Stdio
from loommux_host.processes import threads
from loommux_host.processes.launcher import (
    ENTER,
    KernelFiles,
    Launcher,
    clean_up_after_dead_servers,
    create_server_directory,
)
from loommux_host.processes.private_socket import SECRET_FILE, ControlSocket
from loommux_host.processes.process_protocol import StartFailed
from loommux_host.processes.resource_limits import find as find_limits
from loommux_host.processes.running_servers import Server, boot_id, publish
from loommux_host.processes.transport_keys import transport_obstacles
from loommux_host.server.private_server import App, Private
from loommux_host.version import VERSION
from loommux_kernel.shared.clock import uptime
from loommux_kernel.shared.protocol import now

if TYPE_CHECKING:
    from loommux_host.interpreters.overlays import Overlays
    from loommux_host.kernels.registry import Registry
    from loommux_host.server.directory_repair import DirectoryRepair
    from loommux_host.sessions.callers import Binder, Caller, LeaseHooks, OneKernel
    from loommux_host.succession.manifest import Identity
    from loommux_host.succession.takeover import Inheritance
    from loommux_host.usecases.service import Service

log = logging.getLogger(__name__)

#: What is imported beside the first kernel's start; a call needs them, an answer to ``initialize`` does not.
HEAVY = (
    "loommux_host.usecases.service",
    "loommux_host.rendering.message",
    "loommux_host.server.directory_repair",
)
#: What the last answers may take to reach a client that reads slowly; the service's own deadlines are shorter.
FINISH_SECONDS = 8.0
#: What the start of a kernel gets once the client has said everything, while calls wait for it.
START_SECONDS = 30.0
#: No end of a server takes longer; what is left then is ended by the inits.
CLOSE_SECONDS = 20.0
ENDING_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGBREAK")


class Stop(asyncio.Event):
    """Set when the server has to stop. `tell` hears of the signal that has asked for it, before anything ends."""

    tell: Callable[[int], None] = staticmethod(lambda signum: None)

    def by(self, signum: int) -> None:
        if not self.is_set():
            self.tell(signum)
            self.set()


class Host:
    """The parts of one server. Every method on the event loop."""

    def __init__(self, config: Config, secrets: Iterable[str] = (), inherited: Inheritance | None = None) -> None:
        """`secrets` are texts that no kernel's environment may contain; `inherited` is what a dead server has left."""
        self.config = config
        self._overlays: Overlays | None = None
        #: What was said of environments that are not used.
        self._skipped: set[str] = set()
        threads.serve(asyncio.get_running_loop())
        self.directory = create_server_directory() if inherited is None else inherited.directory
        limits = find_limits(config.kernel_memory_limit_bytes, config.kernel_cpu_limit)
        self.directory.limit(limits)
        for problem in (*limits.obstacles, *transport_obstacles(config.kernel_transport)):
            log.warning("%s", problem)
        #: Where kernels and the user's programs reach us; bound before the first kernel is told of it.
        self.control = ControlSocket(self.directory.path)
        #: Why kernels are spawned, not forked; None when they are forked by a keeper.
        self.no_keeper = obstacle(config.spawn)
        self.keeping: KeeperSupervisor | None = None
        if self.no_keeper is None:
            grace = config.adopt_grace_seconds if config.server else None
            secrets = tuple(secrets)
            self.keeping = KeeperSupervisor(
                self.directory, lambda: self.interpreter()[0], config.workspace, grace, secrets, self._way_in
            )
            if inherited is not None:
                self.keeping.take_over(inherited.client)
        self.launcher = Launcher(
            config, choose=self.interpreter, secrets=secrets,
            control_url=self.control.url, write_secret=self.control.write_secret,
            provisioner=self.keeping.provisioner if self.keeping is not None else None, way_in=self._way_in,
        )  # fmt: skip
        self._started_at, self._uptime, self._boot = now(), uptime(), boot_id()
        self.publish()
        #: Jupyter's client session: what the kernels know this server by.
        self.session = uuid.uuid4().hex if inherited is None else inherited.identity.session
        #: The kernels' files, by id.
        self.files: WeakValueDictionary[str, KernelFiles] = WeakValueDictionary()
        self._begun: dict[str, ProcessFactory] = {}
        self._service: Service | None = None
        self._private: Private | None = None
        self._cleaning: asyncio.Task[None] | None = None
        self._endpoint: str | None = None
        self._repair: DirectoryRepair | None = None
        #: What else is in the directory, for when somebody has removed it.
        self.made_again: list[Callable[[], None]] = []

    def publish(self, endpoint: str | None = None) -> None:
        """Tell the user's other programs of this server; `endpoint` is where an HTTP server listens."""
        self._endpoint = endpoint
        config, directory = self.config, self.directory.path
        secret = directory / SECRET_FILE if self.control.secret() is not None else None
        server = Server(
            pid=os.getpid(),
            version=VERSION,
            started_at=self._started_at,
            uptime=self._uptime,
            boot=self._boot,
            workspace=str(config.workspace),
            transport="http" if config.server else "stdio",
            endpoint=endpoint,
            control_url=self.control.url,
            secret_file=str(secret) if secret else None,
            python=str(self.interpreter()[0]),
            config_dir=str(config.config_dir) if config.config_dir else None,
        )
        publish(directory, server)

    def serve_private(self, make: Callable[[], Awaitable[App]]) -> None:
        """Serve the private socket from now on; `make` gives what is served, once somebody calls."""
        self._private = Private(self.control, make)

    def begin_kernel(self, name: str) -> str:
        """Begin the process of a kernel that will be opened later; returns the kernel's id."""
        id = uuid.uuid4().hex
        self._begun[id] = self._launching(id, name)
        self._begun[id].begin(name)
        return id

    async def open(self, binder: Callable[[Registry], Binder], leases: LeaseHooks | None = None) -> Service:
        """The service, once everything it needs is imported. `binder` decides where callers work."""
        for module in HEAVY:
            await asyncio.to_thread(importlib.import_module, module)
        from loommux_host.kernels.registry import Registry
        from loommux_host.sessions.callers import Sessions
        from loommux_host.sessions.child_notices import ChildNotices
        from loommux_host.token_counting.counter import COUNTING
        from loommux_host.usecases.inspection import Place
        from loommux_host.usecases.result_bodies import Bodies
        from loommux_host.usecases.service import Service

        config = self.config
        registry = Registry(
            lambda id, name: self._begun.pop(id, None) or self._launching(id, name), max_kernels=config.max_kernels
        )
        ChildNotices(registry)
        bodies = Bodies(COUNTING.within_limit, config.structured, config.omission_tail_lines)
        place = Place(str(config.workspace), config.workspace_resolution, self.interpreter)
        self._service = Service(registry, Sessions(registry, binder(registry), leases), bodies, place)
        self._cleaning = asyncio.create_task(asyncio.to_thread(clean_up_after_dead_servers), name="clean up")
        from loommux_host.server.directory_repair import DirectoryRepair

        self._repair = DirectoryRepair(self.directory, registry, [self._make_again])
        # What is there now stays: the collector need not look at it again.
        gc.freeze()
        gc.enable()
        return self._service

    def ends_by(self, signum: int) -> None:
        """That signal asks this server to stop; what ends from now on by a signal may have got the same one."""
        if self._service is not None:
            self._service.ends_by(f"the server was asked to stop by {signal.Signals(signum).name}")

    async def _make_again(self) -> None:
        """What is in the directory, besides what the kernels themselves make again."""
        if self._private is not None:
            await self._private.listen_again()
        self.publish(self._endpoint)
        for files in list(self.files.values()):
            if not files.never_begun:
                files.note_identity()
                files.write_connection_file()
        if self.keeping is not None:
            await self.keeping.listen_again()
        for step in self.made_again:
            step()

    async def close(self) -> None:
        """End every kernel with all that it started, remove every file."""
        if self._repair is not None:
            await self._repair.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                if self._service is not None:
                    await self._service.close()
                    self._end_counting()
                for launching in self._begun.values():
                    await launching.remove()
                if self._cleaning is not None:
                    await asyncio.wait({self._cleaning})
                if self._private is not None:
                    await self._private.close()
                if self.keeping is not None:
                    await self.keeping.close()
        except TimeoutError:
            log.error("not everything ended within %d s", CLOSE_SECONDS)
        self.control.close()
        await asyncio.to_thread(self.directory.remove)

    def _end_counting(self) -> None:
        from loommux_host.token_counting.counter import COUNTING

        COUNTING.close()

    def take_over(self, files: KernelFiles) -> None:
        """The kernel with these files will be recalled."""
        self._begun[files.kernel_id] = self._launching_in(files)

    def identity(self, endpoint: str) -> Identity:
        """Who we are for a successor that listens on the same endpoint."""
        from loommux_host.succession.manifest import VERSIONS, Identity  # only HTTP servers have successors

        config = self.config
        return Identity(
            VERSIONS, os.getpid(), self._uptime, self._boot, str(config.workspace), endpoint,
            str(self.interpreter()[0]), self.session,
        )  # fmt: skip

    def interpreter(self) -> tuple[Path, str]:
        """The interpreter of the next process, and why: the one that was named, or what is found at this moment."""
        choice = choose(self.config, os.environ)
        for one in choice.skipped:
            if one not in self._skipped:
                self._skipped.add(one)
                log.warning("%s", one)
        return choice.python, choice.why

    async def _way_in(self, python: Path, environment: dict[str, str]) -> list[str]:
        """How the command of a kernel begins: its interpreter, and what brings it the packages that it lacks."""
        words = [str(python), str(ENTER)]
        if python == Path(sys.executable):
            return words
        from loommux_host.interpreters.overlays import NoOverlay, Overlays  # most servers need none

        self._overlays = self._overlays or Overlays(self.config.kernel_overlay)
        try:
            overlay = await self._overlays.find(python, environment)
        except NoOverlay as error:
            raise StartFailed(str(error)) from error
        return words if overlay is None else [*words, "--overlay", str(overlay)]

    def _launching(self, id: str, name: str) -> ProcessFactory:
        return self._launching_in(KernelFiles(self.directory, id, name, self.config.kernel_transport))

    def _launching_in(self, files: KernelFiles) -> ProcessFactory:
        self.files[files.kernel_id] = files
        return ProcessFactory(self.launcher, files, self.config, self.session)


async def serve_stdio(config: Config, wire: tuple[int, int]) -> None:
    """Serve one client over stdio until it is gone or a signal comes. Raises what made the start fail."""
    stop = Stop()
    with ending_signals(stop):
        host = Host(config)
        stop.tell = host.ends_by
        me = uuid.uuid4().hex
        name = f"private-{me[:8]}"
        kernel = host.begin_kernel(name)

        binders: list[OneKernel] = []

        def one_kernel(registry: Registry) -> Binder:
            from loommux_host.sessions.callers import OneKernel

            binders.append(OneKernel(registry, registry.open(name, private=True, id=kernel).kernel))
            return binders[0]

        def caller(client: str | None, modern: bool) -> Caller:
            from loommux_host.sessions.callers import Caller

            return Caller(me, f"{client or 'client'}-{me[:8]}", modern=modern)

        opening = asyncio.create_task(host.open(one_kernel), name="open the service")

        async def private() -> App:
            from loommux_host.server.private_app import stdio_api

            app = stdio_api(config, await opening, binders[0], host.control)
            calls.feed = app.feed if config.activity_feed else None
            return app

        limits = Limits(config.max_result_bytes, config.omission_tail_lines, ascii_wire=False)
        calls = WatchedCalls(opening, limits, structured=config.structured)
        host.serve_private(private)
        face = Stdio(calls, wire, caller, modern=config.protocol == "both")
        finishing: asyncio.Task[None] | None = None
        try:
            await _first(stop.wait(), face.ended.wait(), failing(opening))
            # What was asked before the end is done: its two seconds begin when there is a kernel to do it.
            await _first(stop.wait(), face.answered(), started(opening))
            finishing = asyncio.create_task(face.finish(FINISH_SECONDS), name="answer the last calls")
            await opening
        finally:
            await host.close()  # calls in flight get their two seconds, then are answered as running
            if finishing is not None:
                await finishing


async def failing(task: asyncio.Task[Service]) -> None:
    """Return only when the task fails."""
    with contextlib.suppress(Exception):
        await asyncio.shield(task)
        await asyncio.Event().wait()


async def started(opening: asyncio.Task[Service]) -> None:
    """Return when no kernel is being started any more; at once when the service cannot be opened."""
    with contextlib.suppress(Exception):
        service = await asyncio.shield(opening)
        async with asyncio.timeout(START_SECONDS):
            await asyncio.gather(*(kernel.settled() for kernel in service.registry.all()))


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of them is over; end the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@contextlib.contextmanager
def ending_signals(stop: Stop) -> Iterator[None]:
    """While the block runs, the signals that end a process set `stop` instead."""
    loop = asyncio.get_running_loop()
    signals = [getattr(signal, name) for name in ENDING_SIGNALS if hasattr(signal, name)]
    if sys.platform == "win32":
        before = {s: signal.signal(s, lambda s, _: loop.call_soon_threadsafe(stop.by, s)) for s in signals}
        try:
            yield
        finally:
            for s, handler in before.items():
                signal.signal(s, handler)
        return
    for s in signals:
        loop.add_signal_handler(s, stop.by, s)
    try:
        yield
    finally:
        for s in signals:
            loop.remove_signal_handler(s)
