"""A line searched window by window has the matches that the whole line has."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from loommux_kernel.shared import search_windows
from loommux_kernel.shared.search import Query, QueryTooExpensive
from loommux_kernel.shared.search_windows import LongLine, count_literal, width

PATTERNS = [
    "a", "ab", "^a", "a$", "^", "$", "", r"\b", r"\Ba", "a?", "ab|b", "(?:a|ab)(?:c|bcd)?", "[ab]{2}", "a{1,3}b",
    r"\bab\b", "(?i)AB", "[^a]", "a?b?c?", "^ab$",
]  # fmt: skip
texts = st.text("abc \n".replace("\n", ""), max_size=60)


def line(text: str, size: int) -> LongLine:
    def parts() -> Iterator[str]:
        yield from (text[at : at + size] for at in range(0, len(text), size))

    return LongLine(len(text), lambda begin, end: text[begin:end], parts)


@given(texts, st.text("ab", min_size=1, max_size=4), st.integers(1, 7), st.integers(1, 9))
def test_a_text_is_found_as_often_as_str_count_finds_it(text: str, literal: str, size: int, window: int) -> None:
    with patch.object(search_windows, "WINDOW", window):
        at = text.find(literal)
        first = (at, len(literal)) if at >= 0 else None
        assert count_literal(line(text, size), literal) == (text.count(literal), first)


@given(texts, st.sampled_from([p for p in PATTERNS if p]), st.integers(1, 7), st.integers(1, 9))
def test_a_pattern_of_bounded_width_matches_as_often_as_in_the_whole(
    text: str, pattern: str, size: int, window: int
) -> None:
    query = Query.build(pattern, "regex")
    assert width(pattern) is not None
    with patch.object(search_windows, "WINDOW", window):
        result = query.search([(1, line(text, size))], 1, max_chars=1)
    assert result.matches == len(regex.findall(pattern, text, regex.MULTILINE))
    first = regex.search(pattern, text, regex.MULTILINE)
    assert result.columns == ({1: first.start() + 1} if first and len(text) > 1 else {})


@pytest.mark.parametrize(
    "pattern", ["a*", "a+", "a{2,}", "(?=a)", "(?<!a)b", r"(a)\1", r"\X", "(?R)?", r"\p{L}", "a{70000}"]
)
def test_a_pattern_that_may_look_far_has_no_width(pattern: str) -> None:
    assert width(pattern) is None


@given(texts, st.sampled_from(["a.*b", "a+", r"(a)\1", "^.*c$", "(?<=a)b+"]), st.integers(1, 7))
def test_any_other_pattern_is_matched_against_the_whole(text: str, pattern: str, size: int) -> None:
    with patch.object(search_windows, "WINDOW", 3):
        result = Query.build(pattern, "regex").search([(1, line(text, size))], 1)
    assert result.matches == len(regex.findall(pattern, text, regex.MULTILINE))


def test_a_long_line_is_a_row_as_it_is_shown_with_lines_around_it() -> None:
    chunks = [(1, "one\ntwo\n"), (3, line("aaa" + "b" * 9, 3)), (4, "four\n")]
    result = Query.build("ab").search(chunks, 4, before=1, after=1, max_chars=3)
    assert (result.matching_lines, result.matches) == (1, 1)
    assert result.rows == [(2, "C", "two"), (3, "M", "…abb…"), (4, "C", "fou…[1 chars omitted]")]
    assert result.columns == {3: 3}
    beside = Query.build("two").search(chunks, 4, after=1, max_chars=3)
    assert beside.rows == [(2, "M", "two"), (3, "C", "aaa…[9 chars omitted]")]
    assert Query.build("four").search(chunks, 4, before=1, max_chars=6).rows[0] == (3, "C", "aaabbb…[6 chars omitted]")


def test_a_pattern_that_takes_too_long_is_given_up_in_a_long_line_too() -> None:
    slow = line("a" * 70 + "b", 70)
    with patch("loommux_kernel.shared.search.BUDGET", 0.2), pytest.raises(QueryTooExpensive):
        Query.build("(a|aa)+$", "regex").search([(1, slow)], 1)
