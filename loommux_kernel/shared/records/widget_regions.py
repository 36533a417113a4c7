"""What output widgets capture of one execution: stretches of its text that can be erased again.

Owns which widget captures now, where in each stream what it has captured stands, and
erasing that: a clear in a widget is the widget's, not the cell's. Pure. `transcript`
holds one and tells it of captures, clears and displays.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from loommux_kernel.shared.protocol import Stream
from loommux_kernel.shared.records.stream_log import StreamLog
from loommux_kernel.text.screen import SCREEN_LINES

Logs = dict[Stream, StreamLog]


@dataclass
class _Capture:
    """A capture that goes on: lines before it in each stream that there was, and which one was the combined."""

    widget: str
    before: dict[Stream, int]
    sole: Stream | None


@dataclass
class _Captured:
    """What a widget holds: keys of blocks, and the displays among them."""

    keys: list[int] = field(default_factory=list)
    ordinals: list[int] = field(default_factory=list)
    #: Its clear waits for its next output.
    clears: bool = False


class Regions:
    """See the module. `logs` are the transcript's; a changed one is marked as touched."""

    def __init__(self) -> None:
        self._captures: list[_Capture] = []
        self._captured: dict[str, _Captured] = {}
        #: Keys of displays are positive, of tracebacks 0.
        self._last_key = 0

    @property
    def capturing(self) -> bool:
        """Whether output goes to a widget now."""
        return bool(self._captures)

    @property
    def clears(self) -> bool:
        """Whether the next output erases what its widget holds."""
        return bool(self._captures) and self._captured[self._captures[-1].widget].clears

    def begin(self, widget: str, logs: Logs, sole: Stream | None) -> None:
        """What comes from here on is that widget's; what was said before ends its line."""
        if all(capture.widget != widget for capture in self._captures):
            self._captured.setdefault(widget, _Captured())
            before = {stream: log.terminal.begin_block() for stream, log in logs.items()}
            _touch(logs)
            self._captures.append(_Capture(widget, before, sole))

    def end(self, widget: str, logs: Logs) -> None:
        """The widget captures no more."""
        for capture in [c for c in self._captures if c.widget == widget]:
            self._captures.remove(capture)
            self._enclose(capture, logs)

    def shown(self, ordinal: int) -> None:
        """A display was put where output goes now."""
        if self._captures:
            self._captured[self._captures[-1].widget].ordinals.append(ordinal)

    def clear(self, wait: bool, logs: Logs) -> list[int]:
        """Erase what the capturing widget holds, now or before its next output; the displays that are gone."""
        captured = self._captured[self._captures[-1].widget]
        captured.clears = wait
        return [] if wait else self.erase(self._captures[-1].widget, logs)

    def erase(self, widget: str, logs: Logs) -> list[int]:
        """Erase what the widget holds and is still on the screens; the displays that are gone."""
        for capture in self._captures:
            if capture.widget == widget:
                self._enclose(capture, logs)
        captured = self._captured.pop(widget, _Captured())
        for log in logs.values():
            for key in captured.keys:
                log.terminal.remove_block(key)
        _touch(logs)
        for capture in self._captures:
            if capture.widget == widget:
                capture.before = {stream: log.terminal.begin_block() for stream, log in logs.items()}
                self._captured[widget] = _Captured()
        return captured.ordinals

    def cleared(self, logs: Logs) -> None:
        """The screens were erased, and all displays."""
        for captured in self._captured.values():
            captured.keys.clear()
            captured.ordinals.clear()
        for capture in self._captures:
            capture.before = {stream: log.terminal.settled_lines for stream, log in logs.items()}

    def _enclose(self, capture: _Capture, logs: Logs) -> None:
        """Make a block of what was captured."""
        keys = self._captured[capture.widget].keys
        self._last_key -= 1
        for stream, log in logs.items():
            same = capture.before.get(Stream.COMBINED, 0) if stream is capture.sole else 0
            log.terminal.end_block(self._last_key, capture.before.get(stream, same))
        _touch(logs)
        keys.append(self._last_key)
        if len(keys) > 2 * SCREEN_LINES and Stream.COMBINED in logs:
            held = {key for log in logs.values() for key in log.terminal.blocks()}
            keys[:] = [key for key in keys if key in held]


def _touch(logs: Logs) -> None:
    for log in logs.values():
        log.touched = True
