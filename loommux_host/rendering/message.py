"""An answer into what is sent: text and image blocks, and the fields of structured mode.

Owns the order of a result and that it fits into one message: it takes the most that
`size_choices` offers and has `images` share what is left. Knows no protocol library; the faces
turn `Rendered` into their own types. Sentences are in `sentences`, fields in `structured_fields`.
May take seconds when there are large images: call it in a worker thread then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loommux_host.facts.phrases import error, plural
from loommux_host.facts.result_limits import FRAME_BYTES, Limits
from loommux_host.facts.results import (
    Answer,
    CellAnswer,
    ExecutionStatusAnswer,
    InterruptAnswer,
    ReadAnswer,
    Refusal,
    RestartAnswer,
    SearchAnswer,
    StatusAnswer,
    WatchAnswer,
)
from loommux_host.rendering import sentences
from loommux_host.rendering.forgery_guard import entry, envelope, sendable, shown
from loommux_host.rendering.images import BLOCK_BYTES, ImageBlock, Piece, pieces, without_last_image
from loommux_host.rendering.size_choices import Carried, Carrier
from loommux_host.rendering.structured_fields import Fields, fields_of, is_ok
from loommux_host.token_counting.counter import COUNTING, Counter
from loommux_kernel.shared.protocol import State


@dataclass(frozen=True)
class TextBlock:
    """An MCP text block."""

    text: str


Block = TextBlock | ImageBlock


@dataclass(frozen=True)
class Rendered:
    """A result as it is to be sent. `structured` is None in content mode."""

    blocks: list[Block]
    structured: Fields | None = None
    is_error: bool = False


@dataclass(frozen=True)
class _Layout:
    """The lines of a result: what comes before the text that it carries, that text, what comes after."""

    before: Sequence[str]
    text: str | None
    after: Sequence[str]


def render(answer: Answer, *, structured: bool, limits: Limits, counter: Counter = COUNTING) -> Rendered:
    """The largest true result that `limits` allow. Not on the event loop when there are displays or much text."""
    return _Rendering(answer, structured, limits, counter).rendered()


class _Rendering:
    """One answer on its way to a `Rendered`."""

    def __init__(self, answer: Answer, structured: bool, limits: Limits, counter: Counter) -> None:
        self.answer, self.structured, self.limits = answer, structured, limits
        self.carrier = Carrier(limits, counter, copies=2 if structured else 1)
        self.room = limits.max_result_bytes - FRAME_BYTES
        self.environment = self.bounded([entry(line) for line in sentences.environment(answer)])

    def rendered(self) -> Rendered:
        least = Carried()
        for least in self.carrier.choices(self.answer):
            made = self.made(least)
            left = self.room - self.size(made)
            if left >= 0:
                return self.with_images(least, made, left)
        return self.shortened(least)

    def made(self, carried: Carried, displayed: Sequence[Piece] = (), longest: int | None = None) -> Rendered:
        layout = _layout(self.answer, carried.marked())
        fields = fields_of(self.answer, carried, self.environment) if self.structured else None
        if longest is not None:
            layout = _Layout(_shorter(layout.before, longest), layout.text, _shorter(layout.after, longest))
            fields = _shorter(fields, longest)
        blocks = list(_blocks(layout, displayed, envelope(self.environment)))
        return Rendered(_sendable(blocks), _sendable(fields), not is_ok(self.answer))

    def with_images(self, carried: Carried, made: Rendered, left: int) -> Rendered:
        answer = self.answer
        if not isinstance(answer, CellAnswer) or not answer.displays or answer.execution is None:
            return made
        displayed = pieces(answer.displays, answer.execution.number, left)
        while displayed:
            made = self.made(carried, displayed)
            if self.size(made) <= self.room:
                break
            displayed = without_last_image(displayed)
        return made

    def bounded(self, entries: list[str]) -> list[str]:
        """The environment's lines, as many as an eighth of a message holds; the rest is counted."""
        left = self.room // 8
        for count, text in enumerate(entries):
            left -= len(self.json(text)) * (2 if self.structured else 1)
            if left < 0:
                return [*entries[:count], f"{plural(len(entries) - count, 'more notice')}: no room for them here."]
        return entries

    def size(self, made: Rendered) -> int:
        """Bytes of the result's JSON."""
        texts_only = [{"type": "text", "text": block.text} for block in made.blocks if isinstance(block, TextBlock)]
        shown_images = [block for block in made.blocks if isinstance(block, ImageBlock)]
        return len(self.json([texts_only, made.structured])) + sum(len(i.data) + BLOCK_BYTES for i in shown_images)

    def json(self, value: object) -> bytes:
        return json.dumps(value, ensure_ascii=self.limits.ascii_wire, separators=(",", ":")).encode()

    def shortened(self, carried: Carried) -> Rendered:
        """For what has no bound of its own (a log, a list of names): the middles are left out, and counted."""
        longest = self.room
        while longest > 64:
            longest //= 2
            made = self.made(carried, longest=longest)
            if self.size(made) <= self.room:
                return made
        raise ValueError(f"no result fits into {self.limits.max_result_bytes} bytes")


