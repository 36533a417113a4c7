"""What stands in place of a text that is too large: some of its lines, and the call that reads on.

Pure but for the counter. Called by `size_choices`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from loommux_host.facts.result_limits import EXCERPT_TOKENS, always_within
from loommux_host.facts.results import ExecutionFacts, KernelFacts
from loommux_host.rendering.sentences import cut
from loommux_host.token_counting.counter import Counter
from loommux_host.token_counting.vocabulary import VocabularyUnavailable
from loommux_kernel.shared.protocol import Counts, Stream

#: How much of what would fit is asked for next: lines differ in length.
MARGIN = 0.9
#: Lines that are counted at a time.
BATCH = 50


def last_lines(lines: Sequence[str], counter: Counter) -> list[str]:
    """The longest end of `lines` within 500 tokens, each line cut to 200 characters."""
    return _within_tokens([cut(line) for line in reversed(lines)], counter)[::-1]


def first_lines(lines: Sequence[str], counter: Counter) -> list[str]:
    """The longest beginning of `lines` within 500 tokens, each line cut to 200 characters."""
    return _within_tokens([cut(line) for line in lines], counter)


def _within_tokens(lines: list[str], counter: Counter) -> list[str]:
    if always_within(sum(len(line.encode(errors="replace")) + 1 for line in lines), EXCERPT_TOKENS):
        return lines
    taken: list[str] = []
    spent = 0
    for line, cost in _costs(lines, counter):
        spent += cost
        if spent > EXCERPT_TOKENS:
            break
        taken.append(line)
    while taken and not _fits("\n".join(taken), counter):  # joined lines can have more tokens, though hardly ever do
        taken.pop()
    return taken


def _fits(text: str, counter: Counter) -> bool:
    try:
        return counter.within_limit(text, EXCERPT_TOKENS)
    except VocabularyUnavailable:
        return True  # counted in bytes


def _costs(lines: list[str], counter: Counter) -> Iterator[tuple[str, int]]:
    """Each line with its tokens and its end's; with its bytes, which are never fewer, when tokens cannot be counted."""
    for start in range(0, len(lines), BATCH):
        batch = lines[start : start + BATCH]
        try:
            costs = counter.counts([line + "\n" for line in batch])
        except VocabularyUnavailable:
            costs = [len(line.encode(errors="replace")) + 1 for line in batch]
        yield from zip(batch, costs, strict=True)


def next_range(first: int, lines: Sequence[str], total: Counts, room: int) -> tuple[int, int, int | None]:
    """(first, last, max_chars) of a read of at most `room` characters that begins at line `first`.

    `lines` are those known from there on; when they do not decide, the average does.
    """
    spent = 0
    for count, line in enumerate(lines):
        spent += len(line) + 1
        if spent > room:
            return (first, first + count - 1, None) if count else (first, first, _rounded(room * MARGIN))
    average = total.characters / max(1, total.lines)
    fitting = len(lines) + int((room - spent) * MARGIN / max(1.0, average))
    last = min(total.lines, max(first, first + _rounded(fitting) - 1))
    return first, last, None if average <= room else _rounded(room * MARGIN)


def _rounded(number: float) -> int:
    """Down to two digits: ``2400``."""
    whole = int(number)
    unit = 10 ** max(0, len(str(whole)) - 2)
    return max(1, whole // unit * unit)


def read_call(
    facts: ExecutionFacts,
    kernel: KernelFacts | None,
    stream: Stream,
    span: tuple[int, int, int | None],
    start_char: int = 1,
) -> str:
    """``read_output(execution=7, line_range="1:2400")``"""
    first, last, max_chars = span
    arguments = [f"execution={facts.number}"] if facts.number is not None else []
    if stream is not Stream.COMBINED:
        arguments.append(f"stream={json.dumps(str(stream))}")
    arguments.append(f'line_range="{first}:{last}"')
    if start_char > 1:
        arguments.append(f"start_char={start_char}")
    if max_chars is not None:
        arguments.append(f"max_chars={max_chars}")
    if kernel is not None and facts.process != kernel.process:
        arguments.append(f"process={facts.process}")
    return f"read_output({', '.join(arguments)})"


def counts_of(lines: Sequence[str]) -> Counts:
    """The size of lines joined by newlines."""
    text_bytes = sum(len(line.encode(errors="replace")) for line in lines)
    ends = max(0, len(lines) - 1)
    return Counts(len(lines), sum(map(len, lines)) + ends, text_bytes + ends)
