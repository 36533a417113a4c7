"""What the messages on IOPub mean for the record.

Owns the reading of message contents: displays, results, errors, clears, and text
that comes as a message. Knows the record writer, not ipykernel. `capture` calls
`record` on the IOPub thread, in the message's place among the texts.
"""

from __future__ import annotations

from binascii import b2a_base64
from typing import Any

from loommux_kernel.capture.drain import Recorder
from loommux_kernel.capture.output_widgets import EMPTY_OUTPUT, VIEW, OutputWidgets, view_of
from loommux_kernel.shared.protocol import Stream
from loommux_kernel.text.tracebacks import shortened

#: Messages that change the record; the others only pass to attached clients.
RECORDED = frozenset(
    {
        "display_data", "update_display_data", "execute_result", "error", "clear_output", "stream",
        "comm_open", "comm_msg", "comm_close",
    }
)  # fmt: skip


class Messages:
    """Records what messages show."""

    def __init__(self) -> None:
        self._widgets = OutputWidgets()

    def record(self, recorder: Recorder, serial: int, kind: str, content: dict[str, Any]) -> None:
        """Record one message of an execution; unknown kinds change nothing."""
        if recorder.writer is None or not serial:
            return
        handler = getattr(self, f"_{kind}", None) if kind in RECORDED else None
        if handler is not None:
            handler(recorder, serial, content)

    def _display_data(self, recorder: Recorder, serial: int, content: dict[str, Any]) -> None:
        self._display(recorder, serial, "display", content)

    def _execute_result(self, recorder: Recorder, serial: int, content: dict[str, Any]) -> None:
        self._display(recorder, serial, "result", content)

    def _display(self, recorder: Recorder, serial: int, kind: str, content: dict[str, Any]) -> None:
        assert recorder.writer is not None
        bundle = _bundle(content)
        view = view_of(bundle) if kind == "display" else None
        if view is not None and bundle.get("text/plain") == EMPTY_OUTPUT:
            bundle["text/plain"] = ""  # what it captures is its text
        recorder.writer.display(
            serial,
            kind=kind,
            number=content.get("execution_count"),
            bundle=bundle,
            metadata=content.get("metadata") or {},
            display_id=(content.get("transient") or {}).get("display_id", view),
        )
        recorder.known(serial).displays += _has_image(content)
        recorder.touch(serial)

    def _update_display_data(self, recorder: Recorder, serial: int, content: dict[str, Any]) -> None:
        assert recorder.writer is not None
        display_id = (content.get("transient") or {}).get("display_id")
        if display_id is None:
            self._display(recorder, serial, "display", content)
            return
        metadata = content.get("metadata") or {}
        for changed in recorder.writer.update_display(serial, display_id, _bundle(content), metadata):
            recorder.known(changed).displays += _has_image(content)
            recorder.touch(changed)

    def _error(self, recorder: Recorder, serial: int, content: dict[str, Any]) -> None:
        assert recorder.writer is not None
        lines = content.get("traceback") or [f"{content.get('ename')}: {content.get('evalue')}"]
        text = "\n".join(str(line) for line in lines)
        recorder.writer.traceback(serial, text, shortened(text))
        recorder.touch(serial)

    def _clear_output(self, recorder: Recorder, serial: int, content: dict[str, Any]) -> None:
        assert recorder.writer is not None
        recorder.writer.clear(serial, bool(content.get("wait")))
        recorder.touch(serial)

    def _stream(self, recorder: Recorder, serial: int, content: dict[str, Any]) -> None:
        assert recorder.writer is not None
        stream = Stream.STDERR if content.get("name") == "stderr" else Stream.STDOUT
        recorder.writer.text(serial, stream, str(content.get("text", "")))
        recorder.touch(serial)

    # -- ipywidgets --------------------------------------------------------------------

    def _comm_open(self, recorder: Recorder, serial: int, content: dict[str, Any]) -> None:
        self._comm_msg(recorder, serial, content)

    def _comm_msg(self, recorder: Recorder, serial: int, content: dict[str, Any]) -> None:
        assert recorder.writer is not None
        self._widgets.changed(
            recorder.writer, serial, content, lambda kind, output: self.record(recorder, serial, kind, output)
        )

    def _comm_close(self, recorder: Recorder, serial: int, content: dict[str, Any]) -> None:
        assert recorder.writer is not None
        self._widgets.closed(recorder.writer, serial, content)

    def view(self, recorder: Recorder, serial: int, model: str, text: str, last: bool) -> None:
        """A displayed widget says something else of itself; when it is the last, it is shown anew if need be."""
        if recorder.writer is not None and serial:
            bundle = {"text/plain": text, VIEW: {"version_major": 2, "version_minor": 0, "model_id": model}}
            for changed in recorder.writer.update_display(serial, model, bundle, {}, anew=last):
                recorder.touch(changed)


def _bundle(content: dict[str, Any]) -> dict[str, Any]:
    """A display's data as clients get it: what `_repr_png_` and its like give as bytes is base64 there."""
    data = content.get("data") or {}
    return {kind: b2a_base64(v, newline=False).decode() if isinstance(v, bytes) else v for kind, v in data.items()}


def _has_image(content: dict[str, Any]) -> bool:
    """Whether the host has to look for an image; the text of a display is in the streams already."""
    return any(kind.startswith("image/") for kind in content.get("data") or {})
