"""Deaths, disks and forks: what was committed stays readable, and no fault reaches the caller (contract 7)."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loommux_kernel.shared.protocol import Origin, OriginKind, State, Stream
from loommux_kernel.shared.records.disk import RETRY
from loommux_kernel.shared.records.reader import RecordReader
from loommux_kernel.shared.records.writer import WAITING_BYTES, RecordWriter

resource = pytest.importorskip("resource")
SESSION = Origin(OriginKind.SESSION, "session", "caller")
BUDGET = 1 << 30

WRITE_UNTIL_KILLED = """
import os, random, signal, sys
from pathlib import Path
from loommux_kernel.shared.protocol import Origin, OriginKind, Stream
from loommux_kernel.shared.records.reader import RecordReader
from loommux_kernel.shared.records.writer import RecordWriter

def child(path, serial, pipe):
    writer = RecordWriter.open(path, 1 << 30, lambda text: os._exit(9))
    writer.begin(serial, serial, Origin(OriginKind.SESSION, "s", "c"), "source", 1.0, 1.0)
    n = 0
    while True:
        for _ in range(random.choice([1, 50, 5000])):
            n += 1
            writer.text(serial, Stream.STDOUT, f"line {n}\\n")
        if random.random() < 0.3:
            writer.display(serial, kind="display", number=1, bundle={"text/plain": f"line {n + 1}"}, metadata={},
                           display_id=None)
            n += 1
        writer.commit()
        os.write(pipe, b"%9d\\n" % n)

path = Path(sys.argv[1])
for serial in range(1, 101):
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        child(path, serial, theirs)
    os.close(theirs)
    acknowledged = os.read(ours, 10)
    for _ in range(random.randrange(0, 12)):
        acknowledged = os.read(ours, 10)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), status
    while rest := os.read(ours, 10):
        acknowledged = rest
    os.close(ours)
    reader = RecordReader(path)
    text = reader.text(serial, Stream.COMBINED)
    count = text.count("\\n")
    assert count >= int(acknowledged), (count, acknowledged)
    assert text == "".join(f"line {n}\\n" for n in range(1, count + 1))
    assert reader.by_serial(serial).counts[Stream.COMBINED].lines == count
    assert reader.query("PRAGMA integrity_check") == [("ok",)]
    reader.close()
print("sound")
"""


def test_a_hundred_kills_in_the_middle_of_writing_lose_nothing_that_was_committed(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    done = subprocess.run(
        [sys.executable, "-c", WRITE_UNTIL_KILLED, str(path)], capture_output=True, text=True, timeout=110
    )
    assert done.stdout == "sound\n", done.stderr
    reader = RecordReader(path)
    assert [r.serial for r in reader.executions(limit=200)] == list(range(100, 0, -1))
    reader.close()


WRITE_STEADILY = """
import sys, time
from pathlib import Path
from loommux_kernel.shared.protocol import Origin, OriginKind, Stream
from loommux_kernel.shared.records.writer import RecordWriter

writer = RecordWriter.open(Path(sys.argv[1]), 1 << 30, lambda text: sys.exit(text))
writer.begin(1, 1, Origin(OriginKind.SESSION, "s", "c"), "source", 1.0, 1.0)
for n in range(0, 60_000, 60):
    writer.text(1, Stream.STDOUT, "".join(f"line {n + k}\\n" for k in range(60)))
    writer.text(1, Stream.STDERR, "\\r%d" % n)
    writer.commit()
    if not n:
        print("begun", flush=True)
