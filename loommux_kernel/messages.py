"""What the messages on IOPub mean for the record.

Owns the reading of message contents: displays, results, errors, clears, and text
that comes as a message. Knows the record writer, not ipykernel. `capture` calls
`record` on the IOPub thread, in the message's place among the texts.
"""

from __future__ import annotations

from binascii import b2a_base64
from typing import Any

from loommux_kernel.protocol import Stream
from loommux_kernel.recorder import Recorder
from loommux_kernel.tracebacks import shortened

#: Messages that change the record; the others only pass to attached clients.
RECORDED = frozenset(
    {
        "display_data", "update_display_data", "execute_result", "error", "clear_output", "stream",
        "comm_open", "comm_msg",
    }
)  # fmt: skip


class Messages:
    """Records what messages show; remembers which output widgets capture."""

    def __init__(self) -> None:
        #: Comm ids of `ipywidgets.Output` that capture now: a clear is theirs, not the cell's.
        self._capturing: set[str] = set()
        #: How many outputs of such a widget are recorded.
        self._shown: dict[str, int] = {}

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
        recorder.writer.display(
            serial,
            kind=kind,
            number=content.get("execution_count"),
            bundle=_bundle(content),
            metadata=content.get("metadata") or {},
            display_id=(content.get("transient") or {}).get("display_id"),
        )
        recorder.known(serial).displays += _has_image(content)
        recorder.touch(serial)

    def _update_display_data(self, recorder: Recorder, serial: int, content: dict[str, Any]) -> None:
        assert recorder.writer is not None
        display_id = (content.get("transient") or {}).get("display_id")
        if display_id is None:
            self._display(recorder, serial, "display", content)
            return
        recorder.writer.update_display(serial, display_id, _bundle(content), content.get("metadata") or {})
        recorder.known(serial).displays += _has_image(content)
        recorder.touch(serial)

    def _error(self, recorder: Recorder, serial: int, content: dict[str, Any]) -> None:
        assert recorder.writer is not None
        lines = content.get("traceback") or [f"{content.get('ename')}: {content.get('evalue')}"]
        text = "\n".join(str(line) for line in lines)
        recorder.writer.traceback(serial, text, shortened(text))
        recorder.touch(serial)

    def _clear_output(self, recorder: Recorder, serial: int, content: dict[str, Any]) -> None:
        assert recorder.writer is not None
        if not self._capturing:
            recorder.writer.clear(serial, bool(content.get("wait")))
        recorder.touch(serial)

    def _stream(self, recorder: Recorder, serial: int, content: dict[str, Any]) -> None:
        assert recorder.writer is not None
        stream = Stream.STDERR if content.get("name") == "stderr" else Stream.STDOUT
        recorder.writer.text(serial, stream, str(content.get("text", "")))
        recorder.touch(serial)

    # -- ipywidgets.Output -------------------------------------------------------------

    def _comm_open(self, recorder: Recorder, serial: int, content: dict[str, Any]) -> None:
        self._comm_msg(recorder, serial, content)

    def _comm_msg(self, recorder: Recorder, serial: int, content: dict[str, Any]) -> None:
        """An output widget that begins or ends to capture, or was given outputs to show."""
        state = (content.get("data") or {}).get("state")
        if not isinstance(state, dict):
            return
        comm = content.get("comm_id", "")
        if "msg_id" in state:
            (self._capturing.add if state["msg_id"] else self._capturing.discard)(comm)
        outputs = state.get("outputs")
        if isinstance(outputs, list | tuple):
            shown = self._shown.get(comm, 0)
            self._shown[comm] = len(outputs)
            for output in outputs[shown:]:
                self._widget_output(recorder, serial, output)

    def _widget_output(self, recorder: Recorder, serial: int, output: Any) -> None:
        if not isinstance(output, dict):
            return
        kind = str(output.get("output_type", ""))
        if kind in {"stream", "display_data", "execute_result", "error"}:
            self.record(recorder, serial, kind, output)


def _bundle(content: dict[str, Any]) -> dict[str, Any]:
    """A display's data as clients get it: what `_repr_png_` and its like give as bytes is base64 there."""
    data = content.get("data") or {}
    return {kind: b2a_base64(v, newline=False).decode() if isinstance(v, bytes) else v for kind, v in data.items()}


def _has_image(content: dict[str, Any]) -> bool:
    """Whether the host has to look for an image; the text of a display is in the streams already."""
    return any(kind.startswith("image/") for kind in content.get("data") or {})
