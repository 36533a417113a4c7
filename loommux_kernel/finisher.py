"""Completes the record store of a process that died.

Owns what a death leaves undone: what child processes and C code wrote to the
descriptor files and nobody took in, and executions that never ended. Runs in
the host after the process is gone, through the same terminals and the same
writer that the process had.
"""

from __future__ import annotations

import codecs
import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from loommux_kernel.protocol import State, Stream
from loommux_kernel.recordreader import RecordReader
from loommux_kernel.recordstore import CODES
from loommux_kernel.recordwriter import RecordWriter
from loommux_kernel.starting import Noted, noted

#: Bytes of a descriptor file that are taken in at once.
PIECE = 1 << 20


def finish(path: Path, ended_at: float, budget_bytes: int = 1 << 30) -> None:
    """Take in the rest of the descriptor files and mark running executions as killed at `ended_at`.

    Running is also what was noted as starting and did not reach the store any more.

    Does nothing when there is no store, and nothing more when it is called again.
    """
    with contextlib.suppress(FileNotFoundError):
        reader = RecordReader(path)
        try:
            descriptors = _descriptors(reader)
            running = [serial for (serial,) in reader.query("SELECT serial FROM executions WHERE state = 'running'")]
            last = noted(path.parent)
            unheard = last.execution if last is not None and reader.by_serial(last.execution.serial) is None else None
        finally:
            reader.close()
        writer = RecordWriter.open(path, budget_bytes, lambda text: None)
        if unheard is not None:
            writer.begin(
                unheard.serial, unheard.number, unheard.origin, unheard.source, unheard.submitted_at, unheard.started_at
            )
            running.append(unheard.serial)
        for unread in _divided(descriptors, last):
            _take_in(writer, unread)
        for serial in running:
            writer.end(serial, State.KILLED, ended_at, None, None)
        writer.close()


@dataclass(frozen=True)
class Unread:
    """What nobody took in of a descriptor file: from `taken` to `end` (None: all), and whose it is."""

    serial: int
    stream: Stream
    file: Path
    taken: int
    end: int | None = None


def _descriptors(reader: RecordReader) -> list[Unread]:
    streams = {code: stream for stream, code in CODES.items()}
    found = reader.query("SELECT serial, stream, path, taken FROM descriptors ORDER BY serial, stream, path")
    return [Unread(serial, streams[code], Path(os.fsdecode(path)), taken) for serial, code, path, taken in found]


def _divided(unread: list[Unread], last: Noted | None) -> list[Unread]:
    """Give the execution that was noted last what begins at its place, when the store had not heard of that yet."""
    for stream, file, begin in last.places if last is not None else ():
        serial = last.execution.serial if last is not None else 0
        if any(one.file == file and one.serial == serial for one in unread):
            continue
        unread = [replace(one, end=begin) if one.file == file else one for one in unread]
        unread.append(Unread(serial, stream, file, begin))
    return unread


def _take_in(writer: RecordWriter, unread: Unread) -> None:
    serial, stream, file, taken = unread.serial, unread.stream, unread.file, unread.taken
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    with contextlib.suppress(FileNotFoundError), file.open("rb") as rest:
        rest.seek(taken)
        while piece := rest.read(PIECE if unread.end is None else min(PIECE, max(0, unread.end - taken))):
            taken += len(piece)
            writer.text(serial, stream, decoder.decode(piece))
            writer.descriptor(serial, stream, file, taken - len(decoder.getstate()[0]))
            writer.commit()
        writer.text(serial, stream, decoder.decode(b"", final=True))
        writer.descriptor(serial, stream, file, taken)
