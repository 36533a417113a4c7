"""Record files that somebody removes: what was open is read on, and written again after a death."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loommux_host.kernels.record_files import RecordFiles
from loommux_kernel.executions.gate import Execution
from loommux_kernel.shared.protocol import Origin, OriginKind, Stream
from loommux_kernel.shared.records.finisher import finish
from loommux_kernel.shared.records.reader import RecordReader
from loommux_kernel.shared.records.start_note import RESERVED, Starting
from loommux_kernel.shared.records.writer import RecordWriter

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there a file that is open cannot be removed")
SESSION = Origin(OriginKind.SESSION, "claude", "me")


class Process:
    """A kernel's process as far as its record files go."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory, self.path = directory, directory / "records.sqlite"
        self.told: list[str] = []
        self.writer = RecordWriter.open(self.path, 1 << 30, self.told.append)
        self.starting = Starting(directory)

    def begins(self, serial: int) -> None:
        self.starting.note(Execution(serial, serial, SESSION, "s", "source", 1.0, 1.0))
        self.writer.begin(serial, serial, SESSION, "source", 1.0, 1.0)

    def says(self, serial: int, text: str) -> None:
        self.writer.text(serial, Stream.STDOUT, text)
        self.writer.commit()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path / "1")
    yield made
    made.starting.close()
    made.writer.close()


@pytest.fixture
def files(process: Process) -> Iterator[RecordFiles]:
    made = RecordFiles(process.path)
    made.hold()
    yield made
    made.close()


def text(files: RecordFiles, serial: int = 1) -> str:
    with files.opened() as reader:
        return reader.text(serial, Stream.STDOUT)


@pytest.mark.parametrize("names", [None, ["records.sqlite"], ["records.sqlite-wal"], ["records.sqlite-shm"]])
def test_what_is_written_after_a_removal_is_read(process: Process, files: RecordFiles, names: list[str] | None) -> None:
    process.begins(1)
    process.says(1, "before\n")
    shutil.rmtree(process.directory) if names is None else [(process.directory / name).unlink() for name in names]
    assert text(files) == "before\n"
    process.says(1, "after\n")
    assert text(files) == "before\nafter\n"


def test_a_store_that_the_kernel_has_written_again_is_the_one_that_is_read(
    process: Process, files: RecordFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loommux_kernel.shared.records.disk.LOOK", 0.0)
    monkeypatch.setattr("loommux_kernel.shared.records.disk.QUIET", 0.0)
    process.begins(1)
    process.says(1, "before\n")
    shutil.rmtree(process.directory)
    for n in range(4):
        process.says(1, f"{n}\n")
        assert text(files).endswith(f"{n}\n")
    assert process.path.exists()
    assert RecordReader(process.path).text(1, Stream.STDOUT) == "before\n0\n1\n2\n3\n"
    assert len(process.told) == 1
    assert "those of earlier processes are gone" in process.told[0]


def test_after_a_death_the_records_are_written_again_and_completed(process: Process, files: RecordFiles) -> None:
    process.begins(1)
    process.says(1, "one\n")
    shutil.rmtree(process.directory)
    process.begins(2)  # and dies before it reaches the store
    files.restore()
    finish(process.path, 2.0)
    with files.opened() as reader:
        assert [(r.serial, r.state) for r in reader.executions()] == [(2, "killed"), (1, "killed")]
        assert reader.text(1, Stream.STDOUT) == "one\n"


def test_the_note_tells_what_began_also_when_it_was_removed(process: Process, files: RecordFiles) -> None:
    shutil.rmtree(process.directory)
    assert files.starting() is None
    assert files.tells_what_began()
    process.begins(3)
    begun = files.starting()
    assert begun is not None
    assert begun.serial == 3


def test_a_note_that_was_gone_before_it_was_held_tells_nothing_for_sure(process: Process) -> None:
    process.begins(1)
    shutil.rmtree(process.directory)
    files = RecordFiles(process.path)
    files.hold()
    assert not files.tells_what_began()
    files.close()


def test_a_note_has_its_room_from_the_start_and_a_long_source_is_cut_when_there_is_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    write = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) > RESERVED:
            return write(fd, data[:RESERVED])
        return write(fd, data)

    starting = Starting(tmp_path)
    assert (tmp_path / "starting").stat().st_size >= RESERVED
    monkeypatch.setattr(os, "write", full)
    starting.note(Execution(7, 7, SESSION, "s", "\U0001f600" * 50_000, 1.0, 1.0))
    monkeypatch.undo()
    starting.close()
    files = RecordFiles(tmp_path / "records.sqlite")
    files.hold()
    begun = files.starting()
    assert begun is not None
    assert (begun.serial, set(begun.source)) == (7, {"\U0001f600"})
    assert files.tells_what_began()
    files.close()
