"""Stands in for a kernel: does what its arguments say, one after the other.

``python standin_kernel.py LAUNCH.json ACT...`` Every act that starts processes adds their
pids to ``pids`` in the process's directory; all of them end by themselves after a minute.
Standard library only.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

LIFE = "60"
launch = json.loads(Path(sys.argv[1]).read_text())
here = Path(sys.argv[1]).parent


def note(*pids: int) -> None:
    with (here / "pids").open("a") as file:
        file.write("".join(f"{pid}\n" for pid in pids))


def child(count: str = "1") -> None:
    """Ordinary children."""
    for _ in range(int(count)):
        # Unlike `spawnlp`, this returns when the child runs its program.
        note(os.posix_spawnp("sleep", ["sleep", LIFE], os.environ))


def daemon(count: str = "1") -> None:
    """In sessions of their own, deaf to SIGHUP, without the environment, whose parents are gone."""
    for _ in range(int(count)):
        reading, writing = os.pipe()
        first = os.fork()
        if first == 0:
            os.setsid()
            second = os.fork()
            if second == 0:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
                os.write(writing, b"%d" % os.getpid())
                os.execve("/bin/sleep", ["sleep", LIFE], {})
            os._exit(0)
        os.waitpid(first, 0)
        os.close(writing)
        with os.fdopen(reading) as from_daemon:  # to the end, which comes when it runs its program
            note(int(from_daemon.read()))


def deaf() -> None:
    """Ignore every signal that can be ignored; children inherit that."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)


def comet(count: str = "1") -> None:
    """Always one process that forks, in a session of its own each time, and exits."""
    end = time.monotonic() + 15
    for _ in range(int(count)):
        if os.fork() == 0:
            while time.monotonic() < end:
                if os.fork() != 0:
                    os._exit(0)
                os.setsid()
            os._exit(0)


def storm(count: str = "1") -> None:
    """Processes that start short-lived ones as fast as they can."""
    end = time.monotonic() + 15
    for _ in range(int(count)):
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            while time.monotonic() < end:
                if os.fork() == 0:
                    time.sleep(0.02)
                    os._exit(0)
                time.sleep(0.001)
            os._exit(0)


def ready() -> None:
    os.write(launch["ready_fd"], b"{}\n")
    os.close(launch["ready_fd"])


def write(text: str) -> None:
    os.write(2, text.encode() + b"\n")


def memory(mebibytes: str) -> None:
    global held
    held = b"x" * (int(mebibytes) << 20)


def limit(mebibytes: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (int(mebibytes) << 20, int(mebibytes) << 20))


def facts() -> None:
    """What a kernel's process finds itself in."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
        terminal = True
    except OSError:
        terminal = False
    listing = Path("/proc/self/fd")
    fds = {int(p.name): str(p.readlink()) for p in listing.iterdir() if p.exists()}
    found = {
        "pid": os.getpid(), "ppid": os.getppid(), "sid": os.getsid(0), "cwd": str(Path.cwd()), "terminal": terminal,
        "fds": fds, "environment": dict(os.environ), "oom": int(Path("/proc/self/oom_score_adj").read_text()),
        "ignored": [s for s in signal.valid_signals() if signal.getsignal(s) is signal.SIG_IGN],
        "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "stdin": sys.stdin.read(),
    }  # fmt: skip
    (here / "facts").write_text(json.dumps(found))


def fault() -> None:
    """Die of a segfault with the stacks in the log."""
    import ctypes
    import faulthandler

    faulthandler.enable()
    ctypes.string_at(0)


def leave(code: str) -> None:
    os._exit(int(code))


def kill(number: str) -> None:
    os.kill(os.getpid(), int(number))


def sleep(seconds: str = LIFE) -> None:
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        time.sleep(0.5)


def hold() -> None:
    """Stay in C, whatever happens to Python."""
    import ctypes

    ctypes.PyDLL(None).sleep(int(LIFE))


for act in sys.argv[2:]:
    name, _, value = act.partition("=")
    globals()[name](*([value] if value else []))
