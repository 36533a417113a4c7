"""What a kernel's process is like, found out in a cell: ``await collect()``. See `test_forked_kernels`."""

# ruff: noqa: ASYNC221, PTH109, PTH208, PTH115
from __future__ import annotations

import asyncio
import atexit
import faulthandler
import gc
import importlib
import locale
import multiprocessing
import multiprocessing.process
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
import warnings
from pathlib import Path
from typing import Any

PROC = Path("/proc/self")


def _status(*names: str) -> list[str]:
    return [line for line in (PROC / "status").read_text().splitlines() if line.startswith(names)]


def _descriptors() -> list[str]:
    """Where the first three lead, and how many there are of each kind; numbers and paths are a process's own."""
    links = {}
    for fd in os.listdir(PROC / "fd"):
        try:
            links[int(fd)] = os.readlink(PROC / "fd" / fd).partition(":")[0]
        except OSError:
            continue  # that of the listing
    kinds = [Path(link).name for link in links.values()]
    return [links[0], *sorted(kind for kind in kinds if kind not in {"fd"})]


async def collect() -> dict[str, Any]:
    """Every fact by name; all of it goes through JSON."""
    numpy = importlib.import_module("numpy")
    matplotlib = importlib.import_module("matplotlib")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pooled = pool.apply(os.getcwd)
    return {
        "random": [random.getrandbits(64), random.Random().getrandbits(64)],
        "uuid": [str(uuid.uuid4()), str(uuid.uuid1())],
        "secrets": secrets.token_hex(),
        "tempfile names": next(tempfile._get_candidate_names()),  # pyright: ignore[reportAttributeAccessIssue]
        "temporary directory": tempfile.gettempdir(),
        "environment": dict(os.environ),
        "environment of children": subprocess.check_output(["env"], text=True).splitlines(),
        "directory": os.getcwd(),
        "umask": _status("Umask"),
        "handlers": {int(s): repr(signal.getsignal(s)).partition(" at 0x")[0] for s in signal.valid_signals()},
        "signals": _status("SigB", "SigI", "SigC"),
        "descriptors": _descriptors(),
        "faulthandler": faulthandler.is_enabled(),
        "multiprocessing": [
            multiprocessing.process.ORIGINAL_DIR,  # pyright: ignore[reportAttributeAccessIssue]
            multiprocessing.current_process().name, multiprocessing.parent_process(), pooled,
        ],
        "authkey": multiprocessing.current_process().authkey.hex(),
        "threads": sorted(t.name for t in threading.enumerate()),
        "main thread": [threading.main_thread().native_id == threading.get_native_id() == os.getpid()],
        "loop": [type(asyncio.get_running_loop()).__name__, await asyncio.sleep(0, "slept")],
        "interpreter": [
            str(sys.flags), sys.path, sys.prefix, sys.executable, sys.getswitchinterval(), sys.getrecursionlimit(),
            sys.stdin.read(), sys.argv[0], len(sys.argv), len(sys.orig_argv), sys.warnoptions,
            str(sys._xoptions), sys.modules["__main__"].__name__, locale.setlocale(locale.LC_ALL),
        ],
        "collector": [gc.isenabled(), gc.get_threshold(), gc.callbacks],
        "warnings": [str(f[:3]) for f in warnings.filters],
        "limits": (PROC / "limits").read_text(),
        "session": [os.getsid(0) == os.getpid() == os.getpgid(0)],
        "oom": (PROC / "oom_score_adj").read_text(),
        "name": (PROC / "comm").read_text(),
        "ps": subprocess.check_output(["ps", "-ww", "-o", "args=", "-p", str(os.getpid())], text=True).strip(),
        "mark": [w for w in (PROC / "environ").read_text().split("\0") if w.startswith("LOOMMUX_KERNEL_ID=")],
        "zone": [time.tzname, time.localtime(0).tm_hour],
        "numpy": str(numpy.random.rand()),
        "matplotlib": [matplotlib.get_backend(), matplotlib.get_cachedir(), numpy.__version__],
        "exit handlers": atexit._ncallbacks(),  # pyright: ignore[reportAttributeAccessIssue]
        "first frame": traceback.extract_stack()[0].name,
        "ours": sorted(name for name in sys.modules if name.startswith("loommux_host")),
    }  # fmt: skip
