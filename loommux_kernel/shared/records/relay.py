"""The relay of an execution's output: what its record is given, as a file for whoever forwards the cell.

Owns the file and its lines. A `RelayedWriter` is the record writer, which also writes to the
relay of an execution that has one: every line is a JSON array, the name of what happened and
its arguments, in the order of the record, before anybody is told of it. The server hands the
lines out unread, `inside.replay` does in another kernel's record what they say. Whoever removes the
file ends the relay. Lives on the IOPub thread; `finisher` goes on where a process died.

    ["text", stream, text]                                one stream said this, as it was written
    ["said", text, {stream: text}]                        several did, all of it and each one's own
    ["display", kind, number, bundle, metadata, display_id, images]
    ["update", display_id, bundle, metadata, anew, images]
    ["clear", wait]
    ["traceback", text, shown]                            ["capture", widget, on]
    ["close_widget", widget]                              ["lost"]: text is missing from here on
    ["end", state, ename, evalue]                         the last
"""

from __future__ import annotations

import json
import os
from typing import Any

from loommux_kernel.shared.protocol import State, Stream
from loommux_kernel.shared.records.writer import RecordWriter

#: A relay that nobody takes in may take so much of the disk; what is said then is not relayed.
MOST_BYTES = 1 << 30
_BLOCK = 512
_PIECE = 1 << 16


class Relay:
    """The file of one execution."""

    def __init__(self, path: str) -> None:
        self._lost = False
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        self._fd: int | None = os.open(path, flags, 0o600)
        _cut_half_a_line(self._fd)

    def write(self, *line: Any) -> None:
        """Add a line; a disk that is full, or a file that was removed, ends the relay and nothing else."""
        if self._fd is None:
            return
        try:
            state = os.fstat(self._fd)
            if state.st_nlink == 0:
                self.close()
                return
            if getattr(state, "st_blocks", 0) * _BLOCK > MOST_BYTES and line[0] != "end":
                line = () if self._lost else ("lost",)
                self._lost = True
            if line:
                _write(self._fd, line)
        except OSError:
            self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class RelayedWriter(RecordWriter):
    """A record writer that relays some executions. See the module."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._relays: dict[int, Relay] = {}

    def relay(self, serial: int, path: str) -> None:
        """Relay what this execution says, up to its end."""
        try:
            self._relays[serial] = Relay(path)
        except OSError:
            return  # whoever forwards is told that there is none

    def _relayed(self, serial: int, *line: Any) -> None:
        relay = self._relays.get(serial)
        if relay is not None:
            relay.write(*line)

    def end(self, serial: int, state: State, completed_at: float, ename: str | None, evalue: str | None) -> None:
        super().end(serial, state, completed_at, ename, evalue)
        relay = self._relays.pop(serial, None)
        if relay is not None:
            relay.write("end", state, ename, evalue)
            relay.close()

    def text(self, serial: int, stream: Stream, text: str) -> None:
        super().text(serial, stream, text)
        if text:
            self._relayed(serial, "text", stream, text)

    def said(self, serial: int, combined: str, own: dict[Stream, str]) -> None:
        super().said(serial, combined, own)
        if serial in self._relays:
            if len(own) == 1:
                self._relayed(serial, "text", *own, combined)
            else:
                self._relayed(serial, "said", combined, own)

    def traceback(self, serial: int, text: str, shown: str | None = None) -> None:
        super().traceback(serial, text, shown)
        self._relayed(serial, "traceback", text, shown)

    def display(
        self,
        serial: int,
        *,
        kind: str,
        number: int | None,
        bundle: dict[str, Any],
        metadata: dict[str, Any],
        display_id: str | None,
    ) -> int:
        what: dict[str, Any] = {"kind": kind, "number": number, "bundle": bundle, "metadata": metadata}
        ordinal = super().display(serial, **what, display_id=display_id)
        if serial in self._relays:
            rest, images = without_images(bundle, ordinal)
            self._relayed(serial, "display", kind, number, rest, metadata, display_id, images)
        return ordinal

    def update_display(
        self, serial: int, display_id: str, bundle: dict[str, Any], metadata: dict[str, Any], *, anew: bool = True
    ) -> set[int]:
        # what it shows anew is a display of its own, and is not to be relayed as one
        relay = self._relays.pop(serial, None)
        changed = super().update_display(serial, display_id, bundle, metadata, anew=anew)
        if relay is not None:
            self._relays[serial] = relay
            rest, images = without_images(bundle, None)
            relay.write("update", display_id, rest, metadata, anew, images)
        return changed

    def clear(self, serial: int, wait: bool) -> None:
        super().clear(serial, wait)
        self._relayed(serial, "clear", wait)

    def capture(self, serial: int, widget: str, on: bool) -> None:
        super().capture(serial, widget, on)
        self._relayed(serial, "capture", widget, on)

    def close_widget(self, serial: int, widget: str) -> None:
        super().close_widget(serial, widget)
        self._relayed(serial, "close_widget", widget)

    def forget(self) -> None:
        super().forget()
        self._relays.clear()


def without_images(bundle: dict[str, Any], ordinal: int | None) -> tuple[dict[str, Any], str | None]:
    """The bundle without its images, which stay in this record; and which they are, None without any."""
    kinds = [kind for kind in bundle if kind.lower().startswith("image/")]
    if not kinds:
        return bundle, None
    rest = {kind: value for kind, value in bundle.items() if kind not in kinds}
    return rest, f"{', '.join(kinds)}{f' of display {ordinal}' if ordinal else ''}"


def _cut_half_a_line(fd: int) -> None:
    """What a process that was killed had not written to its end."""
    end = size = os.lseek(fd, 0, os.SEEK_END)
    while end > 0:
        start = max(0, end - _PIECE)
        os.lseek(fd, start, os.SEEK_SET)
        newline = os.read(fd, end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(fd, end)


def _write(fd: int, line: tuple[Any, ...]) -> None:
    data = memoryview(json.dumps(line, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") + b"\n")
    while data:
        data = data[os.write(fd, data) :]
