"""The line discipline of contract 3.5, against pyte and in particular."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pyte
import pyte.modes
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loommux_kernel.text.controls import ControlFilter
from loommux_kernel.text.long_row import LONG, PART, LongRow
from loommux_kernel.text.terminal import SCREEN_LINES, SLICE, Terminal, flatten


def whole(terminal: Terminal) -> str:
    settled = [row if isinstance(row, str) else row.text() + "\n" for row in terminal.take_settled()]
    return "".join(settled) + terminal.screen()


def fed(*texts: str) -> str:
    terminal = Terminal()
    for text in texts:
        terminal.feed(text)
    return whole(terminal)


def cut_at(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


class Oracle(pyte.HistoryScreen):
    """pyte with a wide terminal's columns, LF that returns to column 0, and all lines that left the screen."""

    def __init__(self) -> None:
        super().__init__(600, SCREEN_LINES, history=10_000, ratio=0.5)
        self.set_mode(pyte.modes.LNM)

    def text(self) -> str:
        lines = [*self.history.top, *(self.buffer[y] for y in range(SCREEN_LINES))]
        texts = ("".join(line[x].data for x in range(max(line, default=-1) + 1)) for line in lines)
        return "\n".join(text.rstrip() for text in texts).rstrip("\n")


# What happens on a terminal: short texts, line ends, movements, erasures, things without effect.
words = st.text("abcXYZ 01", min_size=1, max_size=12)
columns = st.sampled_from(["", "0", "1", "2", "3", "5", "17"])
rows = st.one_of(columns, st.just("70"))
movements = st.one_of(
    st.builds("\x1b[{}{}".format, rows, st.sampled_from("ABEFd")),
    st.builds("\x1b[{}{}".format, columns, st.sampled_from("CDGX")),
    st.builds("\x1b[{};{}{}".format, rows, columns, st.sampled_from("Hf")),
)
erasures = st.builds("\x1b[{}{}".format, st.sampled_from(["", "0", "1", "2"]), st.sampled_from("JK"))
silent = st.sampled_from(
    ["\x1b[31m", "\x1b[0m", "\x1b[38;5;1m", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x1b(B", "\x1b[?25l", "\0"]
)
line_ends = st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\n" * 40])
steps = st.one_of(words, words, line_ends, st.sampled_from(["\b", "\b\b\b"]), movements, erasures, silent)
scripts = st.lists(steps, max_size=30).map("".join)
cuts = st.lists(st.integers(0, 10_000), max_size=8)


@given(scripts, cuts)
def test_the_text_is_what_pyte_holds_after_a_random_script_in_random_pieces(script: str, cuts: list[int]) -> None:
    oracle = Oracle()
    pyte.Stream(oracle).feed(script)
    assert "\n".join(line.rstrip() for line in fed(*cut_at(script, cuts)).split("\n")).rstrip("\n") == oracle.text()


@given(scripts, cuts)
def test_where_a_text_is_cut_makes_no_difference(script: str, cuts: list[int]) -> None:
    assert fed(*cut_at(script, cuts)) == fed(script)


pieces_of_sequences = st.sampled_from("\x1b[]()?;0123456789mKJAPX^_k\\\x07\x18\r\n\b\t\x9b")
c1 = st.sampled_from("\x80\x84\x90\x98\x9b\x9c\x9d\x9e\x9f\xa0\xbf\xc2\xe2\xef\xf0\xf4m3;\n\x1b\\")
anything = st.text(st.one_of(pieces_of_sequences, st.characters()), max_size=60) | st.text(c1, max_size=30)


@given(anything, cuts)
def test_any_characters_in_any_pieces_give_the_same_plain_text(text: str, cuts: list[int]) -> None:
    result = fed(*cut_at(text, cuts))
    assert result == fed(text)
    assert not [c for c in result if (c < " " and c not in "\n\t") or "\x7f" <= c <= "\x9f"]
    result.encode()


@given(st.lists(st.tuples(scripts, st.booleans()), max_size=5), cuts)
def test_a_stored_screen_goes_on_where_it_stopped(pieces: list[tuple[str, bool]], cuts: list[int]) -> None:
    stored, through = Terminal(), Terminal()
    text = ""
    for script, store in pieces:
        through.feed(script)
        stored.feed(script)
        if store:
            settled = stored.take_settled()
            text += "".join(row if isinstance(row, str) else row.text() for row in settled)
            stored = Terminal.from_state(json.loads(json.dumps(stored.state())))
    assert text + whole(stored) == whole(through)


@given(st.lists(st.sampled_from(["abc", "\n", "x\n", "\r", "\x1b[A", "\x1b[2K", "q" * 50, "é\n"]), max_size=300))
def test_counts_are_those_of_the_text(steps: list[str]) -> None:
    terminal = Terminal()
    for step in steps:
        terminal.feed(step)
    counts, text = terminal.screen_counts(), terminal.screen()
    lines = text.count("\n") + (not text.endswith("\n")) if text else 0
    assert (counts.lines, counts.characters, counts.utf8_bytes) == (lines, len(text), len(text.encode()))


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("plain\n", "plain\n"),
        ("no newline", "no newline"),
        ("", ""),
        ("\n", "\n"),
        ("a\tb\n", "a\tb\n"),
        ("ab\tc\rx", "xb\tc"),
        ("abc   \n", "abc   \n"),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("50%\r100%\r", "100%"),
        ("long text\rLO", "LOng text"),
        ("working...\r          \rdone\n", "done\n"),
        ("abc\b\bX", "aXc"),
        ("\b\b\babc", "abc"),
        ("abc\x1b[2Dx", "axc"),
        ("abc\x1b[10Gx", "abc      x"),
        ("abcdef\x1b[3G\x1b[K", "ab"),
        ("abcdef\x1b[3G\x1b[1K", "   def"),
        ("one\ntwo\x1b[1A\x1b[2K\rthree", "three\ntwo"),
        ("one\ntwo\nthree\x1b[2A\r\x1b[J", ""),
        ("one\ntwo\x1b[1F1", "1ne\ntwo"),
        ("a\x1b[3Bb", "a\n\n\n b"),
        ("gone\x1b[2J\x1b[Hhere", "here"),
        ("\x1b[31mred\x1b[0m \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "red link"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]0;never ended\ntext", "\ntext"),
        ("\x1bPq#0;2;0;0;0\x1b\\text", "text"),
        ("\x1b(0text\x1b(B", "text"),
        ("a\0b\x07c\x0bd\x0ce\x7ff\x85g\x9ah", "abcdefgh"),
        ("caf\udce9 \ud83d", "caf\\udce9 \\ud83d"),
        ("\ufeffa\u2028b\n", "\ufeffa\u2028b\n"),
        ("\x1b[31", ""),
        ("\x1b[1000000000C|", " " * 4095 + "|"),
    ],
)
def test_a_text_becomes(written: str, text: str) -> None:
    assert fed(written) == text
    assert fed(*written) == text


ESCAPES = {
    "\x1b[": "\x9b", "\x1b]": "\x9d", "\x1bP": "\x90", "\x1bX": "\x98", "\x1b^": "\x9e", "\x1b_": "\x9f",
    "\x1b\\": "\x9c",
}  # fmt: skip


@pytest.mark.case("X23")
@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("\x9b31mred\x9b0m", "red"),
        ("é\x9b31mred\x9b0m", "éred"),
        ("one\ntwo\x9b1A\x9b2K\rthree", "three\ntwo"),
        ("\x9d0;a title\x9ctext", "text"),
        ("\x9d8;;http://x\x1b\\link\x9d8;;\x07", "link"),
        ("\x90q#0;2;0;0;0\x9ctext \x98sos\x9c\x9epm\x9c\x9fapc\x9c.", "text ."),
        ("\x9d0;never ended\ntext", "\ntext"),
        ("\x9c\x9b1mtext\x9b", "text"),
        # UTF-8 read as Latin-1: nothing behind it is taken for a sequence
        ("It\xe2\x80\x98s \xe2\x80\x9dquoted\xe2\x80\x9d more", "It\xe2s \xe2quoted\xe2 more"),
        ("\xf0\x9f\x98\x80 smile", "\xf0 smile"),
        ("\xc3\x9b \xc2\x9d end", "\xc3 \xc2 end"),
    ],
)  # fmt: skip
def test_c1_controls_are_sequences_as_their_escapes_are(written: str, text: str) -> None:
    assert fed(written) == text
    assert fed(*written) == text


