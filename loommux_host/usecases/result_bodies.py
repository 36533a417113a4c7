"""What the result of a cell carries of its output, fetched as far as the limits allow (contract 3.2).

An output of at most 5,000 bytes comes with the kernel's reply; of a larger one only as much
is read as can be shown. It decides what is fetched, `rendering.message` what is said. Called by `service`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from loommux_host.facts.result_limits import (
    BODY_CHARACTERS,
    EXCERPT_LINE_CHARACTERS,
    RECENT_LINES,
    TOKEN_LIMIT,
    always_within,
    never_within,
)
from loommux_host.facts.results import CellAnswer
from loommux_host.kernels.outcomes import accounted
from loommux_host.kernels.record_reads import RecordsBehind, RecordsGone, RecordsUnreadable, in_thread, reading
from loommux_host.token_counting.vocabulary import VocabularyUnavailable
from loommux_host.usecases.execution_selection import Chosen, of_view, taken_in
from loommux_kernel.shared.protocol import State, Stream
from loommux_kernel.shared.record_types import DisplayRecord
from loommux_kernel.shared.records.reader import RecordReader

log = logging.getLogger(__name__)

#: Lines from each end that may take the place of a body over 200,000 characters.
EXCERPT_LINES = 200
#: Streams of the structured result beside combined.
OTHER_STREAMS = (Stream.STDOUT, Stream.STDERR, Stream.RESULT)


@dataclass(frozen=True)
class Bodies:
    """How bodies are fetched. `within_limit` counts tokens; `structured` wants the single streams too."""

    within_limit: Callable[[str], bool]
    structured: bool = False
    omission_tail_lines: int = 20

    async def fill(
        self,
        answer: CellAnswer,
        chosen: Chosen,
        *,
        body: str | None = None,
        displays: int | None = None,
        fields: bool = False,
    ) -> None:
        """Add to `answer` what it may carry. `body` and `displays` are the kernel's reply's, if there was one.

        `fields`: for a caller that reads fields, whatever the server's other results are.
        """
        streams = self.structured or fields
        if chosen.facts.state is State.RUNNING:
            await chosen.life.flush()
            with contextlib.suppress(RecordsGone, RecordsUnreadable):
                answer.recent = await in_thread(_recent, chosen)
            await accounted(chosen.life)
            if chosen.view is None or chosen.view.running:
                answer.body_omitted = "running"
                return
            # It has ended meanwhile: a result that says Running would be contradicted by its own notices.
            chosen = replace(chosen, facts=of_view(chosen.life, chosen.view))
            answer.execution, answer.recent, displays = chosen.facts, [], None
            answer.ended_by = answer.silent_seconds = None
        facts = chosen.facts
        if body is None and chosen.view is not None and not chosen.view.recorded:
            answer.body_omitted = "output_unreadable"
            return
        if facts.counts.utf8_bytes == 0:
            body = ""
        if body is None or displays != 0 or streams:
            try:
                await in_thread(self._read, answer, chosen, body, displays, streams)
            except RecordsBehind:
                await self._without_record(answer, body, "output_unreadable")
            except RecordsGone:
                await self._without_record(answer, body, "output_gone")
            except RecordsUnreadable:
                log.warning("the output of an execution cannot be read", exc_info=True)
                answer.body, answer.body_omitted = None, "output_unreadable"
        elif always_within(facts.counts.utf8_bytes, TOKEN_LIMIT):
            answer.body = body
        else:
            await self._without_record(answer, body, "output_unreadable")

    async def _without_record(self, answer: CellAnswer, body: str | None, otherwise: str) -> None:
        """What the kernel's reply brought is all there is; `otherwise` says why there is nothing else."""
        answer.body, answer.body_omitted = None, otherwise
        if body is None:
            return
        try:
            if answer.full_output or await in_thread(self.within_limit, body):
                answer.body, answer.body_omitted = body, None
                return
        except VocabularyUnavailable as error:
            answer.body_omitted, answer.omission_reason = "token_limit_unavailable", str(error)
            return
        answer.body_omitted = "token_limit_exceeded"
        if self.omission_tail_lines:
            answer.tail = body.removesuffix("\n").split("\n")[-self.omission_tail_lines :]

    def _read(self, answer: CellAnswer, chosen: Chosen, body: str | None, displays: int | None, streams: bool) -> None:
        """In a thread: everything an ended execution's answer needs from the store."""
        serial = chosen.facts.serial
        with reading(chosen.life.records) as reader:
            taken_in(reader, chosen)
            if displays != 0:
                answer.displays = _displays(reader, serial)
            answer.body = self._body(answer, chosen, reader) if body is None else body
            if answer.body is not None and streams:
                answer.streams = {stream: reader.text(serial, stream) for stream in OTHER_STREAMS}

    def _body(self, answer: CellAnswer, chosen: Chosen, reader: RecordReader) -> str | None:
        counts, serial = chosen.facts.counts, chosen.facts.serial
        if answer.full_output:
            if counts.characters <= BODY_CHARACTERS:
                return reader.text(serial, Stream.COMBINED)
            answer.body_omitted = "size_limit_exceeded"
            answer.head = reader.lines(serial, Stream.COMBINED, 1, EXCERPT_LINES, BODY_CHARACTERS)
            answer.tail = reader.tail(serial, Stream.COMBINED, EXCERPT_LINES, max_chars=EXCERPT_LINE_CHARACTERS)
            return None
        if not never_within(counts.utf8_bytes, TOKEN_LIMIT):
            text = reader.text(serial, Stream.COMBINED)
            try:
                if always_within(counts.utf8_bytes, TOKEN_LIMIT) or self.within_limit(text):
                    return text
            except VocabularyUnavailable as error:
                answer.body_omitted, answer.omission_reason = "token_limit_unavailable", str(error)
                return None
        answer.body_omitted = "token_limit_exceeded"
        if self.omission_tail_lines:
            answer.tail = reader.tail(
                serial, Stream.COMBINED, self.omission_tail_lines, max_chars=EXCERPT_LINE_CHARACTERS
            )
        return None


def _recent(chosen: Chosen) -> list[str]:
    with reading(chosen.life.records) as reader:
        return reader.tail(
            chosen.facts.serial, Stream.COMBINED, RECENT_LINES, nonblank=True, max_chars=EXCERPT_LINE_CHARACTERS
        )


def _displays(reader: RecordReader, serial: int) -> list[DisplayRecord]:
    return reader.displays(serial, images=True)
