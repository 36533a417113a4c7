"""The process around the kernel: ipykernel's app with what is wanted of it, and nothing of the user's IPython.

Owns what is configured, which sockets and threads exist, where the process logs, and the
order of start and end. `__main__` runs one; it makes the one `GatedKernel`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import faulthandler
import json
import logging
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any, ClassVar

from ipykernel.kernelapp import IPKernelApp
from IPython.core.profiledir import ProfileDir
from traitlets import Any as AnyTrait
from traitlets import Type, default
from traitlets.config import Config

from loommux_kernel import startup
from loommux_kernel.capture.iopub import Capture
from loommux_kernel.kernel import GatedKernel
from loommux_kernel.shared.clock import keep_time, monotonic
from loommux_kernel.shared.protocol import PROTOCOL_VERSION, LaunchFile, now
from loommux_kernel.shared.records.relay import RelayedWriter

#: A busy thread lets others in after so long; at Python's own 5 ms a control request takes four times as long.
SWITCH_INTERVAL = 0.001


def configuration() -> Config:
    """What a kernel's IPython is like (contract 8.3)."""
    config = Config()
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.cache_size = 0
    config.InteractiveShell.history_load_length = 0
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.IPKernelApp.exec_PYTHONSTARTUP = False
    config.IPKernelApp.hide_initial_ns = False
    return config


class KernelApp(IPKernelApp):
    """One kernel process."""

    kernel_class = Type(GatedKernel)
    shell: Any
    shell_channel_thread: Any
    control_thread: Any
    #: Whether the loop serves: from then on only the server ends it.
    _serving = False
    launch = AnyTrait()
    capture = AnyTrait()
    #: Nothing of the command line is ipykernel's.
    aliases: ClassVar[dict[str, Any]] = {}
    flags: ClassVar[dict[str, Any]] = {}

    def __init__(self, launch: LaunchFile, log_fd: int) -> None:
        super().__init__(
            launch=launch,
            config=configuration(),
            connection_file=launch.connection_file,
            parent_handle=0,
            log=_logger(launch.log),
        )
        self.capture = Capture(self._open_writer, Path(launch.descriptors), log_fd)
        self.capture.install(self)

    @default("ipython_dir")
    def _ipython_dir_default(self) -> str:
        return self.launch.profile or str(Path(self.launch.records).with_name("ipython"))

    def _open_writer(self, on_trouble: Any) -> RelayedWriter:
        return RelayedWriter(Path(self.launch.records), self.launch.records_budget_bytes, on_trouble)

    # -- what ipykernel would do and is not wanted --------------------------------------

    @default("profile_dir")
    def _profile_dir_default(self) -> ProfileDir:
        return ProfileDir(location=self.ipython_dir)

    def init_profile_dir(self) -> None:
        """The default: the kernel's own, which goes with it; what `%store` keeps there outlives a restart."""

    def parse_command_line(self, argv: Any = None) -> None:
        """Nothing of it is ipykernel's; looking costs a tenth of the start."""

    def init_config_files(self) -> None:
        """There are none."""

    def load_config_file(self, *args: Any, **options: Any) -> None:
        """See `init_config_files`."""

    def init_crash_handler(self) -> None:
        """Python's own: uncaught errors go to stderr."""

    def init_poller(self) -> None:
        """The process's end with its parent is the parent's business."""

    def write_connection_file(self, **options: Any) -> None:
        """The server has written it, and keeps it over restarts."""

    def cleanup_connection_file(self) -> None:
        """The file is there until the kernel, not its process, is gone: clients look for it meanwhile."""
        self.cleanup_ipc_files()

    def log_connection_info(self) -> None:
        """Nobody reads it."""
        names = ("shell", "iopub", "stdin", "hb", "control")
        self._ports = {name: getattr(self, f"{name}_port") for name in names}

    def configure_tornado_logger(self) -> None:
        """Tornado, and what carries messages of widgets, log where the process does: it is no cell's output."""
        for name in ("tornado", "Comm", "ipykernel.comm"):
            logger = logging.getLogger(name)
            logger.handlers = self.log.handlers
            logger.propagate = False

    def init_control(self, context: Any) -> None:
        """Without the thread that ipykernel has for subshells: one cell at a time, and 1 ms less for each."""
        super().init_control(context)
        self.control_thread.io_loop.asyncio_loop.time = monotonic  # of cells the clocks may stand still
        unused, self.shell_channel_thread = self.shell_channel_thread, None
        unused.io_loop.close()

    def init_signal(self) -> None:
        """The kernel takes SIGINT when it starts; SIGWINCH, which pdb's readline takes, is for a terminal."""
        if hasattr(signal, "SIGWINCH"):
            signal.signal(signal.SIGWINCH, signal.SIG_DFL)

    def init_code(self) -> None:
        """Startup files are the server's, not IPython's."""
        self.shell._sys_modules_keys = set(sys.modules)  # what `%reset in --aggressive` spares

    # -- start and end ----------------------------------------------------------------------

    def initialize(self, argv: list[str] | None = None) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL)
        # tornado would ask for one that is not there, which warns from Python 3.12 on, and a warning may be an error
        asyncio.set_event_loop(asyncio.new_event_loop())
        with without_debugpy():
            super().initialize([])
        # after the user's handlers, whose output is recorded, and before ipykernel's, which end the IOPub thread
        atexit.register(self.capture.close)

    def exit(self, exit_status: int | str | None = 0) -> None:
        """Code that finds this app does not end the process with it."""
        if self._serving:
            self.kernel.stop()
        super().exit(exit_status)

    def close(self) -> None:
        """At the process's end; code that calls it would take the sockets from under its kernel."""
        if self._serving:
            self.kernel.stop()
        super().close()

    def start(self) -> None:
        """Serve until the server asks to stop."""
        self.kernel.start()
        self._serving = True
        self.io_loop = self.kernel.io_loop
        self.kernel.loop.time = monotonic  # `await asyncio.sleep(1)` takes a second also where clocks are frozen
        # With PYTHONDEVMODE or PYTHONASYNCIODEBUG every cell over 0.1 s would be reported, into its own output.
        self.kernel.loop.slow_callback_duration = math.inf
        self.io_loop.add_callback(lambda: self.kernel.spawn(self._begin()))
        while not self.kernel.stopping:  # a cell may stop the loop, or leave work on it that fails
            try:
                self.io_loop.start()
            except BaseException as error:
                self._left_by(error)
        self._serving = False

    def _left_by(self, error: BaseException) -> None:
        if error is self.kernel.interrupts.raised:
            return
        self.kernel.leave_if_forked(error)
        try:
            self.kernel.strays.out_of_loop(error)
        except BaseException:  # the same error: the loop cannot be used any more
            self._serving = False
            raise

    async def _begin(self) -> None:
        try:
            if self.launch.startup is not None:
                limit = self.launch.extra.get("startup_seconds", startup.LIMIT_SECONDS)
                await self.kernel.run_startup_files(Path(self.launch.startup), limit)
            self._say_ready()
        except BaseException:  # a kernel that never says it is ready would be waited for
            self.log.exception("the start failed")
            os._exit(1)

    def _say_ready(self) -> None:
        fd = self.launch.ready_fd
        if fd is None:
            return
        line = json.dumps({"ready": True, "pid": os.getpid(), "version": PROTOCOL_VERSION, "at": now()}) + "\n"
        with contextlib.suppress(OSError):  # nobody waits any more
            os.write(fd, line.encode())
        with contextlib.suppress(OSError):
            os.close(fd)


