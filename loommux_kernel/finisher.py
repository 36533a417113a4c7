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
from pathlib import Path

from loommux_kernel.protocol import State, Stream
from loommux_kernel.recordreader import RecordReader
from loommux_kernel.recordstore import CODES
from loommux_kernel.recordwriter import RecordWriter
from loommux_kernel.starting import noted

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
            unheard = last if last is not None and reader.by_serial(last.serial) is None else None
        finally:
            reader.close()
        writer = RecordWriter.open(path, budget_bytes, lambda text: None)
        if unheard is not None:
            writer.begin(
                unheard.serial, unheard.number, unheard.origin, unheard.source, unheard.submitted_at, unheard.started_at
            )
            running.append(unheard.serial)
        for serial, stream, file, taken in descriptors:
            _take_in(writer, serial, stream, file, taken)
        for serial in running:
            writer.end(serial, State.KILLED, ended_at, None, None)
        writer.close()


def _descriptors(reader: RecordReader) -> list[tuple[int, Stream, Path, int]]:
    streams = {code: stream for stream, code in CODES.items()}
    found = reader.query("SELECT serial, stream, path, taken FROM descriptors ORDER BY serial, stream, path")
    return [(serial, streams[code], Path(os.fsdecode(path)), taken) for serial, code, path, taken in found]


def _take_in(writer: RecordWriter, serial: int, stream: Stream, file: Path, taken: int) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    with contextlib.suppress(FileNotFoundError), file.open("rb") as rest:
        rest.seek(taken)
        while piece := rest.read(PIECE):
            taken += len(piece)
            writer.text(serial, stream, decoder.decode(piece))
            writer.descriptor(serial, stream, file, taken - len(decoder.getstate()[0]))
            writer.commit()
        writer.text(serial, stream, decoder.decode(b"", final=True))
        writer.descriptor(serial, stream, file, taken)
