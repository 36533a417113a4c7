"""Finding lines: what a query means, and how a stream is searched for it.

Owns the query modes, the time a pattern may take, which lines are context and
how many rows are kept. Pure but for the clock of the time budget; reads no
store: `recordreader` hands in the text in pieces of whole lines.

A pattern is run over pieces of many lines at once, which is ten times as fast as
line by line; `linewise` makes sure that the matches are the same.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loommux_kernel.clipping import clip
from loommux_kernel.linewise import within_lines
from loommux_kernel.recordtypes import SearchResult

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
#: Characters of rows kept from the beginning and from the end; no answer shows more.
HEAD_CHARACTERS = 400_000
TAIL_CHARACTERS = 100_000
CONTEXT_LINES = 10_000

#: The number of a text's first line, and the text.
Chunk = tuple[int, str]
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

        return cls(text, "literal", None, regex.compile(regex.escape(text), regex.IGNORECASE))

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
        return cls(text, "regex", None, regex.compile(text if bounded is None else bounded, flags), bounded is None)

    def search(
        self,
        chunks: Iterable[Chunk],
        total_lines: int,
        before: int = 0,
        after: int = 0,
        max_chars: int | None = None,
    ) -> SearchResult:
        """Search texts of whole lines, each with the number of its first line; raises `QueryTooExpensive`."""
        find = self._find_text if self._literal is not None else _PatternRun(self).find
        rows = _Rows(min(before, CONTEXT_LINES), min(after, CONTEXT_LINES), max_chars)
        matching = matches = 0
        for first, text in chunks:
            text = text.removesuffix("\n")
            lines, count = find(text)
            matching += len(lines)
            matches += count
            rows.add(first, text, lines)
        return SearchResult(matching, matches, rows.result(), total_lines, rows.omitted)

    def _find_text(self, text: str) -> Found:
        literal = self._literal or ""
        count = text.count(literal)
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
        assert query._pattern is not None
        self._pattern = query._pattern
        self._single = query._single
        self._left = BUDGET

    def find(self, text: str) -> Found:
        """The lines in which a match begins, and the number of matches."""
        try:
            if self._single:
                return self._line_by_line(text)
            return self._in_all(text)
        except TimeoutError:
            raise QueryTooExpensive from None

    def _in_all(self, text: str) -> Found:
        with self._spending() as check:
            if self._pattern.search(text, timeout=self._left, concurrent=True) is None:
                return [], 0
            try:
                # Giving up the interpreter for every match would be slow beside a busy thread.
                starts = self._starts(text, UNSHARED, False, check)
            except TimeoutError:
                starts = self._starts(text, self._left, True, check)
        return _lines_of(starts, text), len(starts)

    def _starts(self, text: str, seconds: float, concurrent: bool, check: Callable[[], None]) -> list[int]:
        starts: list[int] = []
        for found in self._pattern.finditer(text, timeout=seconds, concurrent=concurrent):
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


@dataclass
class _Rows:
    """Matching lines with their context, each line once, the middle left out when they are too many."""

    before: int
    after: int
    max_chars: int | None
    omitted: int = 0
    _head: list[tuple[int, str, str]] = field(default_factory=list)
    _tail: deque[tuple[int, str, str]] = field(default_factory=deque)
    _head_size: int = 0
    _tail_size: int = 0
    #: The last lines before the next piece, for its context.
    _recent: deque[tuple[int, str]] = field(default_factory=deque)
    #: Up to which line the context of the last match goes.
    _until: int = 0
    #: The last line that was shown.
    _shown: int = 0

    def add(self, first: int, text: str, matching: list[int]) -> None:
        """The lines of `text`, of which those with the indexes `matching` match."""
        if not matching and self._until < first:
            self._remember(first, text)
            return
        lines = text.split("\n")
        for index in matching:
            number = first + index
            self._context(first, lines, min(self._until, number - 1))
            self._lead(first, lines, number)
            self._show(number, "M", lines[index])
            self._until = number + self.after
        self._context(first, lines, min(self._until, first + len(lines) - 1))
        self._remember(first, text)

    def result(self) -> list[tuple[int, str, str]]:
        return [*self._head, *self._tail]

    def _context(self, first: int, lines: list[str], until: int) -> None:
        for number in range(max(self._shown + 1, first), until + 1):
            self._show(number, "C", lines[number - first])

    def _lead(self, first: int, lines: list[str], number: int) -> None:
        since = max(number - self.before, self._shown + 1)
        for earlier, line in list(self._recent):
            if since <= earlier < first:
                self._show(earlier, "C", line)
        for earlier in range(max(since, first), number):
            self._show(earlier, "C", lines[earlier - first])

    def _remember(self, first: int, text: str) -> None:
        if not self.before:
            return
        last = text.rsplit("\n", self.before)[-self.before :]
        begin = first + text.count("\n") + 1 - len(last)
        self._recent.extend(enumerate(last, begin))
        while len(self._recent) > self.before:
            self._recent.popleft()

    def _show(self, number: int, kind: str, line: str) -> None:
        row = (number, kind, clip(line, self.max_chars))
        self._shown = number
        if not self._tail and self._head_size + len(row[2]) <= HEAD_CHARACTERS:
            self._head.append(row)
            self._head_size += len(row[2])
            return
        self._tail.append(row)
        self._tail_size += len(row[2])
        while self._tail_size > TAIL_CHARACTERS and len(self._tail) > 1:
            self._tail_size -= len(self._tail.popleft()[2])
            self.omitted += 1
