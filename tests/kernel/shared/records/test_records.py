"""What the record store keeps: contract 3.5 and 7, read back while the writer goes on."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loommux_kernel.shared.lines import Query
from loommux_kernel.shared.protocol import Counts, Origin, OriginKind, State, Stream
from loommux_kernel.shared.records.reader import RecordReader
from loommux_kernel.shared.records.stream_log import CHUNK
from loommux_kernel.shared.records.writer import RecordWriter
from loommux_kernel.text.long_row import PART
from loommux_kernel.text.terminal import Terminal

SESSION = Origin(OriginKind.SESSION, "session claude-1a2b3c4d", "caller")
BUDGET = 1 << 30


def fail(text: str) -> None:
    raise AssertionError(text)


class Store:
    """A writer and a reader of one store."""

    def __init__(self, path: Path, budget: int = BUDGET) -> None:
        self.path = path
        self.writer = RecordWriter.open(path, budget, fail)
        self.reader = RecordReader(path)

    def begin(self, serial: int = 1, source: str = "source") -> None:
        self.writer.begin(serial, serial, SESSION, source, 10.0, 11.0)

    def end(self, serial: int = 1, state: State = State.COMPLETED) -> None:
        self.writer.end(serial, state, 20.0, None, None)

    def show(self, serial: int, bundle: dict[str, Any], display_id: str | None = None, kind: str = "display") -> int:
        return self.writer.display(serial, kind=kind, number=serial, bundle=bundle, metadata={}, display_id=display_id)

    def text(self, stream: Stream = Stream.COMBINED, serial: int = 1) -> str:
        self.writer.commit()
        return self.reader.text(serial, stream)

    def texts(self, serial: int = 1) -> dict[Stream, str]:
        return {stream: text for stream in Stream if (text := self.text(stream, serial))}

    def stored(self, table: str) -> list[Any]:
        with sqlite3.connect(self.path) as connection:
            rows = connection.execute(f"SELECT * FROM {table}").fetchall()
        connection.close()
        return rows

    def close(self) -> None:
        self.reader.close()
        self.writer.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "records.db")
    yield store
    store.close()


# -- executions --------------------------------------------------------------


def test_an_execution_is_read_back_as_it_began_and_ended(store: Store) -> None:
    store.writer.begin(7, 5, SESSION, "1/0", 10.0, 11.0)
    store.writer.commit()
    record = store.reader.by_number(5)
    assert record is not None
    assert (record.serial, record.number, record.origin, record.source) == (7, 5, SESSION, "1/0")
    assert (record.state, record.completed_at, record.updated_at) == (State.RUNNING, None, 11.0)
    assert record.counts == dict.fromkeys(Stream, Counts())
    store.writer.end(7, State.ERROR, 12.5, "ZeroDivisionError", "division by zero")
    store.writer.commit()
    record = store.reader.by_serial(7)
    assert record is not None
    assert (record.state, record.completed_at, record.updated_at) == (State.ERROR, 12.5, 12.5)
    assert (record.ename, record.evalue, record.dropped) == ("ZeroDivisionError", "division by zero", None)


def test_executions_come_newest_first_in_pages(store: Store) -> None:
    for serial in range(1, 8):
        store.begin(serial)
    store.writer.commit()
    assert [r.serial for r in store.reader.executions()] == [7, 6, 5, 4, 3]
    assert [r.serial for r in store.reader.executions(limit=3, before=3)] == [2, 1]


def test_of_several_executions_with_one_number_the_last_is_meant(store: Store) -> None:
    store.writer.begin(1, 3, SESSION, "first", 1.0, 1.0)
    store.writer.begin(2, 3, SESSION, "second", 1.0, 1.0)
    store.writer.begin(3, None, SESSION, "uncounted", 1.0, 1.0)
    store.writer.commit()
    record = store.reader.by_number(3)
    assert record is not None and record.source == "second"
    assert store.reader.by_number(4) is None
    assert store.reader.by_serial(4) is None


def test_nothing_is_visible_before_the_commit(store: Store) -> None:
    store.begin()
    store.writer.text(1, Stream.STDOUT, "text")
    assert store.reader.executions() == []
    store.writer.commit()
    assert [r.counts[Stream.STDOUT] for r in store.reader.executions()] == [Counts(1, 4, 4)]


def test_what_is_no_valid_unicode_is_stored_as_visible_escapes(store: Store) -> None:
    store.begin(source="caf\udce9")
    store.writer.end(1, State.ERROR, 2.0, "E\ud800", "\udfff")
    store.writer.notice(1, "", "\udce9", 3.0)
    store.show(1, {"text/plain": "\udce9"}, display_id="\udce9")
    store.writer.update_display(1, "\udce9", {"text/plain": "new\udce9"}, {})
    store.writer.commit()
    record = store.reader.by_serial(1)
    assert record is not None
    assert (record.source, record.ename, record.evalue) == ("caf\\udce9", "E\\ud800", "\\udfff")
    assert store.text(Stream.RESULT) == "new\\udce9\n"


def test_the_files_are_private(store: Store) -> None:
    store.begin()
    store.writer.commit()
    files = list(store.path.parent.glob("records.db*"))
    assert len(files) == 3
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_a_reader_of_no_store_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RecordReader(tmp_path / "none.db")
    (tmp_path / "empty.db").touch()
    with pytest.raises(FileNotFoundError):
        RecordReader(tmp_path / "empty.db")


def test_notices_are_read_in_order_from_any_place(store: Store) -> None:
    store.writer.notice(1, "", "one", 1.0)
    store.writer.notice(None, "build", "two", 2.0)
    store.writer.commit()
    first, second = store.reader.notices()
    assert (first.serial, first.text, second.serial, second.label, second.at) == (1, "one", None, "build", 2.0)
    assert store.reader.notices(after=first.id) == [second]


# -- streams -------------------------------------------------------------------


def test_combined_holds_everything_in_order_and_each_stream_its_own(store: Store) -> None:
    store.begin(5)
    store.writer.text(5, Stream.STDOUT, "out 1\n")
    store.writer.text(5, Stream.STDERR, "err 1\n")
    store.writer.text(5, Stream.STDOUT, "out 2")
    store.show(5, {"text/plain": "shown\nin two lines"})
    store.show(5, {"text/html": "<b>"})
    store.writer.text(5, Stream.STDERR, "half ")
    store.show(5, {"text/plain": "42"}, kind="result")
    store.writer.text(5, Stream.STDERR, "line")
    store.writer.traceback(5, "\x1b[31mValueError\x1b[0m: no\n")
    assert store.texts(5) == {
        Stream.COMBINED: (
            "out 1\nerr 1\nout 2\nshown\nin two lines\n[display 2: text/html 3 B; no text form]\nhalf \n"
            "Out[5]: 42\nline\nValueError: no\n"
        ),
        Stream.STDOUT: "out 1\nout 2",
        Stream.STDERR: "err 1\nhalf line",
        Stream.RESULT: "shown\nin two lines\n[display 2: text/html 3 B; no text form]\n42\n",
        Stream.TRACEBACK: "ValueError: no\n",
    }


def test_a_result_without_number_has_no_prefix(store: Store) -> None:
    store.begin()
    store.writer.display(1, kind="result", number=None, bundle={"text/plain": "4"}, metadata={}, display_id=None)
    assert store.texts() == {Stream.COMBINED: "4\n", Stream.RESULT: "4\n"}


def test_text_of_a_single_stream_is_stored_once(store: Store) -> None:
    store.begin()
    text = "".join(f"line {n}\n" for n in range(100_000))
    store.writer.text(1, Stream.STDOUT, text)
    assert store.text(Stream.STDOUT) == store.text() == text
    assert len(store.stored("streams")) == 1
    store.writer.traceback(1, "Error\n")
    store.writer.text(1, Stream.STDOUT, "more\n" * 100)
    assert store.text(Stream.STDOUT) == text + "more\n" * 100
    assert store.text() == text + "Error\n" + "more\n" * 100
    sizes = {stream: sum(row[4] for row in store.stored("chunks") if row[1] == stream) for stream in (0, 1)}
    assert sizes[1] < 1_000 < sizes[0]
    assert store.reader.lines(1, Stream.STDOUT, 99_999, 100_002) == ["line 99998", "line 99999", "more", "more"]


def test_counts_last_line_and_body_need_no_commit(store: Store) -> None:
    store.begin()
    assert store.writer.body(1) == ""
    assert store.writer.last_line(1) == ""
    store.writer.text(1, Stream.STDOUT, "é\n" + "x" * 300 + "\n  \n")
    assert store.writer.counts(1) == store.writer.counts(1, Stream.STDOUT) == Counts(3, 306, 307)
    assert store.writer.counts(1, Stream.STDERR) == Counts()
    assert store.writer.last_line(1) == "x" * 200
    assert store.writer.body(1) == "é\n" + "x" * 300 + "\n  \n"
    store.writer.text(1, Stream.STDOUT, "y\n" * 3_000)
    assert store.writer.body(1) is None


def test_a_body_of_many_short_lines_travels_whole(store: Store) -> None:
    store.begin()
    for n in range(900):
        store.writer.text(1, Stream.STDOUT, f"{n}\n")
        store.writer.commit()
    assert store.writer.body(1) == store.text() == "".join(f"{n}\n" for n in range(900))


@pytest.mark.parametrize("drain", [10, 1_000, 100_000])
def test_lines_are_read_from_anywhere_however_they_were_drained(store: Store, drain: int) -> None:
    store.begin()
    total = 2_000 if drain == 10 else 40_000
    lines = [f"line {n} " + "é" * (n % 7) for n in range(1, total + 1)]
    text = "".join(f"{line}\n" for line in lines)
    for at in range(0, len(text), drain * 10):
        store.writer.text(1, Stream.STDOUT, text[at : at + drain * 10])
        store.writer.commit()
    assert store.text() == text
    read = store.reader
    for first, last in (
        (1, 20),
        (total // 2, total // 2 + 19),
        (total - 80, total - 40),
        (total - 19, total),
        (1, total),
    ):
        assert read.lines(1, Stream.STDOUT, first, last) == lines[first - 1 : last]
    assert read.lines(1, Stream.STDOUT, total, total + 50) == lines[-1:]
    assert read.lines(1, Stream.STDOUT, total + 1, total + 50) == []
    assert read.lines(1, Stream.STDERR, 1, 5) == read.lines(2, Stream.STDOUT, 1, 5) == []
    assert read.tail(1, Stream.COMBINED, 300) == lines[-300:]
    result = read.search(1, Stream.COMBINED, Query.build(f"line {total - 500} "), 1, 1)
    assert [n for n, *_ in result.rows] == [total - 501, total - 500, total - 499]
    assert result.total_lines == total
    record = read.by_serial(1)
    assert record is not None
    assert record.counts[Stream.STDOUT] == Counts(total, len(text), len(text.encode()))


def test_small_drains_are_merged_into_chunks(store: Store) -> None:
    store.begin()
    for n in range(3_000):
        store.writer.text(1, Stream.STDOUT, f"{n} {'x' * 94}\n")
        store.writer.commit()
    chunks = store.stored("chunks")
    assert len([c for c in chunks if c[4] >= CHUNK]) == 4
    assert len(chunks) < 1_000
    assert store.text().count("\n") == 3_000


def test_the_tail_can_leave_out_blank_lines(store: Store) -> None:
    store.begin()
    store.writer.text(1, Stream.STDOUT, "one\n\n two\n" + "\n  \n" * 500 + "three\n\n")
    store.writer.commit()
    assert store.reader.tail(1, Stream.COMBINED, 3, nonblank=True) == ["one", " two", "three"]
    assert store.reader.tail(1, Stream.COMBINED, 2) == ["three", ""]
    assert store.reader.tail(1, Stream.COMBINED, 5, nonblank=True) == ["one", " two", "three"]
    assert store.reader.tail(2, Stream.COMBINED, 5) == []


# -- long lines ------------------------------------------------------------------


def test_a_long_line_is_read_whole_or_clipped_while_it_grows_and_after(store: Store) -> None:
    store.begin()
    whole = ""
    store.writer.text(1, Stream.STDOUT, "first\n")
    for n in range(100):
        piece = f"{n:04d}é" * 1_000
        whole += piece
        store.writer.text(1, Stream.STDOUT, piece)
        store.writer.commit()
    end = ""
    for more in ("", "\nlast\n", "x\n" * 100):
        store.writer.text(1, Stream.STDOUT, more)
        end += more
        assert store.text() == f"first\n{whole}{end}"
        assert store.reader.lines(1, Stream.STDOUT, 1, 2) == ["first", whole]
        clipped = f"{whole[:20]}…[499,980 chars omitted]"
        assert store.reader.lines(1, Stream.STDOUT, 2, 2, max_chars=20) == [clipped]
        assert store.writer.counts(1).utf8_bytes == len(store.text().encode())
    assert store.reader.search(1, Stream.STDOUT, Query.build("0099é$"), 0, 0).matching_lines == 1


def test_a_long_line_is_not_written_again_when_it_grows(store: Store) -> None:
    store.begin()
    store.writer.text(1, Stream.STDOUT, "x" * (4 * PART))
    store.writer.commit()
    before = {row[:4]: row[5] for row in store.stored("parts")}
    store.writer.text(1, Stream.STDOUT, "y" * 10)
    rows = store.writer._executions[1].rows(0.0)
    assert sum(len(value) for row in rows for value in row if isinstance(value, str)) < 2 * PART
    store.writer.commit()
    assert len(store.stored("parts")) == len(before) + 1


def test_going_back_in_a_long_line_overwrites_it(store: Store) -> None:
    store.begin()
    store.writer.text(1, Stream.STDOUT, "x" * 100_000)
    store.writer.commit()
    store.writer.text(1, Stream.STDOUT, "\rABC")
    assert store.text() == "ABC" + "x" * 99_997
    store.writer.text(1, Stream.STDOUT, "\x1b[50000G\x1b[K!")
    assert store.text() == "ABC" + "x" * 49_996 + "!"
    store.writer.text(1, Stream.STDOUT, "\x1b[2K\rshort\n")
    assert store.text() == "short\n"
    assert store.stored("parts") == []


def test_blanks_at_the_end_of_a_long_line_that_was_drawn_over_are_not_stored(store: Store) -> None:
    store.begin()
    store.writer.text(1, Stream.STDOUT, "x" * 100_000 + "     \rABC")
    assert store.text() == "ABC" + "x" * 99_997
    assert store.writer.counts(1).characters == 100_000
    store.writer.text(1, Stream.STDOUT, "\n")
    assert store.text() == "ABC" + "x" * 99_997 + "\n"


def test_streams_part_in_the_middle_of_a_long_line(store: Store) -> None:
    store.begin()
    store.writer.text(1, Stream.STDOUT, "x" * 100_000)
    store.writer.text(1, Stream.STDERR, "err")
    store.writer.text(1, Stream.STDOUT, "\rABC")
    assert store.text(Stream.STDOUT) == "ABC" + "x" * 99_997
    assert store.text() == "ABC" + "x" * 99_997 + "err"
    store.show(1, {"text/plain": "shown"})
    store.writer.text(1, Stream.STDOUT, "\x1b[K")
    assert store.text(Stream.STDOUT) == "ABC"
    assert store.text() == "ABC" + "x" * 99_997 + "err\nshown\n"


# -- displays --------------------------------------------------------------------


def places(store: Store, serial: int = 1) -> list[tuple[int, int]]:
    store.writer.commit()
    return [(d.ordinal, d.line) for d in store.reader.displays(serial)]


def test_displays_have_ordinals_and_places(store: Store) -> None:
    store.begin()
    store.writer.text(1, Stream.STDOUT, "before")
    assert store.show(1, {"text/plain": "a\nb", "image/png": "aGk="}) == 1
    store.writer.text(1, Stream.STDOUT, "between\n")
    assert (
        store.writer.display(
            1, kind="result", number=1, bundle={"text/plain": "4"}, metadata={"detail": "low"}, display_id="x"
        )
        == 2
    )
    assert places(store) == [(1, 3), (2, 5)]
    first, second = store.reader.displays(1)
    assert (first.kind, first.bundle, first.display_id) == (
        "display",
        {"text/plain": "a\nb", "image/png": "aGk="},
        None,
    )
    assert (second.kind, second.metadata, second.display_id) == ("result", {"detail": "low"}, "x")
    assert store.reader.lines(1, Stream.COMBINED, 1, second.line)[-1] == "Out[1]: 4"


def test_an_update_replaces_text_and_bundle_where_they_are_and_moves_what_follows(store: Store) -> None:
    store.begin()
    store.show(1, {"text/plain": "one"}, "a")
    store.show(1, {"text/plain": "two"}, "b")
    store.writer.text(1, Stream.STDOUT, "after\n")
    store.writer.commit()
    store.writer.update_display(1, "a", {"text/plain": "1\n1\n1"}, {})
    assert store.text() == "1\n1\n1\ntwo\nafter\n"
    assert places(store) == [(1, 3), (2, 4)]
    store.writer.update_display(1, "a", {"image/png": "x"}, {"m": 1})
    assert store.text(Stream.RESULT) == "[display 1: image/png 1 B; no text form]\ntwo\n"
    assert places(store) == [(1, 1), (2, 2)]
    assert store.reader.displays(1)[0].bundle == {"image/png": "x"}


def test_a_thousand_updates_leave_the_last(store: Store) -> None:
    store.begin()
    store.show(1, {"text/plain": "epoch 0"}, "bar")
    for n in range(1, 1_001):
        store.writer.update_display(1, "bar", {"text/plain": f"epoch {n}"}, {})
        if n % 100 == 0:
            assert store.text() == f"epoch {n}\n"
    assert [d.bundle for d in store.reader.displays(1)] == [{"text/plain": "epoch 1000"}]


def test_an_update_of_a_display_that_has_left_the_screen_is_appended(store: Store) -> None:
    store.begin()
    store.show(1, {"text/plain": "old"}, "a")
    store.writer.text(1, Stream.STDOUT, "x\n" * 80)
    store.writer.update_display(1, "a", {"text/plain": "new"}, {})
    assert store.text() == "old\n" + "x\n" * 80 + "new\n"
    assert store.text(Stream.RESULT) == "new\n"
    assert places(store) == [(1, 82)]


def test_an_update_reaches_the_display_of_an_earlier_execution(store: Store) -> None:
    store.begin(1)
    store.show(1, {"text/plain": "old"}, "a")
    store.end(1)
    store.begin(2)
    store.writer.update_display(2, "a", {"text/plain": "new"}, {})
    assert store.text(serial=1) == "new\n"
    assert store.text(serial=2) == ""
    store.writer.text(1, Stream.STDOUT, "x\n" * 80)
    store.writer.update_display(2, "a", {"text/plain": "newer"}, {})
    assert store.text(serial=2) == "newer\n"
    assert places(store, 1) == []
    assert places(store, 2) == [(1, 1)]
    store.writer.update_display(2, "unknown", {"text/plain": "anew"}, {})
    assert store.text(serial=2) == "newer\nanew\n"


def test_a_clear_erases_text_and_displays(store: Store) -> None:
    store.begin()
    store.writer.text(1, Stream.STDERR, "err\n")
    store.show(1, {"text/plain": "shown"}, "a")
    store.writer.commit()
    store.writer.clear(1, wait=False)
    assert store.texts() == {}
    assert places(store) == []
    assert store.show(1, {"text/plain": "again"}) == 2
    assert store.texts() == {Stream.COMBINED: "again\n", Stream.RESULT: "again\n"}
    store.writer.update_display(1, "a", {"text/plain": "back"}, {})
    assert store.text() == "again\nback\n"


def test_a_waiting_clear_happens_at_the_next_output(store: Store) -> None:
    store.begin()
    for n in range(50):
        store.writer.clear(1, wait=True)
        store.show(1, {"text/plain": f"frame {n}", "image/png": "x"})
        assert store.text() == f"frame {n}\n"
    store.writer.clear(1, wait=True)
    assert store.text() == "frame 49\n"
    assert places(store) == [(50, 1)]
    store.writer.text(1, Stream.STDOUT, "done\n")
    assert store.text() == "done\n"


def test_a_clear_leaves_settled_lines(store: Store) -> None:
    store.begin()
    store.writer.text(1, Stream.STDOUT, "".join(f"{n}\n" for n in range(100)))
    store.writer.clear(1, wait=False)
    store.writer.text(1, Stream.STDOUT, "new\n")
    assert store.text() == "".join(f"{n}\n" for n in range(37)) + "new\n"
    assert store.reader.lines(1, Stream.STDOUT, 37, 38) == ["36", "new"]


# -- late output -------------------------------------------------------------------


def test_output_after_the_end_is_counted_as_late(store: Store) -> None:
    store.begin()
    store.writer.text(1, Stream.STDOUT, "in time\n")
    store.end()
    assert store.writer.late_lines(1) == 0
    store.writer.text(1, Stream.STDOUT, "late\nlater\n")
    assert store.writer.late_lines(1) == 2
    store.writer.commit()
    record = store.reader.by_serial(1)
    assert record is not None
    assert (record.late_lines, record.state, record.completed_at) == (2, State.COMPLETED, 20.0)
    assert abs(record.updated_at - time.time()) < 60


def test_late_output_reaches_an_execution_that_is_no_longer_in_memory(store: Store) -> None:
    store.begin(1)
    store.writer.text(1, Stream.STDOUT, "x\n" * 40_000 + "working 1%")
    store.show(1, {"text/plain": "old"}, "a")
    store.writer.text(1, Stream.STDOUT, "working 2%")
    store.end(1)
    store.writer.text(1, Stream.STDOUT, "\n")
    for serial in range(2, 200):
        store.begin(serial)
        store.writer.text(serial, Stream.STDOUT, f"{serial}\n")
        store.end(serial)
        store.writer.commit()
    assert 1 not in store.writer._executions
    store.writer.text(1, Stream.STDOUT, "late\n\x1b[2A\rdone")
    store.writer.update_display(199, "a", {"text/plain": "new"}, {})
    assert store.text() == "x\n" * 40_000 + "working 1%\nnew\ndoneing 2%\nlate"
    assert store.text(Stream.STDOUT) == "x\n" * 40_000 + "doneing 1%working 2%\nlate"
    assert store.writer.late_lines(1) == 1
    assert places(store) == [(1, 40_002)]


def test_output_of_no_execution_is_kept_but_not_listed(store: Store) -> None:
    store.writer.text(0, Stream.STDERR, "before any cell\n")
    assert store.text(serial=0) == "before any cell\n"
    assert store.reader.executions() == []
    assert store.reader.by_serial(0) is None


# -- everything at once ----------------------------------------------------------------

#: Texts by short names, so that a failing example can be read.
TEXTS = {
    "line": "a\n",
    "word": "bc",
    "back": "\r",
    "words": "long " * 20,
    "up": "\x1b[A",
    "erase": "\x1b[2K",
    "blanks": " " * 50,
    "down": "\n" * 30,
    "screen": "é\n" * 70,
    "long row": "x" * 40_000,
    "flood": "y\n" * 40_000,
}
words = st.sampled_from(sorted(TEXTS))
streams = st.sampled_from([Stream.STDOUT, Stream.STDERR])
operations = st.lists(
    st.one_of(
        st.tuples(st.just("text"), streams, words),
        st.tuples(st.just("display"), st.sampled_from(["shown", "two\nlines", ""]), st.booleans()),
        st.tuples(st.just("traceback"), st.just("Error\n"), st.none()),
        st.tuples(st.just("clear"), st.booleans(), st.none()),
        st.tuples(st.sampled_from(["commit", "reopen", "end"]), st.none(), st.none()),
    ),
    max_size=25,
)


class Model:
    """Five terminals that keep everything."""

    def __init__(self) -> None:
        self.terminals = {stream: Terminal() for stream in Stream}
        self.settled = dict.fromkeys(Stream, "")
        self.clear_waits = False

    def output(self) -> None:
        if self.clear_waits:
            self.clear()

    def clear(self) -> None:
        self.clear_waits = False
        for terminal in self.terminals.values():
            terminal.clear()

    def write(self, stream: Stream, text: str) -> None:
        self.output()
        for each in (stream, Stream.COMBINED):
            self.terminals[each].feed(text)

    def block(self, stream: Stream, text: str, prefix: str = "") -> None:
        self.output()
        self.terminals[stream].block(1, text)
        self.terminals[Stream.COMBINED].block(1, prefix + text)

    def text(self, stream: Stream) -> str:
        for row in self.terminals[stream].take_settled():
            self.settled[stream] += row if isinstance(row, str) else row.text() + "\n"
        return self.settled[stream] + self.terminals[stream].screen()


@settings(deadline=None, max_examples=60)
@given(operations, st.randoms(use_true_random=False))
def test_whatever_happens_the_store_holds_what_the_terminals_hold(operations: list[Any], random: Any) -> None:
    model = Model()
    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory) / "records.db")
        try:  # hypothesis may end an example wherever it draws
            store.begin()
            for name, value, more in operations:
                match name:
                    case "text":
                        store.writer.text(1, value, TEXTS[more])
                        model.write(value, TEXTS[more])
                    case "display":
                        store.show(1, {"text/plain": value}, kind="result" if more else "display")
                        label = "Out[1]:\n" if "\n" in value.removesuffix("\n") else "Out[1]: "
                        model.block(Stream.RESULT, value, label if more else "")
                    case "traceback":
                        store.writer.traceback(1, value)
                        model.block(Stream.TRACEBACK, value)
                    case "clear":
                        store.writer.clear(1, wait=value)
                        model.clear_waits = value
                        if not value:
                            model.clear()
                    case "end":
                        store.end()
                    case "commit":
                        store.writer.commit()
                    case "reopen":
                        if not model.clear_waits:
                            store.close()
                            store = Store(Path(directory) / "records.db")
            store.writer.commit()
            record = store.reader.by_serial(1)
            assert record is not None
            for stream in Stream:
                text = model.text(stream)
                lines = text.removesuffix("\n").split("\n") if text else []
                assert store.reader.text(1, stream) == text
                counts = Counts(len(lines), len(text), len(text.encode()))
                assert store.writer.counts(1, stream) == record.counts[stream] == counts
                first = random.randint(1, len(lines) + 1)
                last = random.randint(first, first + 200)
                assert store.reader.lines(1, stream, first, last) == lines[first - 1 : last]
                assert store.reader.tail(1, stream, 70) == lines[-70:]
        finally:
            store.close()


def test_displays_with_images_can_be_had_alone(store: Store) -> None:
    store.begin()
    for bundle in ({"text/html": "x"}, {"image/png": "iVBO", "text/plain": "a"}, {"text/plain": '"image'}):
        store.show(1, bundle)
    store.writer.commit()
    assert [d.ordinal for d in store.reader.displays(1)] == [1, 2, 3]
    assert [d.ordinal for d in store.reader.displays(1, images=True)] == [2]
