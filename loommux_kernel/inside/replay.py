"""A relay's lines, done again in the record of the cell that forwards.

Owns what each line means here: text goes where it went there, displays and tracebacks go the
way that those of this kernel go, so that attached clients see them too. Images stay in the
other kernel's record, and a line says so. What the lines are is `records.relay`'s; `forwarding` calls,
on a thread of its own in the cell's context.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from loommux_kernel.capture.drain import Recorder
from loommux_kernel.capture.output_widgets import VIEW
from loommux_kernel.shared.bundles import MODELS, bundle_text
from loommux_kernel.shared.protocol import Stream

#: What a step in the queue costs beside its text.
STEP_COST = 64


class Replay:
    """Does again what an execution of the kernel `origin` (its id and name) said, in the execution `serial` here."""

    def __init__(self, kernel: Any, serial: int, origin: tuple[str, str]) -> None:
        self._kernel = kernel
        self._serial = serial
        self._mark, self._name = origin
        self._parent = kernel.get_parent("shell")

    def play(self, line: list[Any]) -> None:
        """Do one line again; one of a kind that is not known here says nothing."""
        kind, *arguments = line
        play = getattr(self, f"_{kind}", None)
        if play is not None:
            play(*arguments)

    def _text(self, stream: str, text: str) -> None:
        self._put(lambda recorder: recorder.text(self._serial, Stream(stream), text), len(text))

    def _said(self, text: str, own: dict[str, str]) -> None:
        texts = {Stream(stream): said for stream, said in own.items()}
        self._put(lambda recorder: recorder.said(self._serial, text, texts), 2 * len(text))

    def _display(
        self,
        kind: str,
        number: int | None,
        bundle: dict[str, Any],
        metadata: dict[str, Any],
        display_id: str | None,
        images: str | None,
    ) -> None:
        content: dict[str, Any] = {"data": self._here(bundle, images), "metadata": metadata}
        content["transient"] = {} if display_id is None else {"display_id": self._own(display_id)}
        if kind == "result":
            self._send("execute_result", {**content, "execution_count": number})
        else:
            self._send("display_data", content)

    def _update(
        self, display_id: str, bundle: dict[str, Any], metadata: dict[str, Any], anew: bool, images: str | None
    ) -> None:
        data, own = self._here(bundle, images), self._own(display_id)
        if anew:
            content = {"data": data, "metadata": metadata, "transient": {"display_id": own}}
            self._send("update_display_data", content)
        else:
            self._put(partial(_show, self._serial, own, data), STEP_COST)

    def _clear(self, wait: bool) -> None:
        self._send("clear_output", {"wait": wait})

    def _traceback(self, text: str, shown: str | None) -> None:
        ename, _, evalue = text.rstrip("\n").rpartition("\n")[2].partition(": ")
        self._send("error", {"ename": ename, "evalue": evalue, "traceback": text.split("\n")})

    def _capture(self, widget: str, on: bool) -> None:
        self._put(lambda r: r.writer and r.writer.capture(self._serial, self._own(widget), on), STEP_COST)

    def _close_widget(self, widget: str) -> None:
        self._put(lambda r: r.writer and r.writer.close_widget(self._serial, self._own(widget)), STEP_COST)

    def _lost(self) -> None:
        self._text(Stream.STDERR, f"\n[from here on output is missing; the record of {self._name} has it]\n")

    # -- inside --------------------------------------------------------------------------

    def _here(self, bundle: dict[str, Any], images: str | None) -> dict[str, Any]:
        """What can be shown of a bundle outside its own kernel."""
        data = {kind: value for kind, value in bundle.items() if kind != VIEW}
        if images is not None:
            text = bundle_text(data)
            data.pop(MODELS, None)  # the text with the line takes its place
            line = f"[{images} is in the record of {self._name}]"
            data["text/plain"] = line if not text else f"{text}\n{line}"
        return data

    def _own(self, id: str) -> str:
        """The other kernel's ids are not this one's."""
        return f"{self._mark}:{id}"

    def _send(self, kind: str, content: dict[str, Any]) -> None:
        kernel = self._kernel
        kernel.session.send(kernel.iopub_socket, kind, content, self._parent, ident=kernel._topic(kind))

    def _put(self, act: Any, size: int) -> None:
        self._kernel.capture.put(act, STEP_COST + size)


def _show(serial: int, display_id: str, data: dict[str, Any], recorder: Recorder) -> None:
    """A widget shows something else of itself, where it still is."""
    if recorder.writer is not None:
        for changed in recorder.writer.update_display(serial, display_id, data, {}, anew=False):
            recorder.touch(changed)
