"""Finding lines: what a query means, and how a stream is searched for it.

Owns the query modes and the time a pattern may take. Pure but for the clock of the time budget; reads no
store: `records.reader` hands in the text in pieces of whole lines.

A pattern is run over pieces of many lines at once, which is ten times as fast as
line by line; `text.line_patterns` makes sure that the matches are the same.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loommux_kernel.shared.record_types import SearchResult
from loommux_kernel.shared.search_rows import Rows
from loommux_kernel.shared.search_windows import LongLine, Matches, Place, count_literal, count_matches, width
from loommux_kernel.text.line_patterns import within_lines

if TYPE_CHECKING:
    import regex

QUERY_MODES = ("auto", "literal", "regex")
#: Seconds a pattern may take over a whole stream.
BUDGET = 2.0
#: Seconds for which a pattern may hold the interpreter for itself.
UNSHARED = 0.05
#: Matches or lines between looks at the clock.
CHECKED = 256
PATTERN_CHARACTERS = 10_000
CONTEXT_LINES = 10_000

#: Behind any text.
MOST = 1 << 62

#: The number of a text's first line, and the text; a line too long to be held stands by itself.
Chunk = tuple[int, str | LongLine]
#: Indexes of the matching lines of a text, and the number of matches.
Found = tuple[list[int], int]


class QueryTooExpensive(Exception):
    """The pattern took longer than `BUDGET`."""


@dataclass(frozen=True)
class Query:
    """What to look for. `interpretation` is ``literal`` or ``regex``."""

    text: str
    interpretation: str
    _literal: str | None
    _pattern: regex.Pattern[str] | None = None
    #: The pattern is for one line at a time.
    _single: bool = False
    #: No match is longer, if that is known.
    _width: int | None = None

    @classmethod
    def build(cls, text: str, mode: str = "auto", ignore_case: bool = False) -> Query:
        """A query as contract 3.5 has it; ValueError says what is wrong with it."""
        if mode not in QUERY_MODES:
            raise ValueError(f"one of {', '.join(QUERY_MODES)}")
        if not text:
            raise ValueError("a text or pattern that is not empty")
        if "\n" in text:
            raise ValueError("one line: lines are searched one by one, so nothing in them matches a line break")
        if mode != "literal":
            try:
                return cls._regex(text, ignore_case)
            except ValueError:
                if mode == "regex":
                    raise
        return cls._exactly(text, ignore_case)

    @classmethod
    def _exactly(cls, text: str, ignore_case: bool) -> Query:
        if not ignore_case:
            return cls(text, "literal", text)
        import regex  # only searches need it, and every kernel imports this module

        return cls(text, "literal", None, regex.compile(regex.escape(text), regex.IGNORECASE), _width=len(text))

    @classmethod
    def _regex(cls, text: str, ignore_case: bool) -> Query:
        import regex

        if len(text) > PATTERN_CHARACTERS:
            raise ValueError(f"a pattern of at most {PATTERN_CHARACTERS:,} characters")
        flags = regex.MULTILINE | (regex.IGNORECASE if ignore_case else 0)
        try:
            regex.compile(text, flags)
        except (regex.error, OverflowError, RecursionError) as error:
            raise ValueError(f"a valid regular expression: {error}") from None
        if not ignore_case and regex.escape(text, special_only=True) == text:
            return cls(text, "regex", text)
        bounded = within_lines(text)
        pattern = regex.compile(text if bounded is None else bounded, flags)
        return cls(text, "regex", None, pattern, bounded is None, None if bounded is None else width(text))

    def search(
        self,
        chunks: Iterable[Chunk],
        total_lines: int,
        before: int = 0,
        after: int = 0,
        max_chars: int | None = None,
    ) -> SearchResult:
        """Search texts of whole lines, each with the number of its first line; raises `QueryTooExpensive`."""
        run = _PatternRun(self)
        rows = Rows(min(before, CONTEXT_LINES), min(after, CONTEXT_LINES), max_chars)
        matching = matches = 0
        for first, text in chunks:
            if isinstance(text, LongLine):
                count, place = run.count(text) if self._literal is None else count_literal(text, self._literal)
                rows.add_long(first, text, place)
                matching += count > 0
            else:
                text = text.removesuffix("\n")
                lines, count = run.find(text) if self._literal is None else self._find_text(text)
                rows.add(first, text, lines)
                matching += len(lines)
            matches += count
        found, columns = rows.result(run.first if self._literal is None else self._place_in)
        return SearchResult(matching, matches, found, total_lines, rows.omitted, columns)

    def _place_in(self, line: str) -> Place | None:
        literal = self._literal or ""
        at = line.find(literal)
        return (at, len(literal)) if at >= 0 else None

    def _find_text(self, text: str) -> Found:
        literal = self._literal or ""
        count = text.count(literal)
        if count * 4 > text.count("\n"):
            return [index for index, line in enumerate(text.split("\n")) if literal in line], count
        starts: list[int] = []
        at = text.find(literal) if count else -1
        while at >= 0:
            starts.append(at)
            end = text.find("\n", at)
            at = text.find(literal, end) if end >= 0 else -1
        return _lines_of(starts, text), count


class _PatternRun:
    """One pattern's way through a stream, and the processor time that is left for it."""

    def __init__(self, query: Query) -> None:
        self._query_pattern = query._pattern
        self._single = query._single
        self._width = query._width
        self._left = BUDGET

    @property
    def _pattern(self) -> regex.Pattern[str]:
        assert self._query_pattern is not None
        return self._query_pattern

    def find(self, text: str) -> Found:
        """The lines in which a match begins, and the number of matches."""
        try:
            if self._single:
                return self._line_by_line(text)
            return self._in_all(text)
        except TimeoutError:
            raise QueryTooExpensive from None

    def first(self, line: str) -> Place | None:
        """The first match in a line that has one; None when there is no time left to find it again."""
        try:
            with self._spending():
                found = self._pattern.search(line, timeout=self._left, concurrent=True)
        except (TimeoutError, ValueError):  # a timeout of nothing is a ValueError
            return None
        return (found.start(), found.end() - found.start()) if found else None

    def count(self, line: LongLine) -> Matches:
        """The matches in a line by itself."""
        try:
            if self._width is None:
                return self._count_in(line.text(), 0, MOST)[0]
            return count_matches(line, self._width, self._count_in)
        except TimeoutError:
            raise QueryTooExpensive from None

    def _count_in(self, text: str, at: int, limit: int) -> tuple[Matches, int]:
        """The matches that begin at `at` or later, before `limit`; where the next one may begin."""
        with self._spending() as check:
            try:
                return self._counted(text, at, limit, UNSHARED, False, check)
            except TimeoutError:
                return self._counted(text, at, limit, self._left, True, check)

    def _counted(
        self, text: str, at: int, limit: int, seconds: float, concurrent: bool, check: Callable[[], None]
    ) -> tuple[Matches, int]:
        count, end = 0, at
        first: Place | None = None
        for found in self._pattern.finditer(text, at, timeout=seconds, concurrent=concurrent):
            if found.start() >= limit:
                break
            count, end = count + 1, found.end()
            first = first or (found.start(), end - found.start())
            if count % CHECKED == 0:
                check()
        return (count, first), max(end, limit)

    def _in_all(self, text: str) -> Found:
        with self._spending() as check:
            first = self._pattern.search(text, timeout=self._left, concurrent=True)
            if first is None:
                return [], 0
            at = first.start()
            try:
                # Giving up the interpreter for every match would be slow beside a busy thread.
                starts = self._starts(text, at, UNSHARED, False, check)
            except TimeoutError:
                starts = self._starts(text, at, self._left, True, check)
        return _lines_of(starts, text), len(starts)

    def _starts(self, text: str, at: int, seconds: float, concurrent: bool, check: Callable[[], None]) -> list[int]:
        starts: list[int] = []
        for found in self._pattern.finditer(text, at, timeout=seconds, concurrent=concurrent):
            starts.append(found.start())
            if len(starts) % CHECKED == 0:
                check()
        return starts

    def _line_by_line(self, text: str) -> Found:
        lines: list[int] = []
        matches = 0
        with self._spending() as check:
            for index, line in enumerate(text.split("\n")):
                try:
                    found = self._pattern.findall(line, timeout=UNSHARED, concurrent=False)
                except TimeoutError:
                    found = self._pattern.findall(line, timeout=self._left, concurrent=True)
                if found:
                    lines.append(index)
                    matches += len(found)
                if index % CHECKED == 0:
                    check()
        return lines, matches

    @contextlib.contextmanager
    def _spending(self) -> Iterator[Callable[[], None]]:
        """Takes what is done inside off the budget; what it gives raises when that is spent."""
        began = time.thread_time()

        def check() -> None:
            if time.thread_time() - began > self._left:
                raise TimeoutError

        yield check
        check()
        self._left -= time.thread_time() - began


def _lines_of(starts: Iterable[int], text: str) -> list[int]:
    """The indexes of the lines of `text` in which something starts."""
    lines: list[int] = []
    line = counted = 0
    end = -1
    for start in starts:
        if start <= end:
            continue
        line += text.count("\n", counted, start)
        counted = start
        end = text.find("\n", start)
        if end < 0:
            end = len(text)
        lines.append(line)
    return lines