def _layout(answer: Answer, carried: Carried) -> _Layout:
    match answer:
        case Refusal():
            return _Layout([sentences.refusal(answer)], None, [])
        case CellAnswer():
            return _cell(answer, carried)
        case ReadAnswer():
            heading = sentences.read_heading(answer, whole=carried.text is not None)
            return _Layout([heading, *carried.lines()], carried.text, [])
        case SearchAnswer():
            return _Layout([sentences.search_heading(answer), *carried.lines()], carried.text, [])
        case ExecutionStatusAnswer():
            return _Layout(sentences.execution_status(answer), None, [])
        case InterruptAnswer():
            return _Layout(sentences.interrupt(answer), None, [])
        case RestartAnswer():
            return _Layout(sentences.restart(answer), None, [])
        case WatchAnswer():
            return _Layout(sentences.watch(answer), None, [])
        case StatusAnswer():
            return _Layout(sentences.status(answer), None, [])
    raise TypeError(f"no text for {type(answer).__name__}")


def _cell(answer: CellAnswer, carried: Carried) -> _Layout:
    facts = answer.execution
    if facts is None:
        return _Layout([], carried.text, [])
    before = [sentences.heading(facts, answer.now)]
    if facts.state is State.RUNNING:
        return _Layout([*before, *sentences.running(answer)], None, [])
    after = sentences.ending(facts, answer.kernel)
    if carried.text is None and facts.state is State.ERROR:
        after = [f"Error: {error(facts)}"]
    return _Layout([*before, *carried.lines()], carried.text, after)


def _blocks(layout: _Layout, displayed: Sequence[Piece], closing: str) -> Iterator[Block]:
    """Text up to an image, the image, the text after it; the envelope, which alone is not guarded, last."""
    waiting = list(layout.before)
    text = (layout.text or "").removesuffix("\n")
    lines = text.split("\n") if displayed and layout.text else []
    given = 0
    for piece in displayed:
        waiting += lines[given : piece.line]
        given = max(given, piece.line)
        if piece.text:
            waiting.append(piece.text)
        if piece.image is not None:
            if waiting:
                yield TextBlock(shown("\n".join(waiting)))
            waiting = []
            yield piece.image
    if displayed:
        waiting += lines[given:]
    elif layout.text:
        waiting.append(text)
    waiting += layout.after
    last = [shown("\n".join(waiting))] if waiting else []
    if closing:
        last.append(closing)
    if last:
        yield TextBlock("\n".join(last))


def _sendable(value: Any) -> Any:
    """`value` with every string sendable."""
    match value:
        case str():
            return sendable(value)
        case TextBlock():
            return TextBlock(sendable(value.text))
        case list():
            return [_sendable(one) for one in value]
        case dict():
            return {key: _sendable(one) for key, one in value.items()}
    return value


def _shorter(value: Any, longest: int) -> Any:
    """`value` with the middles of its long strings and lists left out."""
    match value:
        case str():
            return _cut(value, longest)
        case list():
            few = max(4, longest // 64)
            middle = [f"…[{len(value) - few:,} more]…"] if len(value) > few else []
            chosen = [*value[: few // 2], *middle, *value[-(few // 2) :]] if middle else value
            return [_shorter(one, longest) for one in chosen]
        case dict():
            return {key: _shorter(one, longest) for key, one in value.items()}
    return value


def _cut(text: str, longest: int) -> str:
    """The beginning and the end of `text`, with how much is left out between them."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n…[{len(text) - 2 * half:,} characters omitted]…\n{text[-half:]}"
