"""Completing the store of a process that died (contract 5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from loommux_kernel.shared.lines import Query
from loommux_kernel.shared.protocol import Origin, OriginKind, State, Stream
from loommux_kernel.shared.records.finisher import ROOM, finish
from loommux_kernel.shared.records.reader import RecordReader
from loommux_kernel.shared.records.start_note import HEAD
from loommux_kernel.shared.records.writer import RecordWriter

SESSION = Origin(OriginKind.SESSION, "session", "caller")


@pytest.fixture
def died(tmp_path: Path) -> tuple[RecordWriter, Path, Callable[[], RecordReader]]:
    """The store of a process that ends without closing it, a descriptor file, and what reads it afterwards."""
    path = tmp_path / "records.db"
    writer = RecordWriter.open(path, 1 << 30, lambda text: None)
    for serial in (1, 2):
        writer.begin(serial, serial, SESSION, "source", 1.0, 1.0)
    writer.end(1, State.COMPLETED, 2.0, None, None)

    def reader() -> RecordReader:
        writer.commit()
        writer._disk.close()
        finish(path, 50.0)
        finish(path, 60.0)
        return RecordReader(path)

    return writer, tmp_path / "stdout", reader


def test_running_executions_are_marked_killed(died: tuple[RecordWriter, Path, Callable[[], RecordReader]]) -> None:
    reader = died[2]()
    assert [(r.serial, r.state, r.completed_at) for r in reader.executions()] == [
        (2, State.KILLED, 50.0),
        (1, State.COMPLETED, 2.0),
    ]
    reader.close()


def test_the_rest_of_descriptor_files_is_taken_in_where_it_was_left(
    died: tuple[RecordWriter, Path, Callable[[], RecordReader]],
) -> None:
    writer, file, finished = died
    words = b"taken\n50%\r75%\xe2\x82\xac \x1b[31" + b"mred\n\xff" + b"x\n" * 100_000 + b"half \xe2\x82"
    file.write_bytes(HEAD + words)
    writer.text(2, Stream.STDOUT, "taken\n50%")
    writer.descriptor(2, Stream.STDOUT, file, len(HEAD) + 9)
    late = file.with_name("late")
    late.write_bytes(HEAD + b"words of a child\n")
    writer.descriptor(1, Stream.STDERR, late, len(HEAD))
    writer.descriptor(2, Stream.STDERR, file.with_name("vanished"), 0)
    reader = finished()
    assert reader.text(2, Stream.STDOUT) == "taken\n75%€ red\n\\xffx\n" + "x\n" * 99_999 + "half \\xe2\\x82"
    assert reader.text(1, Stream.STDERR) == "words of a child\n"
    record = reader.by_serial(1)
    assert record is not None
    assert (record.late_lines, record.state) == (1, State.COMPLETED)
    reader.close()


def test_what_was_truncated_when_nobody_looked_any_more_is_taken_in_from_its_beginning(
    died: tuple[RecordWriter, Path, Callable[[], RecordReader]],
) -> None:
    writer, file, finished = died
    file.write_bytes(b"boom: cannot allocate\n")
    writer.descriptor(2, Stream.STDOUT, file, len(HEAD))
    known = file.with_name("known")
    known.write_bytes(b"taken\nnot taken\n")
    writer.descriptor(2, Stream.STDERR, known, ~6)
    reader = finished()
    lost = "[lines may be missing here: a program truncated the file]\n"
    assert reader.text(2, Stream.STDOUT) == f"{lost}boom: cannot allocate\n"
    assert reader.text(2, Stream.STDERR) == "not taken\n"
    reader.close()


def test_of_more_than_can_be_taken_in_soon_the_middle_is_left_out_and_counted(
    died: tuple[RecordWriter, Path, Callable[[], RecordReader]],
) -> None:
    writer, file, finished = died
    lines = ROOM // 4
    file.write_bytes(HEAD + b"".join(b"%08d\n" % n for n in range(lines)))
    writer.descriptor(2, Stream.STDOUT, file, len(HEAD))
    reader = finished()
    first, last = reader.lines(2, Stream.STDOUT, 1, 1), reader.tail(2, Stream.STDOUT, 1)
    assert (first, last) == (["00000000"], [f"{lines - 1:08d}"])
    found = reader.search(2, Stream.STDOUT, Query.build("bytes were not recorded", "literal", False), 0, 0)
    assert [text for _, _, text in found.rows] == [
        f"[{9 * lines - ROOM:,} bytes were not recorded: they were written faster than they could be before the end]"
    ]
    record = reader.by_serial(2)
    assert record is not None
    assert record.counts[Stream.STDOUT].utf8_bytes < ROOM + 1000
    reader.close()


def test_a_process_that_left_no_store_needs_no_finish(tmp_path: Path) -> None:
    finish(tmp_path / "none.db", 50.0)
    assert list(tmp_path.iterdir()) == []
