"""What the API and the console read of executions: pages of them, and output to follow.

Owns no state; reads the record stores in worker threads and waits for news of what still
runs. Called by `api`.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import zlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Any

from loommux_host.api.activity import News
from loommux_host.facts.phrases import one_line
from loommux_host.facts.results import ExecutionFacts
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.process_life import Life
from loommux_host.kernels.record_reads import RecordsGone, in_thread, reading
from loommux_host.rendering.notebook import Part, notebook
from loommux_host.usecases.execution_selection import Chosen, choose, of_record
from loommux_kernel.shared.protocol import State, Stream, now

log = logging.getLogger(__name__)

#: Settled lines that one answer carries at most.
MOST_LINES = 5_000
#: Characters of a notebook that are sent together.
PIECE = 64 << 10


@dataclass(frozen=True)
class History:
    """The executions of kernels, as records have them."""

    news: News

    async def executions(
        self, kernel: Kernel, limit: int, before: int | None, process: int | None, max_chars: int | None = None
    ) -> dict[str, Any]:
        """One page, newest first, of one process: the newest, or the one given. `next` is the next page's `before`.

        Sources are clipped to `max_chars`.
        """
        life = next((one for one in kernel.lives() if process in (None, one.process.process)), None)
        if life is None:
            return {"executions": [], "process": process, "next": None}
        await life.flush()

        def read() -> list[ExecutionFacts]:
            with reading(life.records) as reader:
                return [of_record(life, record) for record in reader.executions(limit + 1, before)]

        try:
            page = await in_thread(read)
        except RecordsGone:
            page = []
        more, page = len(page) > limit, page[:limit]
        return {
            "executions": [summary(facts, max_chars) for facts in page],
            "process": life.process.process,
            "next": page[-1].serial if more else None,
        }

    async def notebook(self, kernel: Kernel) -> AsyncGenerator[str]:
        """The kernel as the text of an .ipynb, in pieces: every process whose records can be read."""
        lives = kernel.lives()[::-1]
        for life in lives:
            await life.flush()
        parts = await in_thread(lambda: [_part(life) for life in lives])
        return _pieces(notebook(kernel.name, kernel.id, parts, now()), parts)

    async def follow(
        self,
        kernel: Kernel,
        number: int | None,
        process: int | None,
        stream: Stream,
        since: int,
        seconds: float,
        mark: str | None = None,
    ) -> dict[str, Any]:
        """Settled text after the first `since` settled lines, how many are settled then, and what may still change.

        With `seconds`, waits at most so long for any of it, or for the end; `mark` is that of the answer
        before, so that a change since then counts as well. Raises `Refused`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        chosen = await choose(kernel, number, process)
        while True:
            await chosen.life.flush()
            running = chosen.view.running if chosen.view is not None else chosen.facts.state is State.RUNNING
            text, settled, tail = await in_thread(_since, chosen, stream, since)
            left, before, mark = deadline - loop.time(), mark, f"{zlib.crc32(tail.encode(errors='surrogatepass')):x}"
            if text or not running or left <= 0 or before not in (None, mark) or self.news.over:
                break
            await self.news.wait(kernel, min(left, 1.0))
        return {
            "execution": chosen.facts.number,
            "process": chosen.facts.process,
            "state": State.RUNNING if running else (chosen.view or chosen.facts).state,
            "text": text,
            "offset": settled,
            "tail": tail,
            "mark": mark,
        }


def _part(life: Life) -> Part:
    try:
        reader = life.records.reader()
    except FileNotFoundError:
        reader = None
    except sqlite3.DatabaseError:  # the other processes' records are no worse for it
        log.exception("the records at %s cannot be read", life.records.path)
        reader = None
    return Part(life.process.process, reader, life.death)


async def _pieces(texts: Iterator[str], parts: list[Part]) -> AsyncGenerator[str]:
    """The same, read in a thread; the readers are closed in the end, however that comes."""

    def some() -> str:
        pieces: list[str] = []
        while sum(map(len, pieces)) < PIECE and (text := next(texts, None)) is not None:
            pieces.append(text)
        return "".join(pieces)

    try:
        while text := await in_thread(some):
            yield text
    finally:
        for part in parts:
            if part.records is not None:
                part.records.close()


def _since(chosen: Chosen, stream: Stream, since: int) -> tuple[str, int, str]:
    with reading(chosen.life.records) as reader:
        return reader.since(chosen.facts.serial, stream, since, MOST_LINES)


def summary(facts: ExecutionFacts, max_chars: int | None = None) -> dict[str, Any]:
    """One execution in a list."""
    return {
        "execution": facts.number,
        "serial": facts.serial,
        "process": facts.process,
        "state": facts.state,
        "origin": {"kind": facts.origin.kind, "label": facts.origin.label, "client": facts.origin.client},
        "source": facts.source[:max_chars],
        "source_characters": len(facts.source),
        "submitted_at": facts.submitted_at,
        "started_at": facts.started_at,
        "completed_at": facts.completed_at,
        "elapsed_seconds": round(facts.elapsed(now()), 3),
        "lines": facts.counts.lines,
        "characters": facts.counts.characters,
        "utf8_bytes": facts.counts.utf8_bytes,
        "late_lines": facts.late_lines,
        "ename": facts.ename,
        "evalue": one_line(facts.evalue) if facts.evalue else facts.evalue,
        "dropped": facts.dropped,
    }
