"""What displayed widgets say of themselves while they change: a bar's numbers, a slider's value.

Owns which widgets are displayed and when their text is asked for again: a client draws a
widget from its comm messages, but the record has the text that came with the display. Knows
ipywidgets by one private name; what a record does with a new text is `messages`'s.
`capture` calls, in the thread that sends the messages.

A text is asked for while the widget changes, not only when the cell ends: a bar of tqdm
knows its numbers for as long as its loop runs. The last change before a pause is looked
at when somebody reads.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from loommux_kernel.capture.output_widgets import EMPTY_OUTPUT, view_of
from loommux_kernel.shared.clock import monotonic

#: For how many times as long as it took a text is not asked for again.
PATIENCE = 5
#: Displayed widgets that are followed: the last ones.
VIEWS = 64
#: Widgets inside a displayed one whose changes are its own.
PARTS = 256
#: The trait by which a bar says that it is done: then its text is asked for in any case.
_DONE = "bar_style"

#: (execution, model id, text, whether to show it anew when its place is gone)
Show = Callable[[int, str, str, bool], None]


@dataclass
class _View:
    """A displayed widget, changed last by the execution `serial`.

    `moved`: its text has changed in this cell; `stale`: it may have changed since.
    """

    model: str
    text: str
    serial: int = 0
    asked_until: float = 0.0
    moved: bool = False
    stale: bool = False


class Views:
    """See the module."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._views: OrderedDict[str, _View] = OrderedDict()
        #: By the comm of a widget that is displayed or is part of one that is.
        self._by_comm: dict[str, _View] = {}
        self._asking = threading.Lock()

    def sent(self, serial: int, kind: str, content: dict[str, Any]) -> None:
        """A display or a comm message was sent."""
        if kind == "display_data":
            self._displayed(content.get("data") or {})
        elif kind == "comm_close":
            if self._forget(content.get("comm_id", "")):
                self._show(serial, content["comm_id"], "", False)
        elif kind == "comm_msg":
            view = self._by_comm.get(content.get("comm_id", ""))
            if view is not None:
                view.serial, view.stale = serial, True
                state = (content.get("data") or {}).get("state") or {}
                if _DONE in state or monotonic() >= view.asked_until:
                    self._ask(serial, view, False)

    def look(self) -> None:
        """Somebody reads: ask for the texts that may have changed since. Any thread."""
        for view in list(self._views.values()):
            if view.stale:
                self._ask(view.serial, view, False)

    def ended(self, serial: int) -> None:
        """The cell is over: its widgets show what stays."""
        for view in list(self._views.values()):
            if view.stale or view.moved:
                self._ask(serial, view, True)
                view.moved = False

    def _displayed(self, data: dict[str, Any]) -> None:
        model, text = view_of(data), str(data.get("text/plain", ""))
        if model is None or text.startswith(EMPTY_OUTPUT[:-1]):
            return
        view = self._views[model] = _View(model, text)
        for part in _parts(_widget(model)):
            self._by_comm[getattr(part, "model_id", None) or model] = view
        while len(self._views) > VIEWS:
            self._forget(next(iter(self._views)))

    def _forget(self, model: str) -> bool:
        view = self._views.pop(model, None)
        if view is not None:
            self._by_comm = {comm: v for comm, v in self._by_comm.items() if v is not view}
        return view is not None

    def _ask(self, serial: int, view: _View, last: bool) -> None:
        if not self._asking.acquire(blocking=False):
            return  # a widget that changes while it says what it is
        try:
            began, view.stale = monotonic(), False  # what changes from here on may not be in the text
            text = _text_of(_widget(view.model))
            ended = monotonic()
            view.asked_until = ended + PATIENCE * (ended - began)
            if text is not None and text != view.text:
                view.text, view.moved = text, True
            elif not (last and view.moved):
                return
            self._show(serial, view.model, view.text, last)
        finally:
            self._asking.release()


def _widget(model: str) -> Any:
    module = sys.modules.get("ipywidgets.widgets.widget")
    return getattr(module, "_instances", {}).get(model)


def _parts(widget: Any) -> Iterator[Any]:
    """The widget and those in it, breadth first."""
    found = [widget]
    for at in range(PARTS):
        if at == len(found):
            return
        yield found[at]
        found += getattr(found[at], "children", ())


def _text_of(widget: Any) -> str | None:
    """What the widget says of itself, or None when that cannot be had."""
    try:
        return None if widget is None else str(widget._repr_mimebundle_()["text/plain"])
    except Exception:  # a widget of the user's own making, a bar whose loop is over: its text stays as it was
        return None
