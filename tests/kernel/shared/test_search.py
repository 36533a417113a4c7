"""Searching lines (contract 3.5): what is found, with which context, in which time."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator

import pytest
import regex
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from loommux_kernel.shared.lines import Query, QueryTooExpensive
from loommux_kernel.shared.record_types import SearchResult
from loommux_kernel.shared.search_rows import HEAD_CHARACTERS
from loommux_kernel.text.line_patterns import within_lines


def in_chunks(lines: list[str], size: int = 3) -> Iterator[tuple[int, str]]:
    """The lines as a store hands them out, the last without its newline."""
    for at in range(0, len(lines), size):
        text = "\n".join(lines[at : at + size])
        yield at + 1, text if at + size >= len(lines) and lines[-1] else text + "\n"


def search(query: Query, lines: list[str], before: int = 0, after: int = 0, size: int = 3, **more: int) -> SearchResult:
    return query.search(in_chunks(lines, size), len(lines), before, after, **more)


def line_by_line(pattern: str, lines: list[str]) -> tuple[int, int, list[int]]:
    compiled = regex.compile(pattern)
    found = [len(list(compiled.finditer(line))) for line in lines]
    return sum(map(bool, found)), sum(found), [n for n, count in enumerate(found, 1) if count]


def test_matching_lines_have_their_numbers_and_counts() -> None:
    result = search(Query.build("an"), ["banana", "x", "can", "", "an"])
    assert result.rows == [(1, "M", "banana"), (3, "M", "can"), (5, "M", "an")]
    assert (result.matching_lines, result.matches, result.total_lines, result.omitted_rows) == (3, 4, 5, 0)


@pytest.mark.parametrize(
    ("text", "mode", "interpretation"),
    [("a.c", "auto", "regex"), ("a(", "auto", "literal"), ("a.c", "literal", "literal"), ("abc", "regex", "regex")],
)
def test_auto_is_a_regex_if_it_compiles(text: str, mode: str, interpretation: str) -> None:
    assert Query.build(text, mode).interpretation == interpretation


def test_a_literal_has_no_special_characters() -> None:
    lines = ["a.c", "abc", "A.C"]
    assert [n for n, *_ in search(Query.build("a.c", "literal"), lines).rows] == [1]
    assert [n for n, *_ in search(Query.build("a.c", "literal", ignore_case=True), lines).rows] == [1, 3]
    assert [n for n, *_ in search(Query.build("a.c", "regex", ignore_case=True), lines).rows] == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("a(", "regex", "missing \\) at position 2"),
        ("", "auto", "not empty"),
        ("a\nb", "literal", "one line"),
        ("x" * 20_000, "regex", "10,000"),
        ("x", "glob", "auto, literal, regex"),
    ],
)
@pytest.mark.case("P05")
def test_a_bad_query_is_refused_with_the_reason(text: str, mode: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Query.build(text, mode)


def test_context_is_merged_and_crosses_chunks() -> None:
    lines = [f"l{n}" for n in range(1, 21)]
    lines[4] = lines[6] = lines[15] = "hit"
    rows = search(Query.build("hit"), lines, before=2, after=1).rows
    assert [(n, kind) for n, kind, _ in rows] == [
        (3, "C"), (4, "C"), (5, "M"), (6, "C"), (7, "M"), (8, "C"), (14, "C"), (15, "C"), (16, "M"), (17, "C"),
    ]  # fmt: skip
    assert all(text == lines[n - 1] for n, _, text in rows)


@given(
    st.lists(st.sampled_from(["hit", "", "other", "hit hit"]), max_size=30),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(1, 8),
)
def test_context_shows_each_line_near_a_match_once(lines: list[str], before: int, after: int, size: int) -> None:
    rows = search(Query.build("hit"), lines, before, after, size).rows
    hits = [n for n, line in enumerate(lines, 1) if "hit" in line]
    near = sorted({m for n in hits for m in range(n - before, n + after + 1) if 1 <= m <= len(lines)})
    assert [(n, kind) for n, kind, _ in rows] == [(n, "M" if n in hits else "C") for n in near]


ATOMS = (
    r"a b . \s \S \w \W \d \D \b \B ^ $ \A \Z [ab] [^ab] [^\s] [\s\w] [\W_] [\D] [\n-z] [\x00-\x20] [^\S] \x0b \u0061 "
    r"\p{L} \P{L} \t (?=a) (?!a) (?!\s) (?<=a) (?<!a) (?<!\W) (?=$) (?!$) (?=^) (?s)."
)
atoms = st.sampled_from(ATOMS.split())
repeats = st.sampled_from(["", "", "*", "+", "?", "*?", "+?", "*+", "++", "{2}", "{1,3}", "{,2}"])
patterns = st.recursive(
    st.tuples(atoms, repeats).map("".join),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.tuples(inner, inner).map("|".join),
        st.tuples(st.sampled_from(["(", "(?:", "(?>", "(?P<n>", "(?i:", "(?s:"]), inner, st.just(")"), repeats).map(
            "".join
        ),
    ),
    max_leaves=6,
)
some_lines = st.lists(st.text(st.sampled_from("ab A1_\t.é\x0b"), max_size=8), min_size=1, max_size=12)


@settings(suppress_health_check=[HealthCheck.filter_too_much], max_examples=300)
@given(patterns, some_lines, st.integers(1, 12))
def test_a_pattern_finds_in_chunks_what_it_finds_line_by_line(pattern: str, lines: list[str], size: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            regex.compile(pattern)
        except regex.error:
            assume(False)
        assume(lines[-1])
        result = search(Query.build(pattern, "regex"), lines, size=size)
        matching, matches, numbers = line_by_line(pattern, lines)
    assert (result.matching_lines, result.matches, [n for n, *_ in result.rows]) == (matching, matches, numbers)


@pytest.mark.parametrize(
    "pattern", [r"(?V1)a", r"(a)(?(1)b|c)", r"\Xa", r"(?e)(?:ab){e<=1}", r"(*FAIL)", r"a\Rb", r"\n", "[[:alpha:]]"]
)
def test_a_construct_that_is_not_understood_goes_line_by_line(pattern: str) -> None:
    assert within_lines(pattern) is None
    lines = ["ab", "b", "", "ac", "xy"] * 3
    result = search(Query.build(pattern, "regex"), lines)
    assert (result.matching_lines, result.matches) == line_by_line(pattern, lines)[:2]


@pytest.mark.parametrize("pattern", [r"(a|aa)+$", r"(?V1)(a|aa)+$"])
@pytest.mark.case("P05")
def test_a_pattern_that_takes_too_long_ends_and_holds_nothing_up_meanwhile(pattern: str) -> None:
    beats: list[float] = []
    done = threading.Event()

    def beat() -> None:
        while not done.wait(0.01):
            beats.append(time.monotonic())

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(QueryTooExpensive):
            search(Query.build(pattern, "regex"), ["a" * 70 + "b"])
    finally:
        done.set()
        thread.join()
    assert len(beats) > 20


def test_rows_beyond_any_answer_are_counted_instead_of_kept() -> None:
    lines = [f"{n:05d} {'x' * 94}" for n in range(20_000)]
    result = search(Query.build("x+", "regex"), lines, size=700)
    assert (result.matching_lines, result.matches) == (20_000, 20_000)
    assert len(result.rows) + result.omitted_rows == 20_000
    assert result.rows[0][0] == 1 and result.rows[-1][0] == 20_000
    assert sum(len(text) for *_, text in result.rows) < 2 * HEAD_CHARACTERS


def test_rows_are_clipped_when_asked() -> None:
    result = search(Query.build("x"), ["x" * 50], max_chars=10)
    assert result.rows == [(1, "M", "x" * 10 + "…")]


@pytest.mark.case("X18")
@pytest.mark.parametrize("query", ["NEEDLE", "N[A-Z]+E", "(?V1)NEEDLE"])
def test_a_row_that_is_too_long_is_cut_around_its_first_match(query: str) -> None:
    lines = ["a" * 50, "z" * 30 + "NEEDLE" + "y" * 30 + "NEEDLE", "short NEEDLE", "b" * 50]
    result = search(Query.build(query), lines, before=1, after=1, max_chars=12)
    assert result.rows == [
        (1, "C", "a" * 12 + "…[38 chars omitted]"),
        (2, "M", "…zzzNEEDLEyyy…"),
        (3, "M", "short NEEDLE"),
        (4, "C", "b" * 12 + "…[38 chars omitted]"),
    ]
    assert (result.matching_lines, result.matches, result.columns) == (2, 3, {2: 31})
