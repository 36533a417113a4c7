"""What ipywidgets' comm messages mean for the record: outputs that a widget captures or was given.

Owns which `Output` widgets there are and what they were last given to show. What they
capture is erased as they say (`records.widget_regions`). Comms of other widgets change nothing here:
`widget_text` looks at what those show. `messages` calls, on the IOPub thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from loommux_kernel.shared.records.writer import RecordWriter

#: The bundle's part that stands for a widget in a display.
VIEW = "application/vnd.jupyter.widget-view+json"
#: What an `Output` widget that holds nothing says of itself.
EMPTY_OUTPUT = "Output()"

Show = Callable[[str, dict[str, Any]], None]


def view_of(data: dict[str, Any]) -> str | None:
    """The model id of the widget that a bundle shows, or None."""
    view = data.get(VIEW)
    return view.get("model_id") if isinstance(view, dict) else None


class OutputWidgets:
    """See the module."""

    def __init__(self) -> None:
        #: By comm id: what the widget was given to show.
        self._given: dict[str, Sequence[Any]] = {}

    def changed(self, writer: RecordWriter, serial: int, content: dict[str, Any], show: Show) -> None:
        """A comm was opened or updated; `show` records a message that the widget was given."""
        state = (content.get("data") or {}).get("state")
        if not isinstance(state, dict):
            return
        comm = content.get("comm_id", "")
        if "msg_id" in state:
            self._given.setdefault(comm, ())
            writer.capture(serial, comm, bool(state["msg_id"]))
        outputs = state.get("outputs")
        if isinstance(outputs, list | tuple):
            self._give(writer, serial, comm, outputs, show)

    def closed(self, writer: RecordWriter, serial: int, content: dict[str, Any]) -> None:
        """A comm was closed: what an output widget showed is gone."""
        comm = content.get("comm_id", "")
        if self._given.pop(comm, None) is not None:
            writer.close_widget(serial, comm)

    def _give(self, writer: RecordWriter, serial: int, comm: str, outputs: Sequence[Any], show: Show) -> None:
        before = self._given.get(comm, ())
        self._given[comm] = outputs
        same = len(before) if list(outputs[: len(before)]) == list(before) else 0
        if len(outputs) == same == len(before):
            return
        writer.capture(serial, comm, True)
        if same < len(before):
            writer.clear(serial, wait=False)
        for output in outputs[same:]:
            kind = str(output.get("output_type", "")) if isinstance(output, dict) else ""
            if kind in {"stream", "display_data", "execute_result", "error"}:
                show(kind, output)
        writer.capture(serial, comm, False)