@pytest.mark.case("X23")
@given(scripts, cuts)
def test_a_script_in_c1_controls_reads_as_the_same_in_escapes(script: str, cuts: list[int]) -> None:
    written = script
    for escape, control in ESCAPES.items():
        written = written.replace(escape, control)
    assert fed(*cut_at(written, cuts)) == fed(script)


def test_a_progress_bar_of_many_redraws_is_its_final_state() -> None:
    redraws = [f"\r{n:5d}/20000 |{'#' * (n // 1000)}{' ' * (20 - n // 1000)}|" for n in range(20_001)]
    assert fed("".join(redraws)) == fed(*redraws) == "20000/20000 |####################|"


def test_nested_bars_are_their_final_state() -> None:
    terminal = Terminal()
    for outer in range(3):
        terminal.feed(f"\router {outer}")
        for inner in range(50):
            terminal.feed(f"\n\rinner {inner}\x1b[A")
        terminal.feed("\n\r" + " " * 10 + "\r\x1b[A")
    terminal.feed("\router 3\n")
    assert terminal.screen() == "outer 3\n"


def test_settled_lines_leave_in_order_and_never_change() -> None:
    terminal = Terminal()
    terminal.feed("".join(f"{n}\n" for n in range(100)))
    assert terminal.settled_lines == 101 - SCREEN_LINES
    settled = terminal.take_settled()
    assert "".join(map(str, settled)) == "".join(f"{n}\n" for n in range(37))
    terminal.feed("\x1b[500Atop")
    assert terminal.screen().startswith("top\n38\n")
    assert terminal.take_settled() == []


