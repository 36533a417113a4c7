"""How much output a store keeps (contract 7)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loommux_kernel.shared.lines import Query
from loommux_kernel.shared.protocol import Counts, Origin, OriginKind, State, Stream
from loommux_kernel.shared.record_types import ExecutionRecord
from loommux_kernel.shared.records.kernel_budget import retain
from loommux_kernel.shared.records.reader import RecordReader
from loommux_kernel.shared.records.writer import RecordWriter

SESSION = Origin(OriginKind.SESSION, "session", "caller")
BUDGET = 8 << 20
MIB = 1 << 20
LINE = "x" * 92


def numbered(first: int, last: int) -> str:
    """Lines of a hundred bytes each."""
    return "".join(f"{n:7d} {LINE}\n" for n in range(first, last + 1))


class Store:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.told: list[str] = []
        self.writer = RecordWriter.open(path, BUDGET, self.told.append)
        self.reader = RecordReader(path)

    def run(self, serial: int, mebibytes: int, told: bool) -> None:
        self.writer.begin(serial, serial, SESSION, "source", 1.0, 1.0)
        self.say(serial, mebibytes)
        self.writer.end(serial, State.COMPLETED, 2.0, None, None)
        if told:
            self.writer.mark_told(serial)
        self.writer.commit()

    def say(self, serial: int, mebibytes: int, stream: Stream = Stream.STDOUT) -> None:
        for _ in range(mebibytes):
            count = self.writer.counts(serial, stream).lines
            self.writer.text(serial, stream, numbered(count + 1, count + 10_000))
            self.writer.commit()

    def record(self, serial: int) -> ExecutionRecord:
        record = self.reader.by_serial(serial)
        assert record is not None
        return record

    def stored(self) -> int:
        return (
            self.reader.query("SELECT ifnull(sum(length(text)), 0) FROM chunks")[0][0]
            + (self.reader.query("SELECT ifnull(sum(size), 0) FROM parts")[0][0])
        )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "records.db")
    yield store
    store.reader.close()
    store.writer.close()


def test_the_oldest_finished_bodies_that_were_told_go_first(store: Store) -> None:
    store.run(1, 2, told=False)
    for serial in range(2, 7):
        store.run(serial, 2, told=True)
    assert [store.record(n).dropped is None for n in range(1, 7)] == [True, False, False, True, True, True]
    dropped = store.record(2)
    assert dropped.dropped == "the output was dropped to keep the records within 8.0 MiB"
    assert (dropped.source, dropped.counts[Stream.STDOUT]) == ("source", Counts(20_000, 2_020_000, 2_020_000))
    assert store.reader.lines(2, Stream.STDOUT, 5, 9) == ["[lines 5–9 are gone]"]
    assert store.reader.text(2, Stream.COMBINED) == "[lines 1–20,000 are gone]\n"
    assert store.reader.tail(2, Stream.COMBINED, 5) == ["[lines 19,996–20,000 are gone]"]
    assert store.reader.search(2, Stream.COMBINED, Query.build("x"), 0, 0).matching_lines == 0
    assert store.reader.text(1, Stream.STDOUT) == numbered(1, 20_000)
    assert store.told == []


def test_bundles_count_and_go_with_the_body(store: Store) -> None:
    store.writer.begin(1, 1, SESSION, "source", 1.0, 1.0)
    store.writer.display(1, kind="display", number=1, bundle={"image/png": "x" * 5 * MIB}, metadata={}, display_id=None)
    store.writer.end(1, State.COMPLETED, 2.0, None, None)
    store.writer.mark_told(1)
    store.run(2, 3, told=True)
    store.run(3, 3, told=True)
    assert store.reader.displays(1) == []
    assert [store.record(n).dropped is None for n in (1, 2, 3)] == [False, True, True]


def test_what_nobody_was_told_of_loses_only_its_middle_and_that_is_told(store: Store) -> None:
    for serial in range(1, 5):
        store.run(serial, 3, told=False)
    record = store.record(1)
    assert record.dropped is not None and record.dropped.startswith("lines ")
    lines = store.reader.lines(1, Stream.STDOUT, 1, 40_000)
    assert lines[0].split()[0] == "1" and lines[-1].split()[0] == "30000"
    assert 10_000 < len(lines) < 30_000
    assert len(store.told) == 1 and store.told[0].startswith("Records are incomplete: output that nobody was told of")
    assert store.stored() < BUDGET + MIB


def test_a_running_execution_over_half_the_budget_loses_its_middle(store: Store) -> None:
    store.run(1, 1, told=True)
    store.writer.begin(2, 2, SESSION, "source", 1.0, 1.0)
    store.say(2, 30)
    assert store.record(1).dropped is None
    total = 30 * 10_000
    record = store.record(2)
    assert record.counts[Stream.STDOUT].lines == total
    assert store.stored() < BUDGET // 2 + 2 * MIB
    gone = [line for line in store.reader.lines(2, Stream.STDOUT, 1, total) if line.endswith("are gone]")]
    assert len(gone) == 1
    assert record.dropped == f"{gone[0][1:-10]} were dropped to keep the records within 8.0 MiB"
    for line in (1, 1_000, total - 20_000, total):
        assert store.reader.lines(2, Stream.COMBINED, line, line)[0].split()[0] == str(line)
    assert [row[0] for row in store.reader.search(2, Stream.STDOUT, Query.build(f"^ *{total} "), 0, 0).rows] == [total]


def test_a_running_execution_loses_the_middle_of_each_of_its_streams(store: Store) -> None:
    store.writer.begin(1, 1, SESSION, "source", 1.0, 1.0)
    for _ in range(10):
        store.say(1, 1, Stream.STDOUT)
        store.say(1, 1, Stream.STDERR)
    assert store.stored() < BUDGET // 2 + 2 * MIB
    for stream, total in ((Stream.STDOUT, 100_000), (Stream.STDERR, 100_000), (Stream.COMBINED, 200_000)):
        lines = store.reader.lines(1, stream, 1, total)
        # The beginning of stdout is the combined stream's, and lost with it.
        assert len([line for line in lines if line.endswith("are gone]")]) == (2 if stream is Stream.STDOUT else 1)
        assert (lines[0].split()[0], lines[-1].split()[0]) == ("1", "100000")
        assert store.record(1).counts[stream].lines == total


def test_a_line_longer_than_the_budget_loses_its_middle(store: Store) -> None:
    store.writer.begin(1, 1, SESSION, "source", 1.0, 1.0)
    for n in range(20):
        store.writer.text(1, Stream.STDOUT, f"{n:02d}" * (MIB // 2))
        store.writer.commit()
    assert store.stored() < BUDGET // 2 + 2 * MIB
    store.writer.text(1, Stream.STDOUT, "end\n")
    store.writer.commit()
    text = store.reader.text(1, Stream.STDOUT)
    assert text.startswith("000000") and text.endswith("1919end\n")
    assert " characters are gone]…" in text
    assert store.record(1).counts[Stream.STDOUT] == Counts(1, 20 * MIB + 4, 20 * MIB + 4)
    assert store.record(1).dropped == "the middle of the output was dropped to keep the records within 8.0 MiB"


def test_ended_processes_keep_half_of_a_kernels_budget_together_the_newest_first(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("oldest", "middle", "newest", "missing")]
    for path in paths[:3]:
        ended = Store(path)
        for serial in (1, 2, 3):
            ended.run(serial, 1, told=True)
        ended.writer.close()
        ended.reader.close()
    kept = retain(reversed(paths), 10 * MIB)
    dropped = []
    for path in paths[:3]:
        reader = RecordReader(path)
        dropped.append([record.dropped is not None for record in reversed(reader.executions())])
        gone = [record.dropped for record in reader.executions() if record.dropped]
        assert set(gone) <= {"the output was dropped to keep the records within 10.0 MiB"}
        reader.close()
    assert dropped == [[True, True, True], [True, False, False], [False, False, False]]
    assert 4 * 1_010_000 <= kept <= 5 * MIB
    assert retain(reversed(paths), 10 * MIB) == kept


def test_what_nobody_was_told_of_keeps_its_ends_also_in_an_ended_process(tmp_path: Path) -> None:
    ended = Store(tmp_path / "ended")
    ended.run(1, 6, told=False)
    ended.writer.close()
    kept = retain([ended.path], 4 * MIB)
    lines = ended.reader.lines(1, Stream.STDOUT, 1, 60_000)
    assert (lines[0].split()[0], lines[-1].split()[0]) == ("1", "60000")
    assert kept < 3 * MIB
    ended.reader.close()