writer.close()
"""


def test_a_reader_in_another_process_sees_whole_transactions_while_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    command = [sys.executable, "-c", WRITE_STEADILY, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writing:
        assert writing.stdout is not None
        assert writing.stdout.readline() == "begun\n"
        reader, looks, count, ended = RecordReader(path), 0, 0, False
        while not ended:
            ended = writing.poll() is not None
            looks += 1
            record = reader.by_serial(1)
            assert record is not None
            count = record.counts[Stream.STDOUT].lines
            assert count % 60 == 0
            text = reader.text(1, Stream.STDOUT)
            assert text == "".join(f"line {n}\n" for n in range(text.count("\n")))
            assert text.count("\n") >= count
            assert reader.lines(1, Stream.STDOUT, count - 3, count) == [f"line {n}" for n in range(count - 4, count)]
        reader.close()
    assert (writing.returncode, looks > 3, count) == (0, True, 60_000)


# -- disks ---------------------------------------------------------------------


class Troubled:
    """A writer and what it said about its trouble."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told: list[str] = []
        self.writer = RecordWriter.open(path, BUDGET, self.told.append)
        self.writer.begin(1, 1, SESSION, "source", 1.0, 1.0)
        self.writer.commit()

    def write(self, text: str) -> None:
        self.writer.text(1, Stream.STDOUT, text)
        self.writer.commit()

    def recover(self) -> None:
        """Commit until it works again."""
        deadline = time.monotonic() + 100 * RETRY
        while self.writer.waiting and time.monotonic() < deadline:
            self.writer.commit()
        assert not self.writer.waiting

    def text(self) -> str:
        reader = RecordReader(self.path)
        try:
            return reader.text(1, Stream.STDOUT)
        finally:
            reader.close()


