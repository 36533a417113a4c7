"""Line ranges and clipping (contract 3.5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loommux_kernel.shared.lines import LineRange, clip
from loommux_kernel.text.clipping import around

ends = st.one_of(st.none(), st.integers(-30, 30).filter(bool))


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        (None, 1, 100),
        ("", 1, 100),
        (":", 1, 100),
        ("1:100", 1, 100),
        ("3:3", 3, 3),
        ("-20:", 81, 100),
        (":-3", 1, 98),
        ("-3:-1", 98, 100),
        ("90:-5", 90, 96),
        ("10:", 10, 100),
        (":10", 1, 10),
        (" 2 : 4 ", 2, 4),
        ("90:200", 90, 100),
        ("-500:2", 1, 2),
    ],
)
def test_a_range_of_a_hundred_lines_is(text: str | None, first: int, last: int) -> None:
    assert LineRange.parse(text).resolve(100) == (first, last)


@pytest.mark.parametrize(
    ("text", "total"), [("101:", 100), (":-101", 100), ("60:-60", 100), ("1:5", 0), ("-5:", 0), (":", 0)]
)
def test_a_range_outside_the_stream_is_empty(text: str, total: int) -> None:
    first, last = LineRange.parse(text).resolve(total)
    assert last == first - 1


@pytest.mark.parametrize(
    "text", ["x", "0:", ":0", "5", "1:2:3", "1-2", "1.5:2", "--1:", "5:2", "-2:-5", "١:", "1_0:", "+1:"]
)
def test_a_bad_range_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"start|line"):
        LineRange.parse(text)


@given(ends, ends, st.integers(0, 40))
def test_a_range_picks_what_a_slice_of_numbered_lines_holds(start: int | None, stop: int | None, total: int) -> None:
    text = f"{start if start is not None else ''}:{stop if stop is not None else ''}"
    try:
        first, last = LineRange.parse(text).resolve(total)
    except ValueError:
        assert start is not None and stop is not None and start > stop
        return
    numbered = range(1, total + 1)
    low = 1 if start is None else start if start > 0 else total + start + 1
    high = total if stop is None else stop if stop > 0 else total + stop + 1
    assert list(range(first, last + 1)) == [n for n in numbered if low <= n <= high]


def test_clipping_says_how_much_was_left_out() -> None:
    assert clip("x" * 1_812, 1_000) == "x" * 1_000 + "…[812 chars omitted]"
    assert clip("x" * 10_000, 10) == "x" * 10 + "…[9,990 chars omitted]"
    assert clip("short", 5) == "short"
    assert clip("any length", None) == "any length"
    assert clip("xyz", 0) == "…[3 chars omitted]"


@pytest.mark.case("X18")
@given(st.text(max_size=50), st.integers(1, 20))
def test_pieces_one_after_the_other_are_the_line(line: str, size: int) -> None:
    pieces = [clip(line, size, start)[:size] for start in range(1, len(line) + 1, size)]
    assert "".join(pieces) == line
    assert clip(line, size, len(line) + 1) == clip(line, None, len(line) + 9) == ""
    assert clip(line, None, 3) == line[2:]


@pytest.mark.case("X18")
@given(st.text("ab", max_size=60), st.text("N", min_size=1, max_size=5), st.text("ab", max_size=60), st.integers(1, 30))
def test_a_line_cut_around_a_place_has_it_in_its_middle(before: str, hit: str, after: str, most: int) -> None:
    line = before + hit + after
    cut = around(lambda begin, end: line[begin:end], len(line), (len(before), len(hit)), most)
    assert cut.strip("…") in line and len(cut.strip("…")) == min(most, len(line))
    assert hit[:most] in cut
    if most < len(line) and len(before) > most and len(after) > most:
        left, right = cut.split(hit[:most])[0], cut.rsplit(hit[:most])[-1]
        assert abs(len(left) - len(right)) <= 1
