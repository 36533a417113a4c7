"""Completes the record store of a process that died.

Owns what a death leaves undone: what Python printed last (`unrecorded_text`), what child
processes and C code wrote to the descriptor files and nobody took in, and executions
that never ended. Runs in the host after the process is gone, through the same terminals
and the same writer that the process had.
"""

from __future__ import annotations

import codecs
import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from loommux_kernel.shared.protocol import State, Stream
from loommux_kernel.shared.records import unrecorded_text
from loommux_kernel.shared.records.database import CODES
from loommux_kernel.shared.records.reader import RecordReader
from loommux_kernel.shared.records.relay import RelayedWriter
from loommux_kernel.shared.records.start_note import HEAD, Noted, noted
from loommux_kernel.shared.records.writer import RecordWriter

#: Bytes of a descriptor file that are taken in at once.
PIECE = 1 << 20
#: Bytes that are taken in of all of them together. A death is told when that is done, and a
#: program may have written for minutes faster than anything can be recorded: short lines are
#: taken in at 10 MB/s.
ROOM = 4 << 20
#: Stands where text is missing that Python printed faster than it could be kept.
MISSING = "\n[lines are missing here: they were printed faster than they could be kept before the end]\n"


def finish(path: Path, ended_at: float, budget_bytes: int = 1 << 30, relay: str | None = None) -> None:
    """Take in the rest of the descriptor files and mark running executions as killed at `ended_at`.

    Running is also what was noted as starting and did not reach the store any more. Of what is
    more than `ROOM` the middle is left out, and a line in its place says so. `relay` is the file
    to which the process relayed what it ran last, which then gets the rest too.

    Does nothing when there is no store, and nothing more when it is called again.
    """
    with contextlib.suppress(FileNotFoundError):
        reader = RecordReader(path)
        try:
            descriptors = _descriptors(reader)
            running = [serial for (serial,) in reader.query("SELECT serial FROM executions WHERE state = 'running'")]
            last = noted(path.parent)
            unheard = last.execution if last is not None and reader.by_serial(last.execution.serial) is None else None
            taken = sum(n for (n,) in reader.query("SELECT taken FROM texts"))
            begun = {serial for (serial,) in reader.query("SELECT serial FROM executions")}
        finally:
            reader.close()
        writer = RelayedWriter(path, budget_bytes, lambda text: None)
        if unheard is not None:
            writer.begin(
                unheard.serial, unheard.number, unheard.origin, unheard.source, unheard.submitted_at, unheard.started_at
            )
            running.append(unheard.serial)
            begun.add(unheard.serial)
        if relay is not None and running:
            writer.relay(running[-1], relay)
        _take_in_unrecorded(writer, path.parent / unrecorded_text.FILE, taken, begun)
        room = ROOM
        for unread in _divided(descriptors, last):
            room -= _take_in(writer, unread, room)
        for serial in running:
            writer.end(serial, State.KILLED, ended_at, None, None)
        writer.close()
        unrecorded_text.remove(path.parent / unrecorded_text.FILE)


@dataclass(frozen=True)
class Unread:
    """What nobody took in of a descriptor file: from `taken` to `end` (None: all), and whose it is.

    Of a file that was truncated (`anew`) ``~taken`` is noted, of what it held then.
    """

    serial: int
    stream: Stream
    file: Path
    taken: int
    end: int | None = None
    anew: bool = False


def _descriptors(reader: RecordReader) -> list[Unread]:
    streams = {code: stream for stream, code in CODES.items()}
    found = reader.query("SELECT serial, stream, path, taken FROM descriptors ORDER BY serial, stream, path")
    return [Unread(serial, streams[code], Path(os.fsdecode(path)), taken) for serial, code, path, taken in found]


def _divided(unread: list[Unread], last: Noted | None) -> list[Unread]:
    """Give the execution that was noted last what begins at its place, when the store had not heard of that yet."""
    if last is None:
        return unread
    serial = last.execution.serial
    for stream, file, begin in last.places:
        if any(one.file == file and one.serial == serial for one in unread):
            continue
        unread = [replace(one, end=begin) if one.file == file else one for one in unread]
        unread.append(Unread(serial, stream, file, begin))
    return unread


def _take_in_unrecorded(writer: RecordWriter, path: Path, taken: int, begun: set[int]) -> None:
    """Record what Python printed last, and that some of it is missing, where it is."""
    texts, left_out = unrecorded_text.left(path, taken)
    for text in texts:
        if text.serial in begun:
            if text.number > taken + 1:
                writer.text(text.serial, text.stream, MISSING)
            writer.text(text.serial, text.stream, text.text)
        taken = text.number
    if left_out > taken and begun:
        writer.text(max(begun), Stream.STDOUT, MISSING)
    writer.taken = max(taken, left_out)


def _take_in(writer: RecordWriter, unread: Unread, room: int) -> int:
    """Record it, as far as there is room; how much that was."""
    with contextlib.suppress(FileNotFoundError), unread.file.open("rb") as rest:
        if unread.taken < 0:
            unread = replace(unread, taken=~unread.taken, anew=True)
        elif rest.read(len(HEAD)) != HEAD:  # truncated when nobody looked any more
            writer.text(unread.serial, unread.stream, "[lines may be missing here: a program truncated the file]\n")
            unread = replace(unread, taken=0, anew=True)
        end = unread.end if unread.end is not None else os.fstat(rest.fileno()).st_size
        excess = max(0, end - unread.taken - room)
        if not excess:
            _copy(writer, unread, rest, unread.taken, end)
            return max(0, end - unread.taken)
        middle = unread.taken + room // 2
        _copy(writer, unread, rest, unread.taken, middle)
        said = f"[{excess:,} bytes were not recorded: they were written faster than they could be before the end]"
        writer.text(unread.serial, unread.stream, f"\n{said}\n")
        _copy(writer, unread, rest, middle + excess, end)
        return room
    return 0


def _copy(writer: RecordWriter, unread: Unread, file: BinaryIO, taken: int, end: int) -> None:
    """Record one stretch of a descriptor file."""

    def place(taken: int) -> int:
        return ~taken if unread.anew else taken

    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    file.seek(taken)
    while piece := file.read(max(0, min(PIECE, end - taken))):
        taken += len(piece)
        writer.text(unread.serial, unread.stream, decoder.decode(piece))
        writer.descriptor(unread.serial, unread.stream, unread.file, place(taken - len(decoder.getstate()[0])))
        writer.commit()
    writer.text(unread.serial, unread.stream, decoder.decode(b"", final=True))
    writer.descriptor(unread.serial, unread.stream, unread.file, place(taken))