@pytest.mark.parametrize("piece", [7, 100, 5_000, SLICE, 3 * SLICE])
def test_a_flood_in_pieces_of_any_size_is_complete(piece: int) -> None:
    text = "".join(f"line {n} é\n" for n in range(2_000 if piece < 100 else 200_000))
    assert fed(*(text[i : i + piece] for i in range(0, len(text), piece))) == text


def test_a_fresh_line_begins_below_the_text() -> None:
    terminal = Terminal()
    terminal.fresh_line()
    assert terminal.screen() == ""
    terminal.feed("abc")
    terminal.fresh_line()
    terminal.fresh_line()
    assert terminal.screen() == "abc\n"
    terminal.feed("one\ntwo\nthree\x1b[2A")
    terminal.fresh_line()
    assert terminal.screen() == "abc\none\ntwo\nthree\n"
    terminal.feed("bar\r   \r")
    terminal.fresh_line()
    assert terminal.screen() == "abc\none\ntwo\nthree\n"


def test_clear_erases_what_is_on_the_screen_and_no_settled_line() -> None:
    terminal = Terminal()
    terminal.feed("a\n" * 70 + "end")
    assert "".join(map(str, terminal.take_settled())) == "a\n" * 7
    terminal.clear()
    assert (terminal.screen(), terminal.settled_lines) == ("", 7)
    terminal.feed("new")
    assert terminal.screen() == "new"


# -- blocks ------------------------------------------------------------------


def test_a_block_is_replaced_in_its_place() -> None:
    terminal = Terminal()
    terminal.feed("before")
    assert terminal.block(1, "one\ntwo") == 3
    terminal.feed("after\n")
    assert terminal.block(2, "second") == 5
    assert terminal.replace_block(1, "\x1b[31m1\x1b[0m\n2\n3\n4\n")
    assert terminal.screen() == "before\n1\n2\n3\n4\nafter\nsecond\n"
    assert terminal.blocks() == {1: (1, 5), 2: (6, 7)}
    assert terminal.replace_block(2, "2nd")
    assert terminal.replace_block(1, "")
    terminal.feed("go on")
    assert terminal.screen() == "before\nafter\n2nd\ngo on"


def test_a_block_that_has_left_the_screen_in_part_is_not_replaced() -> None:
    terminal = Terminal()
    terminal.block(1, "one\ntwo")
    terminal.feed("x\n" * (SCREEN_LINES - 2))
    assert terminal.settled_lines == 1
    assert not terminal.replace_block(1, "new")
    assert not terminal.replace_block(99, "unknown")
    assert terminal.blocks() == {1: (0, 2)}


def test_a_block_that_grows_pushes_lines_off_the_screen() -> None:
    terminal = Terminal()
    terminal.feed("top\n")
    terminal.block(1, "block")
    terminal.feed("tail")
    assert terminal.replace_block(1, "\n".join(str(n) for n in range(70)))
    text = "top\n" + "".join(f"{n}\n" for n in range(70)) + "tail"
    assert whole(terminal) == text
    terminal.feed("!")
    assert terminal.screen().endswith("69\ntail!")


