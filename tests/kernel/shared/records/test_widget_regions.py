"""Output widgets: what they capture is recorded in its place, and their clears erase what is theirs alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from loommux_kernel.shared.protocol import Stream
from loommux_kernel.shared.records.database import Kind
from loommux_kernel.shared.records.transcript import Transcript
from loommux_kernel.text.screen import SCREEN_LINES
from loommux_kernel.text.terminal import Terminal

OUT, ERR, RESULT, COMBINED = Stream.STDOUT, Stream.STDERR, Stream.RESULT, Stream.COMBINED


def transcript() -> Transcript:
    return Transcript(1, lambda stream, row, part: None, lambda: None)


def said(transcript: Transcript, stream: Stream = COMBINED) -> str:
    log = transcript.logs.get(COMBINED if stream is transcript.sole else stream)
    if log is None:
        return ""
    settled = "".join(row if isinstance(row, str) else row.text() + "\n" for row in log.terminal.take_settled())
    return settled + log.terminal.screen()


def show(transcript: Transcript, text: str) -> None:
    transcript.display("display", None, {"text/plain": text}, {}, None)


def test_a_clear_in_a_widget_erases_what_it_captured_and_nothing_else() -> None:
    t = transcript()
    t.write([(OUT, "before\n")])
    t.capture("w")
    t.write([(OUT, "one\n"), (ERR, "two\n")])
    t.release("w")
    t.write([(OUT, "between\n")])
    t.capture("w")
    t.clear(wait=False)
    t.write([(ERR, "three\n")])
    t.release("w")
    t.write([(OUT, "after\n")])
    assert said(t) == "before\nbetween\nthree\nafter\n"
    assert said(t, OUT) == "before\nbetween\nafter\n"
    assert said(t, ERR) == "three\n"


def test_a_clear_that_waits_happens_before_the_next_output_of_that_widget() -> None:
    t = transcript()
    t.capture("w")
    t.write([(OUT, "old\n")])
    t.clear(wait=True)
    t.release("w")
    t.write([(OUT, "elsewhere\n")])
    assert said(t) == "old\nelsewhere\n"
    t.capture("w")
    show(t, "new")
    t.release("w")
    assert said(t) == "elsewhere\nnew\n"
    assert said(t, RESULT) == "new\n"


def test_captured_text_stands_in_lines_of_its_own() -> None:
    t = transcript()
    t.write([(OUT, "half")])
    t.capture("w")
    t.write([(OUT, "captured")])
    t.release("w")
    t.write([(OUT, "rest")])
    assert said(t) == "half\ncaptured\nrest"


def test_displays_that_a_widget_erases_are_gone_and_later_ones_move_up() -> None:
    t = transcript()
    t.capture("w")
    show(t, "gone")
    t.release("w")
    show(t, "stays")
    assert {row[2]: row[3] for row in t.rows(0.0) if row[0] == Kind.DISPLAY} == {1: 1, 2: 2}
    t.saved()
    t.capture("w")
    t.clear(wait=False)
    t.release("w")
    assert said(t) == "stays\n"
    rows = t.rows(0.0)
    assert [row[2:] for row in rows if row[0] == Kind.DISPLAYS_GONE] == [(1, 1)]
    assert [row[2:] for row in rows if row[0] == Kind.DISPLAY_LINE] == [(2, 1)]


def test_a_closed_widget_takes_what_it_showed_with_it() -> None:
    t = transcript()
    t.capture("w")
    t.write([(OUT, "busy\n")])
    t.close_widget("w")
    t.write([(OUT, "done\n")])
    assert said(t) == "done\n"


def test_lines_that_have_left_the_screen_stay() -> None:
    t = transcript()
    t.capture("w")
    t.write([(OUT, f"{i}\n") for i in range(100)])
    t.clear(wait=False)
    t.write([(OUT, "last\n")])
    assert said(t) == "".join(f"{i}\n" for i in range(37)) + "last\n"


def test_a_clear_of_the_cell_leaves_a_widget_nothing_to_erase() -> None:
    t = transcript()
    t.capture("w")
    t.write([(OUT, "captured\n")])
    t.release("w")
    t.clear(wait=False)
    t.write([(OUT, "mine\n")])
    t.capture("w")
    t.clear(wait=False)
    assert said(t) == "mine\n"


@dataclass
class Model:
    """Lines with their widget; no more of them than a screen holds."""

    lines: list[tuple[str | None, str]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    waits: set[str] = field(default_factory=set)

    def add(self, line: str) -> None:
        widget = self.open[-1] if self.open else None
        if widget in self.waits:
            self.clear(False)
        self.lines.append((widget, line))

    def clear(self, wait: bool) -> None:
        widget = self.open[-1]
        (self.waits.add if wait else self.waits.discard)(widget)
        if not wait:
            self.lines = [(w, line) for w, line in self.lines if w != widget]


steps = st.lists(
    st.sampled_from(["out", "err", "show", "begin a", "begin b", "end", "clear", "clear later"]), max_size=50
)


@given(steps)
def test_any_order_of_captures_and_clears_leaves_what_was_not_erased(script: list[str]) -> None:
    t, model = transcript(), Model()
    for number, step in enumerate(script):
        match step.split():
            case ["out" | "err" as name]:
                t.write([(OUT if name == "out" else ERR, f"{number}\n")])
                model.add(f"{number}\n")
            case ["show"]:
                show(t, str(number))
                model.add(f"{number}\n")
            case ["begin", widget] if not model.open:
                t.capture(widget)
                model.open.append(widget)
            case ["end"] if model.open:
                t.release(model.open.pop())
            case ["clear", *later] if model.open:
                t.clear(wait=bool(later))
                model.clear(bool(later))
    assert said(t) == "".join(line for _, line in model.lines)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=12), st.integers(0, 11))
@example([(1, 0), (0, 1)], 1)
@example([(0, 1), (0, 0)], 0)
def test_a_removed_block_leaves_the_rest_and_the_places_of_other_blocks(sizes: list[tuple[int, int]], key: int) -> None:
    terminal = Terminal()
    texts: dict[int, str] = {}
    for number, (free, inside) in enumerate(sizes):
        terminal.feed("free\n" * free)
        texts[number] = "".join(f"{number}.{i}\n" for i in range(inside))
        terminal.block(number, texts[number])
    terminal.take_settled()
    before, settled = terminal.screen(), terminal.settled_lines
    held = {k: b for k, b in terminal.blocks().items() if b[0] >= settled and k != key}
    terminal.remove_block(key)
    lines = terminal.screen().split("\n")
    for other in held:
        first, end = terminal.blocks()[other]
        assert "\n".join([*lines[first - settled : end - settled], ""]) == (texts[other] or "")
    kept = [line for line in before.split("\n") if not line.startswith(f"{key}.")]
    assert lines == kept


def test_an_empty_display_at_the_top_is_still_filled_after_many_others() -> None:
    terminal = Terminal()
    terminal.block(0, "")
    for number in range(1, 2 * SCREEN_LINES + 2):
        terminal.block(number, "")
    assert terminal.replace_block(0, "filled\n")
    assert terminal.screen() == "filled\n"
