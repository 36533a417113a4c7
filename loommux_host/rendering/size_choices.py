"""What a result may carry of the text it is about, from everything down to counts alone.

Owns the size rules of contract 3.2 for bodies, reads and searches: each answer has a few
choices in order, and `message`, the only caller, takes the first that fits into a message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loommux_host.facts.phrases import amount, cell, plural
from loommux_host.facts.result_limits import BODY_CHARACTERS, FRAME_BYTES, TOKEN_LIMIT, Limits
from loommux_host.facts.results import Answer, CellAnswer, ExecutionFacts, ReadAnswer, SearchAnswer
from loommux_host.facts.status_words import BESIDE_OUTPUT, OMISSIONS
from loommux_host.rendering.excerpts import counts_of, first_lines, last_lines, next_range, read_call
from loommux_host.rendering.own_lines import marked
from loommux_host.token_counting.counter import Counter
from loommux_kernel.shared.protocol import Counts, Stream

#: Lines from each end that are looked at for an excerpt of 500 tokens.
EXCERPT_LINES = 500
#: What a message has around the text of a read: heading, fields, notices.
AROUND_TEXT = 1_500


@dataclass(frozen=True)
class Carried:
    """All of a text; or why not (a word of `OMISSIONS`), the sentence that says so, and what stands in its place."""

    text: str | None = None
    omitted: str | None = None
    said: str = ""
    head: Sequence[str] = ()
    tail: Sequence[str] = ()
    next_call: str | None = None
    streams: dict[Stream, str] = field(default_factory=dict)

    def bare(self) -> Carried:
        """The same without excerpts."""
        return replace(self, head=(), tail=())

    def marked(self) -> Carried:
        """The same with the lines marked that begin like the environment's own."""
        text = None if self.text is None else marked(self.text)
        return replace(self, text=text, head=list(map(marked, self.head)), tail=list(map(marked, self.tail)))

    def lines(self) -> list[str]:
        """What is said in place of the text."""
        lines = [self.said] if self.said else []
        if self.head:
            lines += [BESIDE_OUTPUT["head"].format(lines=_lines(len(self.head))), *self.head]
        if self.tail:
            lines += [BESIDE_OUTPUT["tail"].format(lines=_lines(len(self.tail))), *self.tail]
        return lines