@contextlib.contextmanager
def without_debugpy() -> Any:
    """ipykernel imports debugpy, which starts threads, unless it is missing: let it be missing here."""
    hidden = sys.modules.get("debugpy")
    sys.modules["debugpy"] = None  # type: ignore[assignment]
    try:
        import ipykernel.debugger  # noqa: F401

        yield
    finally:
        if hidden is None:
            del sys.modules["debugpy"]
        else:
            sys.modules["debugpy"] = hidden


def run(launch: LaunchFile) -> None:
    """Be the kernel process."""
    # Scripts that are pasted read their arguments: they find none, as in IPython, and no path of ours.
    sys.argv, sys.orig_argv = ["ipython"], [sys.executable]
    if launch.clock is not None:
        keep_time(launch.clock)
    _limit_descriptors(launch.extra.get("descriptor_limit"))
    os.chdir(launch.workspace)
    log_fd = os.open(launch.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    faulthandler.enable(log_fd)
    app = KernelApp.instance(launch, log_fd)  # where ipykernel's own helpers look for it
    try:
        app.initialize()
    except BaseException:  # Python would report it to where this process's output is captured by now
        app.log.exception("the start failed")
        os._exit(1)
    app.start()
    sys.argv = ["ipython"]  # runpy takes it for a list that has something in it


def _limit_descriptors(soft: int | None) -> None:
    """The user's own limit, which the server has raised for itself."""
    if soft is None or sys.platform == "win32":
        return
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _logger(path: str) -> logging.Logger:
    logger = logging.getLogger("loommux_kernel")
    handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.handlers = [handler]
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    return logger
