"""What a process forked by a keeper must set right before it is what a new interpreter would be.

Owns the two ways out of a fork: `be_guard`, and from there `enter_kernel`. What the guard
does is `init.roles`'s, what a kernel does is ``loommux_kernel``'s. Called by `keeper`, in
the child; nothing here may fail for a reason that a new interpreter would not have.
"""
# ruff: noqa: PTH100

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

from loommux_host.init.roles import Job, Owner, guard, open_parent
from loommux_host.init.system_calls import PR_SET_NAME, prctl
from loommux_host.keeper.wire import Message

#: The environment variable by which processes are found whose init is gone, see `processes.stray_processes`.
MARK = "LOOMMUX_KERNEL_ID"
MARK_LENGTH = 64
NAME_FILE = "/proc/self/comm"
#: The system cuts what is longer.
NAME_BYTES = 15


class Newborn(BaseException):
    """Unwinds a forked process to its first frame, which then runs the kernel of that launch file."""

    def __init__(self, launch: str) -> None:
        super().__init__(launch)
        self.launch = launch


class Origins:
    """What the keeper was like when it began: the names by which `ps` knows it, and where they are kept."""

    def __init__(self) -> None:
        with open(NAME_FILE) as file:  # noqa: PTH123
            self.name = file.read().strip()
        with open("/proc/self/stat") as file:  # noqa: PTH123
            fields = file.read().rpartition(")")[2].split()
        self._arguments, self._arguments_end, environment, end = map(int, fields[45:49])
        words = ctypes.string_at(environment, end - environment)
        place = words.find(f"{MARK}=".encode())
        self._mark = environment + place + len(MARK) + 1 if place >= 0 else 0

    def title(self, words: Sequence[str], name: str) -> None:
        """Be shown as if started with these words. Longer ones are cut."""
        room = self._arguments_end - self._arguments
        text = " ".join(words).encode()[: room - 2]
        # The last byte is not zero: so the system takes the area for one line that ends earlier.
        ctypes.memmove(self._arguments, text + bytes(room - 1 - len(text)) + b" ", room)
        prctl(PR_SET_NAME, name.encode()[:NAME_BYTES])  # the file of that is not ours to write (`close_process`)

    def mark(self, kernel_id: str) -> None:
        """Carry the kernel's id in what the system shows of our environment."""
        text = kernel_id.encode()[:MARK_LENGTH]
        if self._mark:
            ctypes.memmove(self._mark, text + bytes(MARK_LENGTH - len(text)), MARK_LENGTH)


def be_guard(request: Message, descriptors: list[int], origins: Origins, *, fork: bool) -> None:
    """Be the guard of a new kernel, from fork to end. Raises `Newborn` in the kernel's process.

    `descriptors` are the socket towards the owner, the log, a descriptor of the owner's
    process (if its death ends everything), then those of ``hold`` and ``pass``.
    """
    job = Job(request["facts"], request["command"], request["environment"], None)
    if fork:
        job.enter = lambda job: enter_kernel(job, origins)
    bound = _place(job, descriptors, proof=request["proof"])
    if _let_go_already():
        os._exit(0)
    parent = open_parent(job.owner)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()
    origins.title(["loommux-init", job.kernel_id], "loommux-init")
    owner = Owner([bound, parent], bound) if bound >= 0 else Owner([parent], parent)
    guard(job, owner)
    os._exit(0)


def _let_go_already() -> bool:
    """Whether the owner has given this start up: then another process may have its number and its sockets."""
    poll = select.poll()
    poll.register(0, 0)
    return bool(poll.poll(0))


def _place(job: Job, descriptors: list[int], *, proof: bool) -> int:
    """Put every descriptor where it is expected, close all others; returns that of the owner's process."""
    wanted = [0, 1, *([-1] if proof else []), *job.held, *job.passed]
    # First out of the way of every number that is wanted.
    floor = max(wanted) + 1
    copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, floor) for fd in descriptors]
    bound = -1
    for copy, number in zip(copies, wanted, strict=True):
        if number < 0:
            bound = copy
        else:
            os.dup2(copy, number, inheritable=True)
    os.dup2(1, 2, inheritable=True)
    _close_all_but({0, 1, 2, *job.held, *job.passed, bound})
    return bound


def _close_all_but(keep: Collection[int]) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) not in keep:
            with contextlib.suppress(OSError):  # that of the listing itself
                os.close(int(name))


def enter_kernel(job: Job, origins: Origins) -> None:
    """Be what ``python enter.py LAUNCH.json`` would be after its imports; everything else ends here."""
    _close_all_but({0, 1, 2, *job.passed})
    signal.set_wakeup_fd(-1)
    for name, action in (
        ("SIGPIPE", signal.SIG_IGN),
        ("SIGXFSZ", signal.SIG_IGN),
        ("SIGINT", signal.default_int_handler),
    ):
        signal.signal(getattr(signal, name), action)
    os.environ.clear()
    os.environ.update(job.environment or {})
    time.tzset()
    origins.title(job.command, origins.name)
    origins.mark(job.kernel_id)
    _renew_modules(job.workspace)
    sys.argv = job.command[1:]
    sys.orig_argv = list(job.command)
    gc.enable()
    raise Newborn(job.command[2])


def _renew_modules(workspace: str) -> None:
    """What modules remember of the process in which they were imported."""
    main: Any = threading.main_thread()
    main._set_native_id()
    if "multiprocessing.process" in sys.modules:
        process: Any = sys.modules["multiprocessing.process"]
        process.ORIGINAL_DIR = os.path.abspath(workspace)
        process._current_process._config["authkey"] = process.AuthenticationString(os.urandom(32))
    if "tempfile" in sys.modules:
        tempfile: Any = sys.modules["tempfile"]
        tempfile.tempdir = None
    importlib.invalidate_caches()
