"""What an init needs of the system, without the modules that are slow to import.

`signal` imports `enum`, `ctypes` a dozen modules: together as much again as the start of
the interpreter, and a kernel's start waits for it. So `signal` here is the extension module
under the standard one (the same functions, plain numbers), and `prctl` calls the C library
through the extension module under `ctypes`. ``tests/host/init/test_init.py`` pins both.
"""

import sys

TYPE_CHECKING = False  # as in `typing`, which is slow to import too
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

__all__ = [
    "LINUX", "PR_SET_CHILD_SUBREAPER", "PR_SET_NAME", "PR_SET_PDEATHSIG", "close_process", "open_process", "prctl",
    "signal",
]  # fmt: skip

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36


def prctl(option: int, value: int | bytes) -> None:
    """The system call of that name (Linux). Raises OSError."""
    import _ctypes

    address = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # pyright: ignore[reportArgumentType]
    if _ctypes.call_function(address, (option, value, 0, 0, 0)) != 0:
        raise OSError(f"prctl({option}) failed")


def close_process() -> None:
    """Have the system refuse other processes of this account our descriptors, memory and environment (Linux).

    Otherwise a cell could open the server's pipes in ``/proc/PID/fd`` and write into them. Children that are
    forked are closed too, programs that are executed are not. Nothing keeps root out.
    """
    if LINUX:
        prctl(PR_SET_DUMPABLE, 0)


def open_process() -> None:
    """Undo `close_process`: a kernel is as any process of its account."""
    if LINUX:
        prctl(PR_SET_DUMPABLE, 1)
