"""The execution that is starting, noted where it outlives the process.

The record store hears of a start on another thread, a moment later. A cell that kills its
process at once would be gone from it, one whose native code keeps that thread out would
not be heard of until it is over, and whoever sent it would be told that it never ran. So
`capture.output` notes every execution in one small file before it runs (one write, no sync: it
must survive the process, not the machine). `finisher` completes a store with what the
note says, and the host reads it when a kernel tells nothing. The file has its blocks from the
start, so that a full disk does not keep a start from being noted; a source too long for them is cut then.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loommux_kernel.executions.gate import Execution
from loommux_kernel.shared.private_directories import make_again
from loommux_kernel.shared.protocol import Origin, State, Stream
from loommux_kernel.shared.record_types import ExecutionRecord
from loommux_kernel.shared.reserve import HELD

NAME = "starting"
#: Blocks that the file has whatever the disk does.
RESERVED = 1 << 14
#: Characters of a source that has to fit into them, each as twelve bytes at most.
CUT = 1 << 10
#: A stream's descriptor file, and the offset from which on it belongs to the execution.
Place = tuple[Stream, Path, int]
#: What such a file begins with as long as nobody has truncated it; no program prints that.
HEAD = b"\0loommux\0\n"


def claim(directory: Path, submission: str) -> bool:
    """Whether the asker is the first to decide about a submission: the kernel to start it, its server to take it back.

    For one that the kernel could not answer for. Raises `OSError` when nobody can.
    """
    make_again(directory)
    path = directory / f"claim-{submission}"
    try:
        HELD.spend(_make, path)
    except FileExistsError:
        return False
    return True


def _make(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


@dataclass(frozen=True)
class Noted:
    """What was noted of an execution: itself, and where its descriptor output begins."""

    execution: Execution
    places: tuple[Place, ...]


class Starting:
    """The note in `directory`; kept open by the process that writes it."""

    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory / NAME, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        with contextlib.suppress(OSError):  # then its size says that it may know nothing
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._fd, 0, RESERVED)
            elif os.fstat(self._fd).st_size < RESERVED:
                os.write(self._fd, bytes(RESERVED))

    def note(self, execution: Execution, places: Iterable[Place] = ()) -> None:
        """`execution` is about to run. Main thread. A disk that does not take it stops nothing."""
        where = [(stream, str(path), offset) for stream, path, offset in places]
        try:
            self._write(execution, where)
        except OSError:
            with contextlib.suppress(OSError):
                self._write(replace(execution, source=execution.source[:CUT]), where)

    def _write(self, execution: Execution, where: list[tuple[Stream, str, int]]) -> None:
        wire = vars(execution) | {"origin": vars(execution.origin)}
        line = json.dumps({"execution": wire, "places": where}).encode() + b"\n"
        os.lseek(self._fd, 0, os.SEEK_SET)
        if os.write(self._fd, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        os.close(self._fd)


def noted(directory: Path) -> Noted | None:
    """What was noted there last, if anything was."""
    try:
        return note_in((directory / NAME).read_bytes())
    except OSError:
        return None


def note_in(data: bytes) -> Noted | None:
    """What the content of such a file says, if it says anything."""
    line, end, _ = data.partition(b"\n")  # behind it is the rest of a longer one
    try:
        wire: dict[str, Any] = json.loads(line) if end else {}
    except ValueError:
        return None
    if not wire:
        return None
    execution = replace(Execution(**wire["execution"]), origin=Origin.from_wire(wire["execution"]["origin"]))
    return Noted(execution, tuple((Stream(stream), Path(path), offset) for stream, path, offset in wire["places"]))


def starting(store: Path) -> ExecutionRecord | None:
    """The execution that was noted last beside that record store, as one that runs.

    It may have ended since: what the store itself says of it, read afterwards, is newer.
    """
    note = noted(store.parent)
    return None if note is None else begun(note)


def begun(note: Noted) -> ExecutionRecord:
    """What was noted, as an execution that runs."""
    execution = note.execution
    return ExecutionRecord(
        serial=execution.serial,
        number=execution.number,
        origin=execution.origin,
        source=execution.source,
        state=State.RUNNING,
        submitted_at=execution.submitted_at,
        started_at=execution.started_at,
        updated_at=execution.started_at,
    )
