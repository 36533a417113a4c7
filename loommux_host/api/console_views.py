"""What the console shows of a kernel: windows of its output, displays, notices.

Owns no state; reads the journal and, in worker threads, the record stores. What it hands
out is data as the records have it: lines are clipped and never rendered, and displays go out
under a policy that lets nothing in them act. Called by `api`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import dataclass
from typing import Any

from loommux_host.api.activity import News
from loommux_host.api.history import summary
from loommux_host.facts.refusals import Refused, execution_not_found, process_not_found
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.process_life import Life
from loommux_host.kernels.record_reads import RecordsGone, in_thread, reading
from loommux_host.usecases.execution_selection import Chosen, choose, of_record, of_view
from loommux_kernel.shared.bundles import bundle_text
from loommux_kernel.shared.protocol import Counts, State, Stream
from loommux_kernel.shared.records.reader import RecordReader

#: Lines and characters of a line that one answer carries at most.
MOST_LINES = 2_000
MOST_CHARACTERS = 20_000
#: Characters of a display's text that are told beside its types.
TEXT = 2_000
#: What may be had of a display as it is: raster images in the page, the others in a frame that can do nothing.
IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
TEXTS = frozenset({"image/svg+xml", "text/html", "text/markdown", "text/latex", "text/plain", "application/json"})
AS_TEXT = frozenset({"text/markdown", "text/latex", "application/json"})
#: In front of HTML: its links want a window of their own, which no sandbox opens. Followed in the frame they would
#: leave the browser's error page there.
LINKS_LEAD_NOWHERE = '<base target="_blank">'
#: For what code made: no script, no form, no link that leads anywhere, nothing from elsewhere.
POWERLESS = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


@dataclass(frozen=True)
class Which:
    """An execution by IPython's number, or by serial, which those that IPython did not count have too."""

    number: int | None
    serial: int | None
    process: int | None


@dataclass(frozen=True)
class Window:
    """Lines from `first`, or without one the last ones, so many, each clipped."""

    first: int | None
    count: int
    max_chars: int


@dataclass(frozen=True)
class Shown:
    """One form of a display, to be sent as `media_type`."""

    content: bytes
    media_type: str


