"""The files in which a server writes down what its successor needs: private, whole, replaced atomically.

Owns their names, writing and reading, and that nothing is believed that is not this user's
alone, or not of the shape of `manifest`. A file that was written outlives the process at
once; no disk is waited for, since keepers do not outlive the machine either. Used by
`server.handover` and `server.adoption`.
"""

from __future__ import annotations

import json
import os
import stat
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")

#: In the server's directory.
IDENTITY, CALLERS = "adoption.json", "callers.json"
#: In a kernel's directory.
KERNEL = "adoption.json"
MOST_BYTES = 1 << 26


class Damaged(Exception):
    """The file is not what a server of this version writes; the message names it."""


def encoded(note: object) -> bytes:
    """A note as it is written. Any dataclass is written as its fields."""
    return json.dumps(note, default=vars, separators=(",", ":")).encode()


def write(path: Path, data: bytes) -> None:
    """Replace a file as a whole, readable by this user alone."""
    beside = path.with_suffix(".new")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "wb") as file:  # noqa: PTH123
        file.write(data)
    beside.replace(path)


def read(path: Path, shape: type[T]) -> T:
    """A note that a server of this user has written. Raises `Damaged`, FileNotFoundError."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from error
    with open(fd, "rb") as file:  # noqa: PTH123
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
            raise Damaged(f"{path} is not a file of this user alone")
        data = file.read(MOST_BYTES)
    try:
        return _shape(shape).validate_python(json.loads(data))
    except (ValueError, ValidationError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise Damaged(f"{path} is damaged: {first}") from error


@cache
def _shape(shape: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(shape)
