"""The output of one execution: five streams and its displays, as they arrive.

Owns which stream gets what: text goes to its own stream and to the combined one,
displays and tracebacks stand in lines of their own, a clear erases, an update
replaces. As long as an execution has used one stream only, that stream is the
combined one and is stored once (`sole`). Pure; `writer` holds one for each
execution that can still change and stores the rows that it gives.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loommux_kernel.shared.bundles import bundle_text, shown_result, shown_text
from loommux_kernel.shared.protocol import Counts, Stream
from loommux_kernel.shared.records.database import CODES, Kind, Row
from loommux_kernel.shared.records.stream_log import StreamLog
from loommux_kernel.shared.records.widget_regions import Regions
from loommux_kernel.text.long_row import Fetch
from loommux_kernel.text.terminal import flatten

#: (stream, row id, part) -> the part's text.
FetchFrom = Callable[[Stream, int, int], str | None]


@dataclass
class _Display:
    """A bundle on its way to the store."""

    kind: str
    display_id: str | None
    bundle: str
    metadata: str


class Transcript:
    """See the module. `save` stores all rows at once; used before a long row is copied."""

    def __init__(self, serial: int, fetch: FetchFrom, save: Callable[[], None]) -> None:
        self.serial = serial
        self._fetch_from = fetch
        self._save = save
        self.logs: dict[Stream, StreamLog] = {}
        #: The stream that the combined one is the same as, None when there is no such stream.
        self.sole: Stream | None = None
        self._clear_waits = False
        self._regions = Regions()
        self._copies: list[tuple[Stream, int]] = []
        self.last_ordinal = 0
        #: Lines up to the end of the displays whose text is still on the screen.
        self._lines: dict[int, int] = {}
        self._unsaved: dict[int, _Display] = {}
        self._moved: set[int] = set()
        self._gone: list[tuple[int, int]] = []
        self._sizes: dict[int, int] = {}

    # -- what arrives ----------------------------------------------------------

    def write(self, runs: list[tuple[Stream, str]]) -> None:
        """Text as it was written, in order."""
        texts: dict[Stream, list[str]] = {}
        for stream, text in runs:
            texts.setdefault(stream, []).append(text)
        combined = "".join([text for _, text in runs])
        self.say(combined, {stream: "".join(own) for stream, own in texts.items()})

    def say(self, combined: str, own: dict[Stream, str]) -> None:
        """As `write`, sorted already: all of the text in order, and each stream's own."""
        self._output()
        for stream in own:
            self._use(stream)
        self._combined().terminal.feed(combined)
        for stream, text in own.items():
            if stream is not self.sole:
                self._log(stream).terminal.feed(text)

    def traceback(self, text: str, shown: str | None = None) -> None:
        """A traceback; its colours are dropped. The combined stream gets `shown`, if it is shorter there."""
        self._output()
        if shown is None:
            self._use(Stream.TRACEBACK)
        else:
            self._diverge()
        self._block(Stream.TRACEBACK, 0, text, text if shown is None else shown)

    def display(
        self, kind: str, number: int | None, bundle: dict[str, Any], metadata: dict[str, Any], display_id: str | None
    ) -> int:
        """A bundle with its text; its ordinal."""
        self._output()
        self.last_ordinal += 1
        self._regions.shown(self.last_ordinal)
        shown = shown_text(bundle, self.last_ordinal)
        if bundle_text(bundle) is not None and kind == "result" and number is not None:
            self._diverge()
            self._put(self.last_ordinal, shown, shown_result(bundle, self.last_ordinal, number))
        else:
            self._use(Stream.RESULT)
            self._put(self.last_ordinal, shown, shown)
        self._keep(self.last_ordinal, kind, bundle, metadata, display_id)
        return self.last_ordinal

    def holds(self, ordinal: int) -> bool:
        """Whether an update of that display would stand where it is."""
        return Stream.COMBINED in self.logs and self._combined().terminal.holds_block(ordinal)

    def update(self, ordinal: int, bundle: dict[str, Any], metadata: dict[str, Any], display_id: str) -> None:
        """Replace a display's text where it still is, else append it; its bundle is replaced."""
        shown = shown_text(bundle, ordinal)
        combined = self._combined()
        if not combined.terminal.replace_block(ordinal, shown):
            combined.terminal.block(ordinal, shown)
        combined.touched = True
        if self.sole is not Stream.RESULT:
            result = self._log(Stream.RESULT)
            if not result.terminal.replace_block(ordinal, shown):
                result.terminal.block(ordinal, shown)
        self._follow_blocks()
        self._lines[ordinal] = combined.terminal.block_end(ordinal)
        self._keep(ordinal, "display", bundle, metadata, display_id)

    def forget(self, ordinal: int) -> None:
        """The display is gone, or another execution shows it now."""
        self._unsaved.pop(ordinal, None)
        self._sizes.pop(ordinal, None)
        self._gone.append((ordinal, ordinal))

    def capture(self, widget: str) -> None:
        """An output widget captures what comes from here on."""
        self._regions.begin(widget, self.logs, self.sole)
        self._follow_blocks()

    def release(self, widget: str) -> None:
        """An output widget captures no more."""
        self._regions.end(widget, self.logs)
        self._follow_blocks()

    def close_widget(self, widget: str) -> None:
        """An output widget is gone, and what it holds with it."""
        self._regions.end(widget, self.logs)
        self._forget_all(self._regions.erase(widget, self.logs))

    def clear(self, wait: bool) -> None:
        """Erase what is on the screens and all displays, or what a capturing widget holds, now or before more comes."""
        if self._regions.capturing:
            self._forget_all(self._regions.clear(wait, self.logs))
            return
        if wait:
            self._clear_waits = True
            return
        self._clear_waits = False
        for log in self.logs.values():
            log.terminal.clear()
            log.touched = True
        self._gone.append((1, self.last_ordinal))
        for kept in (self._lines, self._unsaved, self._moved, self._sizes):
            kept.clear()
        self._regions.cleared(self.logs)

    # -- what there is ---------------------------------------------------------

    def counts(self, stream: Stream) -> Counts:
        log = self._log_of(stream)
        return log.counts() if log else Counts()

    def text(self, max_bytes: int) -> str | None:
        """The combined text, if it is small and in memory."""
        combined = self.logs.get(Stream.COMBINED)
        return combined.text(max_bytes) if combined else ""

    def last_line(self, characters: int) -> str:
        """The beginning of the last line on the screen that is not blank."""
        combined = self.logs.get(Stream.COMBINED)
        for row in reversed(combined.terminal.rows() if combined else []):
            line = row if isinstance(row, str) else row.head(characters)
            if line.strip():
                return line[:characters]
        return ""

    def size(self) -> int:
        """Bytes that the store needs, about, as of the last `rows`."""
        own = sum(log.written.utf8_bytes - log.shared_bytes for log in self.logs.values())
        return own + sum(self._sizes.values())

    def unsaved(self) -> int:
        """Characters in memory that wait to be stored, about."""
        bundles = sum(len(display.bundle) for display in self._unsaved.values())
        return bundles + sum(log.unsaved() for log in self.logs.values())

    def shed(self) -> None:
        """Give up what waits to be stored, but for the last lines."""
        for log in self.logs.values():
            log.shed()
        self._unsaved.clear()

    # -- rows ------------------------------------------------------------------

    def rows(self, at: float) -> list[Row]:
        """What is to be written; the same again until `saved`."""
        rows: list[Row] = [
            (Kind.PARTS_COPY, self.serial, CODES[Stream.COMBINED], CODES[stream], row) for stream, row in self._copies
        ]
        for stream, log in self.logs.items():
            if log.touched:
                rows += log.rows(self.serial, at, self.sole if stream is Stream.COMBINED else None)
        rows += [(Kind.DISPLAYS_GONE, self.serial, first, last) for first, last in self._gone]
        for ordinal, d in self._unsaved.items():
            line = self._lines[ordinal]
            rows.append((Kind.DISPLAY, self.serial, ordinal, line, d.kind, d.display_id, d.metadata, d.bundle))
        for ordinal in self._moved - self._unsaved.keys():
            rows.append((Kind.DISPLAY_LINE, self.serial, ordinal, self._lines[ordinal]))
        return rows

    def saved(self) -> None:
        """The last `rows` are written, and nothing happened since."""
        for log in self.logs.values():
            if log.touched:
                log.saved()
        for kept in (self._copies, self._gone, self._unsaved, self._moved):
            kept.clear()
        if len(self._lines) > 200:
            alive = self._combined().terminal.blocks()
            self._lines = {ordinal: line for ordinal, line in self._lines.items() if ordinal in alive}

    def take_up(self, logs: dict[Stream, StreamLog], sole: Stream | None, sizes: dict[int, int], ordinal: int) -> None:
        """Go on from what was stored."""
        self.logs, self.sole, self._sizes, self.last_ordinal = logs, sole, sizes, ordinal
        self._follow_blocks()
        self._moved.clear()

    # -- inside ----------------------------------------------------------------

    def fetch(self, stream: Stream) -> Fetch:
        """Fetches the parts of a stream's long rows."""
        return lambda row, part: self._fetch_from(stream, row, part)

    def _output(self) -> None:
        if self._regions.clears:
            self._forget_all(self._regions.clear(False, self.logs))
        elif self._clear_waits:
            self.clear(wait=False)

    def _forget_all(self, ordinals: list[int]) -> None:
        for ordinal in ordinals:
            self.forget(ordinal)
            self._lines.pop(ordinal, None)
            self._moved.discard(ordinal)
        self._follow_blocks()

    def _combined(self) -> StreamLog:
        return self._log(Stream.COMBINED)

    def _log(self, stream: Stream) -> StreamLog:
        log = self.logs.get(stream)
        if log is None:
            log = self.logs[stream] = StreamLog(stream, self.fetch(stream))
        log.touched = True
        return log

    def _log_of(self, stream: Stream) -> StreamLog | None:
        return self.logs.get(Stream.COMBINED if stream is self.sole else stream)

    def _use(self, stream: Stream) -> None:
        """Text of `stream` comes, the same for it and for the combined stream."""
        if not self.logs:
            self.sole = stream
            self._combined()
        elif stream is not self.sole:
            self._diverge()

    def _diverge(self) -> None:
        """What comes is not the same for the combined stream and the sole one."""
        sole, combined = self.sole, self._combined()
        if sole is None:
            return
        long_rows = [row.id for row in combined.terminal.long_rows()]
        if long_rows:
            self._save()
        self.sole = None
        self.logs[sole] = combined.copy(sole, self.fetch(sole))
        if long_rows:
            self._copies = [(sole, row) for row in long_rows]
            self._save()

    def _put(self, ordinal: int, text: str, combined_text: str) -> None:
        self._lines[ordinal] = self._block(Stream.RESULT, ordinal, text, combined_text)

    def _block(self, stream: Stream, key: int, text: str, combined_text: str) -> int:
        """Text in lines of its own; how many combined lines there are up to its end."""
        if stream is not self.sole:
            self._log(stream).terminal.block(key, text)
        return self._combined().terminal.block(key, combined_text)

    def _follow_blocks(self) -> None:
        """Take over where the displays that are still on the screen end."""
        blocks = self._combined().terminal.blocks() if self.logs else {}
        for ordinal, (_, end) in blocks.items():
            if ordinal > 0 and self._lines.get(ordinal) != end:
                self._lines[ordinal] = end
                self._moved.add(ordinal)

    def _keep(
        self, ordinal: int, kind: str, bundle: dict[str, Any], metadata: dict[str, Any], display_id: str | None
    ) -> None:
        display = _Display(kind, display_id, _json(bundle), _json(metadata))
        self._unsaved[ordinal] = display
        self._sizes[ordinal] = len(display.bundle)


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, default=lambda odd: flatten(repr(odd)))