@dataclass(frozen=True)
class ConsoleViews:
    """What people look at."""

    news: News

    async def lines(
        self, kernel: Kernel, which: Which, stream: Stream, window: Window, after: float | None, seconds: float
    ) -> dict[str, Any]:
        """A window of one stream, and how much there is of all.

        With `after`, an `updated_at` of before, waits at most so long for something newer or the end. Raises `Refused`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        chosen = await self._chosen(kernel, which)
        while after is not None and _running(chosen) and _updated(chosen) <= after and not self.news.over:
            left = deadline - loop.time()
            if left <= 0:
                break
            await self.news.wait(kernel, min(left, 1.0))
        running, updated = _running(chosen), _updated(chosen)
        await chosen.life.flush()
        found = await in_thread(_lines, chosen, stream, window)
        if after is not None:  # who follows has it
            del found["source"]
        return {**found, "running": running, "updated_at": updated}

    async def displays(self, kernel: Kernel, which: Which) -> dict[str, Any]:
        """What the execution displayed: place, kind, types with their sizes, a text. Raises `Refused`."""
        chosen = await self._chosen(kernel, which)
        await chosen.life.flush()
        return {"displays": await in_thread(_displays, chosen)}

    async def display(self, kernel: Kernel, which: Which, ordinal: int, media_type: str) -> Shown | None:
        """One form of one display; None when it has no such form, or it may not be shown. Raises `Refused`."""
        chosen = await self._chosen(kernel, which)
        await chosen.life.flush()
        return await in_thread(_display, chosen, ordinal, media_type)

    def notices(self, kernel: Kernel, count: int) -> dict[str, Any]:
        """The last notices of the kernel, newest first, whoever they are for. Nobody has had them by that."""
        entries = kernel.journal.last_notices(count)[::-1]
        return {
            "notices": [
                {
                    "at": entry.at,
                    "process": entry.process or None,
                    "execution": entry.number,
                    "serial": entry.serial,
                    "label": entry.label,
                    "text": entry.text,
                }
                for entry in entries
            ]
        }

    async def _chosen(self, kernel: Kernel, which: Which) -> Chosen:
        if which.serial is None:
            return await choose(kernel, which.number, which.process)
        await kernel.accounted()
        life = next((one for one in kernel.lives() if which.process in (None, one.process.process)), None)
        if life is None:
            known = sorted(one.process.process for one in kernel.lives())
            raise Refused(process_not_found(which.process or 0, kernel.name, known))
        view = life.mirror.by_serial(which.serial)
        if view is not None:
            return Chosen(life, of_view(life, view), view)
        record = await in_thread(_record, life, which.serial)
        if record is None:
            raise Refused(execution_not_found(which.serial, None, process=which.process))
        return Chosen(life, of_record(life, record))


def _running(chosen: Chosen) -> bool:
    return chosen.view.running if chosen.view is not None else chosen.facts.state is State.RUNNING


def _updated(chosen: Chosen) -> float:
    return (chosen.view or chosen.facts).updated_at


def _record(life: Life, serial: int):
    with reading(life.records) as reader:
        return reader.by_serial(serial)


def _lines(chosen: Chosen, stream: Stream, window: Window) -> dict[str, Any]:
    facts, counts, lines, first, displays = chosen.facts, dict.fromkeys(Stream, Counts()), [], 1, []
    try:
        with reading(chosen.life.records) as reader:
            record = reader.by_serial(facts.serial)
            if record is not None:
                facts, counts = of_record(chosen.life, record), {**counts, **record.counts}
                first = window.first or max(1, counts[stream].lines - window.count + 1)
                last = first + window.count - 1
                lines = reader.lines(facts.serial, stream, first, last, window.max_chars)
                displays = reader.display_sizes(facts.serial)
    except RecordsGone:  # it has begun and printed nothing yet
        pass
    return {
        **summary(facts),
        "streams": {name: count.lines for name, count in counts.items()},
        "total_lines": counts[stream].lines,
        "first": first,
        "text": lines,
        "displays": [{"ordinal": ordinal, "line": line, "bytes": length} for ordinal, line, length in displays],
    }


def _displays(chosen: Chosen) -> list[dict[str, Any]]:
    with reading(chosen.life.records) as reader:
        return [
            {
                "ordinal": shown.ordinal,
                "line": shown.line,
                "kind": shown.kind,
                "types": {name: _size(value) for name, value in shown.bundle.items()},
                "text": (bundle_text(shown.bundle) or "")[:TEXT],
            }
            for shown in _all(reader, chosen.facts.serial)
        ]


def _all(reader: RecordReader, serial: int):
    """One at a time: together they may be as large as anything."""
    for ordinal, _, _ in reader.display_sizes(serial):
        shown = reader.display(serial, ordinal)
        if shown is not None:
            yield shown


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str) else len(str(value))


def _display(chosen: Chosen, ordinal: int, media_type: str) -> Shown | None:
    with reading(chosen.life.records) as reader:
        shown = reader.display(chosen.facts.serial, ordinal)
    value = shown.bundle.get(media_type) if shown else None
    if isinstance(value, list):
        value = "".join(map(str, value))
    if not isinstance(value, str):
        return None
    if media_type in IMAGES:
        try:
            return Shown(base64.b64decode("".join(value.split()), validate=True), media_type)
        except (binascii.Error, ValueError):
            return None
    if media_type not in TEXTS:
        return None
    if media_type == "text/html":
        value = LINKS_LEAD_NOWHERE + value
    plain = "text/plain" if media_type in AS_TEXT else media_type
    return Shown(value.encode("utf-8", "replace"), f"{plain}; charset=utf-8")