def test_text_of_a_block_cannot_reach_out_of_it() -> None:
    terminal = Terminal()
    terminal.feed("safe\n")
    terminal.block(1, "\x1b[5A\rover\rit")
    assert terminal.screen() == "safe\niter\n"


# -- rows that are too long --------------------------------------------------


class PartStore:
    """What a store does with long rows, in memory."""

    def __init__(self) -> None:
        self.parts: dict[tuple[int, int], str] = {}
        self.written = 0

    def fetch(self, row: int, part: int) -> str | None:
        return self.parts.get((row, part))

    def save(self, row: LongRow) -> None:
        if row.cut is not None:
            self.parts = {k: v for k, v in self.parts.items() if k[0] != row.id or k[1] < row.cut}
        for part, text in row.changed():
            self.parts[row.id, part] = text
            self.written += len(text)
        row.saved()


def test_a_long_row_is_neither_kept_in_memory_nor_written_again() -> None:
    store = PartStore()
    terminal = Terminal(store.fetch)
    for n in range(200):
        terminal.feed(f"{n:06d}" * 1000)
        for row in terminal.long_rows():
            store.save(row)
    (row,) = terminal.long_rows()
    assert sum(len(p) for p in row._parts if p is not None) <= PART
    assert store.written < 3 * 1_200_000
    assert row.length == 1_200_000
    assert row.text() == "".join(f"{n:06d}" * 1000 for n in range(200))
    assert row.head(8) == "00000000"


texts = ["\r", "y" * 100, "é" * 40_000, "\x1b[K", "\x1b[1K", "\x1b[20000G", "\b" * 9, "\n\x1b[A", "    "]
long_steps = st.lists(
    st.one_of(
        st.integers(1, 3 * PART).map(lambda n: ("write", "x" * n)),
        st.tuples(st.just("write"), st.sampled_from(texts)),
        st.sampled_from([("save", ""), ("reload", "")]),
    ),
    min_size=3,
    max_size=10,
)


@given(long_steps)
def test_a_long_row_is_drawn_like_any_other(script: list[tuple[str, str]]) -> None:
    store = PartStore()
    terminal: Any = Terminal(store.fetch)
    expected = ""
    column = 0
    for step, text in script:
        if step == "reload":
            for row in terminal.long_rows():
                store.save(row)
            terminal = Terminal.from_state(json.loads(json.dumps(terminal.state())), store.fetch)
        elif step == "save":
            for row in terminal.long_rows():
                store.save(row)
        else:
            terminal.feed(text)
            if text == "\r":
                column = 0
            elif text == "\x1b[K":
                expected = expected[:column]
            elif text == "\x1b[1K":
                expected = " " * min(column + 1, len(expected)) + expected[column + 1 :]
            elif text == "\x1b[20000G":
                column = min(19_999, max(4_095, len(expected), column))
            elif text[0] == "\b":
                column = max(0, column - 9)
            elif text == "\n\x1b[A":
                column = 0
            else:
                expected = expected[:column].ljust(column) + text + expected[column + len(text) :]
                column += len(text)
    assert terminal.screen().rstrip() == expected.rstrip()
    counts = terminal.screen_counts()
    assert (counts.characters, counts.utf8_bytes) == (len(terminal.screen()), len(terminal.screen().encode()))


def test_a_long_row_settles_and_a_cleared_one_is_discarded() -> None:
    terminal = Terminal()
    terminal.feed("a\n" + "x" * LONG)
    terminal.feed("\n" + "b\n" * SCREEN_LINES)
    first, row, second = terminal.take_settled()
    assert (first, second) == ("a\n", "b\n")
    assert isinstance(row, LongRow)
    terminal.feed("y" * LONG)
    terminal.clear()
    assert terminal.discarded == [2]


def test_flattened_text_has_no_controls_and_plain_text_is_itself() -> None:
    assert flatten("\x1b[1;31mValueError\x1b[0m: x\r\n" * 100) == "ValueError: x\n" * 100
    assert flatten("a\tb\n\n") == "a\tb\n\n"


def test_a_filter_between_sequences_has_no_state() -> None:
    controls = ControlFilter()
    controls.feed("\x1b[31mred\x1b]0;t\x07")
    assert controls.state() == {}
    controls.feed("caf\xe9 \x9b31m")
    assert controls.state() == {}
