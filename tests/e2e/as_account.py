"""Become another account of this machine and run a program: ``as_account.py UID PROGRAM…``, as root.

Where the way to this interpreter is closed to others (it lies in root's home), the program runs in a mount
namespace of its own in which it is open; the machine itself stays as it is. Standard library only: it runs first.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from pathlib import Path

CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
LIBC = ctypes.CDLL(None, use_errno=True)
CHECKOUT = Path(__file__).resolve().parents[2]


def needed() -> list[Path]:
    """What the program needs to read: the interpreter, its environment, this checkout."""
    return [Path(sys.base_prefix), Path(sys.prefix), CHECKOUT]


def closed_above(path: Path) -> Path | None:
    """The first directory on the way there that others may not enter."""
    return next((p for p in reversed((path, *path.parents)) if not p.stat().st_mode & 0o001), None)


def open_the_way(path: Path) -> None:
    """Put an empty directory in the place of the closed one, with nothing in it but `path`."""
    while (closed := closed_above(path)) is not None:
        aside = tempfile.mkdtemp()
        mount(str(path), aside, "", MS_BIND | MS_REC)
        mount("none", str(closed), "tmpfs", 0, "mode=755")
        path.mkdir(parents=True)
        mount(aside, str(path), "", MS_BIND | MS_REC)
        LIBC.umount2(aside.encode(), 2)
        Path(aside).rmdir()


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = [word.encode() for word in (source, target, kind)]
    if LIBC.mount(*words, ctypes.c_ulong(flags), data.encode()) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)


def main() -> None:
    uid, program = int(sys.argv[1]), sys.argv[2:]
    if any(closed_above(path) for path in needed()):
        if LIBC.unshare(CLONE_NEWNS) != 0:
            sys.exit("no mount namespace may be made")
        mount("none", "/", "", MS_REC | MS_PRIVATE)
        for path in needed():
            open_the_way(path)
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