@dataclass(frozen=True)
class Carrier:
    """The rules with a server's limits. `copies`: how often a text stands in a message."""

    limits: Limits
    counter: Counter
    copies: int = 1

    def choices(self, answer: Answer) -> Iterator[Carried]:
        """What to carry, the most first; the last is the least there is."""
        match answer:
            case CellAnswer() if answer.execution is not None:
                yield from self._of_cell(answer, answer.execution)
            case ReadAnswer() if answer.execution is not None:
                yield from self._of_read(answer, answer.execution)
            case SearchAnswer() if answer.execution is not None:
                yield from self._of_search(answer, answer.execution)
            case _:
                yield Carried()

    def _of_cell(self, answer: CellAnswer, facts: ExecutionFacts) -> Iterator[Carried]:
        body = answer.body if answer.body is not None or answer.body_omitted else ""
        if body is not None:
            # Without full output its tokens decide: 5,000 of blanks are 640,000 characters.
            if len(body) <= BODY_CHARACTERS or not answer.full_output:
                yield Carried(body, streams=answer.streams)
                yield Carried(body)
            lines = body.removesuffix("\n").split("\n")
            yield from self._too_large(facts, answer, lines, facts.counts, len(body))
        elif answer.body_omitted == "running":
            yield Carried(omitted="running")
        elif answer.body_omitted == "size_limit_exceeded":
            yield from self._too_large(facts, answer, answer.head, facts.counts, facts.counts.characters, answer.tail)
        elif answer.body_omitted == "token_limit_unavailable":
            yield Carried(omitted="token_limit_unavailable", said=_limit_unavailable(answer, facts))
        elif answer.body_omitted == "output_unreadable":
            call = f"wait(execution={facts.number})" if facts.number is not None else "wait()"
            said = OMISSIONS["output_unreadable"].text.format(call=call)
            yield Carried(omitted="output_unreadable", said=said)
        elif answer.body_omitted == "output_gone":
            said = OMISSIONS["output_gone"].text.format(amount=amount(facts.counts))
            yield Carried(omitted="output_gone", said=said)
        else:
            said = OMISSIONS["token_limit_exceeded"].text.format(amount=amount(facts.counts), limit=TOKEN_LIMIT)
            shown = min(self.limits.omission_tail_lines, len(answer.tail))
            tail = last_lines(answer.tail[len(answer.tail) - shown :], self.counter)
            yield Carried(omitted="token_limit_exceeded", said=said, tail=tail)
            yield Carried(omitted="token_limit_exceeded", said=said)

    def _too_large(
        self,
        facts: ExecutionFacts,
        answer: CellAnswer,
        lines: Sequence[str],
        total: Counts,
        characters: int,
        ends: Sequence[str] | None = None,
    ) -> Iterator[Carried]:
        """`lines` are those known from the first on; `ends` the last ones, when those are not all."""
        room = self._room("\n".join(line[:1_000] for line in lines[:EXCERPT_LINES]))
        call = read_call(facts, answer.kernel, Stream.COMBINED, next_range(1, lines, total, room))
        said = self._said("Output", amount(total), characters, call, "search_output()")
        yield from self._excerpt(lines, lines if ends is None else ends, total.lines, said, call)

    def _of_read(self, answer: ReadAnswer, facts: ExecutionFacts) -> Iterator[Carried]:
        lines = answer.lines
        text = "\n".join(lines)
        if answer.size is None and len(text) <= BODY_CHARACTERS:
            yield Carried(text, next_call=_rest_of_line(answer, facts))
        size = answer.size or counts_of(lines)
        span = next_range(answer.first, lines, answer.total, self._room(text[: BODY_CHARACTERS * 2]))
        first, last, max_chars = span[0], min(span[1], answer.last), span[2] or answer.max_chars
        call = read_call(facts, answer.kernel, answer.stream, (first, last, max_chars), answer.start_char)
        said = self._said("Lines", amount(size), size.characters, call, "search_output()")
        yield from self._excerpt(lines, lines if answer.tail is None else answer.tail, size.lines, said, call)

    def _of_search(self, answer: SearchAnswer, facts: ExecutionFacts) -> Iterator[Carried]:
        found = answer.result.rows if answer.result else []
        columns = answer.result.columns if answer.result else {}
        rows = [f"{kind} {number}{_column(columns, number, kind)} | {line}" for number, kind, line in found]
        count = len(rows) + (answer.result.omitted_rows if answer.result else 0)
        text = "\n".join(rows)
        if len(text) <= BODY_CHARACTERS:
            yield Carried(text)
        head = first_lines(rows[:EXCERPT_LINES], self.counter)
        first = found[min(len(head), len(found) - 1)][0] if found else 1
        total = answer.result.total_lines if answer.result else 0
        average = len(text) // max(1, len(rows))
        span = next_range(first, [], Counts(total, total * average), self._room(text[: BODY_CHARACTERS * 2]))
        call = read_call(facts, answer.kernel, answer.stream, (span[0], span[1], span[2] or answer.max_chars))
        said = self._said("Rows", plural(count, "row"), len(text), call, "a narrower query")
        yield from self._excerpt(rows, rows, count, said, call)

    def _excerpt(
        self, lines: Sequence[str], ends: Sequence[str], total: int, said: str, call: str
    ) -> Iterator[Carried]:
        head = first_lines(lines[:EXCERPT_LINES], self.counter)
        tail = last_lines(ends[-EXCERPT_LINES:], self.counter)
        tail = tail[max(0, len(head) + len(tail) - total) :]
        carried = Carried(omitted="size_limit_exceeded", said=said, head=head, tail=tail, next_call=call)
        yield carried
        yield carried.bare()

    def _said(self, what: str, size: str, characters: int, call: str, other: str) -> str:
        over = f"over {BODY_CHARACTERS:,} characters"
        if characters <= BODY_CHARACTERS:
            over = f"too large for a message of {self.limits.max_result_bytes:,} bytes"
        return OMISSIONS["size_limit_exceeded"].text.format(what=what, amount=size, why=over, call=call, other=other)

    def _room(self, sample: str) -> int:
        """Characters like those of `sample` that one read can return."""
        each = len(json.dumps(sample, ensure_ascii=self.limits.ascii_wire).encode()) / max(1, len(sample))
        left = self.limits.max_result_bytes - FRAME_BYTES - AROUND_TEXT
        return max(1, min(BODY_CHARACTERS, int(left / (max(1.0, each) * self.copies))))


def _limit_unavailable(answer: CellAnswer, facts: ExecutionFacts) -> str:
    return OMISSIONS["token_limit_unavailable"].text.format(
        cell=cell(facts.number),
        state=facts.state,
        amount=amount(facts.counts),
        limit=TOKEN_LIMIT,
        reason=answer.omission_reason.rstrip("."),
    )


def _rest_of_line(answer: ReadAnswer, facts: ExecutionFacts) -> str | None:
    """The call that reads on in the only line that was read, when it was cut."""
    if answer.line_characters is None or answer.max_chars is None:
        return None
    following = answer.start_char + answer.max_chars
    if following > answer.line_characters:
        return None
    span = (answer.first, answer.last, answer.max_chars)
    return read_call(facts, answer.kernel, answer.stream, span, following)


def _column(columns: Mapping[int, int], number: int, kind: str) -> str:
    """Where the first match of a row that was cut stands in its line."""
    return f":{columns[number]}" if kind == "M" and number in columns else ""


def _lines(count: int) -> str:
    return "line" if count == 1 else f"{count:,} lines"