@pytest.fixture
def troubled(tmp_path: Path) -> Iterator[Troubled]:
    troubled = Troubled(tmp_path / "records.db")
    yield troubled
    troubled.writer.close()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """The store belongs to somebody else."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("ROLLBACK")
    connection.close()


@contextlib.contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_locked_store_is_told_once_and_written_when_it_is_free(troubled: Troubled) -> None:
    with locked(troubled.path):
        for n in range(5):
            troubled.write(f"{n}\n")
            assert troubled.writer.counts(1).lines == n + 1
    troubled.recover()
    assert troubled.text() == "0\n1\n2\n3\n4\n"
    assert len(troubled.told) == 1
    assert troubled.told[0].startswith(
        "Records are incomplete: the record store cannot be written (database is locked)"
    )


def test_a_full_disk_stops_nothing_and_is_taken_up_again_when_there_is_room(troubled: Troubled) -> None:
    text = "".join(f"line {n}\n" for n in range(200_000))
    with full_disk(600_000):
        for at in range(0, len(text), 100_000):
            troubled.write(text[at : at + 100_000])
    assert len(troubled.told) == 1
    troubled.recover()
    assert troubled.text() == text
    connection = sqlite3.connect(troubled.path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_a_store_that_cannot_be_opened_begins_when_it_can(tmp_path: Path) -> None:
    obstacle = tmp_path / "later"
    obstacle.write_text("no directory")
    troubled = Troubled(obstacle / "records.db")
    troubled.write("early\n")
    assert len(troubled.told) == 1
    obstacle.unlink()
    troubled.recover()
    troubled.write("on time\n")
    assert troubled.text() == "early\non time\n"
    troubled.writer.close()


def test_what_waits_for_the_disk_is_bounded_and_its_loss_is_recorded(troubled: Troubled) -> None:
    troubled.write("first\n")
    lines = [f"line {n} {'x' * 90}\n" for n in range(300_000)]
    with locked(troubled.path):
        for at in range(0, len(lines), 30_000):
            troubled.write("".join(lines[at : at + 30_000]))
            assert troubled.writer._executions[1].transcript.unsaved() <= WAITING_BYTES
            for serial in range(2 + at, 202 + at):
                troubled.writer.begin(serial, None, SESSION, "source", 1.0, 1.0)
                troubled.writer.end(serial, State.COMPLETED, 2.0, None, None)
        assert len(troubled.writer._dirty) < 1_000
    troubled.recover()
    reader = RecordReader(troubled.path)
    assert reader.tail(1, Stream.STDOUT, 1_000) == [line[:-1] for line in lines[-1_000:]]
    record = reader.by_serial(1)
    assert record is not None
    assert record.counts[Stream.STDOUT].lines == 300_001
    assert record.dropped == "some output was lost because the record store could not be written"
    assert any(line.endswith("are gone]") for line in reader.lines(1, Stream.STDOUT, 1, 300_001))
    reader.close()


def test_late_output_while_the_store_cannot_be_read_spoils_no_record(troubled: Troubled) -> None:
    troubled.write("first\n")
    troubled.writer.end(1, State.COMPLETED, 2.0, None, None)
    for serial in range(2, 200):
        troubled.writer.begin(serial, serial, SESSION, "source", 1.0, 1.0)
        troubled.writer.end(serial, State.COMPLETED, 2.0, None, None)
        troubled.writer.commit()
    with locked(troubled.path):
        troubled.writer.notice(None, "", "text", 1.0)
        troubled.writer.commit()
        troubled.write("lost\n")
        troubled.writer.update_display(1, "unknown", {"text/plain": "lost"}, {})
        assert troubled.writer.late_lines(1) == 0
    troubled.recover()
    troubled.write("late\n")
    assert troubled.text() == "first\nlate\n"
    reader = RecordReader(troubled.path)
    record = reader.by_serial(1)
    assert record is not None and (record.source, record.late_lines) == ("source", 1)
    reader.close()


def test_a_long_line_that_waits_for_the_disk_is_bounded_too(troubled: Troubled) -> None:
    with locked(troubled.path):
        for _ in range(30):
            troubled.write("x" * 1_000_000)
        assert troubled.writer._executions[1].transcript.unsaved() <= WAITING_BYTES
    troubled.write("end\n")
    troubled.recover()
    assert troubled.writer.counts(1).characters == 30_000_004
    assert troubled.text().endswith("xxxend\n")


# -- forks -----------------------------------------------------------------------


def test_a_forked_child_touches_nothing(troubled: Troubled) -> None:
    troubled.write("parent\n")
    pid = os.fork()
    if not pid:
        troubled.writer.text(1, Stream.STDOUT, "child\n")
        troubled.writer.traceback(1, "child\n")
        troubled.writer.commit()
        troubled.writer.close()
        os._exit(0 if troubled.writer.body(1) is None and not troubled.writer.display(
            1, kind="display", number=1, bundle={}, metadata={}, display_id=None
        ) else 1)  # fmt: skip
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    troubled.write("parent again\n")
    assert troubled.text() == "parent\nparent again\n"


FORK_AMID = """
import os, sys, threading, time
from pathlib import Path
from loommux_kernel.shared.protocol import Origin, OriginKind, Stream
from loommux_kernel.shared.records.reader import RecordReader
from loommux_kernel.shared.records.writer import RecordWriter

path = Path(sys.argv[1])
writer = RecordWriter.open(path, 1 << 30, sys.exit)
writer.begin(1, 1, Origin(OriginKind.SESSION, "s", "c"), "source", 1.0, 1.0)
writer.commit()
reader = RecordReader(path)
stop = threading.Event()

def write():
    while not stop.is_set():
        writer.text(1, Stream.STDOUT, "x" * 99_999 + "\\n")
        writer.commit()

thread = threading.Thread(target=write)
thread.start()
for _ in range(20):
    pid = os.fork()
    if not pid:
        sys.exit(0)
    deadline = time.monotonic() + 30
    while not (done := os.waitpid(pid, os.WNOHANG))[0]:
        assert time.monotonic() < deadline, "the child hangs"
        time.sleep(0.005)
    assert done[1] == 0, done
stop.set()
thread.join()
text = reader.text(1, Stream.STDOUT)
assert set(text.split("\\n")) == {"x" * 99_999, ""}
print("sound")
"""


def test_children_forked_in_the_middle_of_writing_end_and_leave_the_store_sound(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK_AMID, str(tmp_path / "records.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.stdout == "sound\n", done.stderr
