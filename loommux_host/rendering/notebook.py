"""A kernel as a notebook: sources, outputs, images, and a mark where a process ended (contract 10).

Pure: record readers and facts in, the text of an .ipynb out, piece by piece, so that a
notebook of any size costs no more memory than its largest output. Text that several streams
wrote stands in the order in which it was written. A body over `BODY` characters is cut to
its first and last lines, and a bundle over `BUNDLE` bytes is left out; the cell says so.
Called by `api.history`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from loommux_host.facts.phrases import amount, cell, how_ended, one_line, plural, size
from loommux_host.facts.result_limits import BODY_CHARACTERS
from loommux_host.facts.results import Death
from loommux_host.version import VERSION
from loommux_kernel.shared.bundles import shown_result, shown_text
from loommux_kernel.shared.protocol import Counts, OriginKind, State, Stream
from loommux_kernel.shared.record_types import DisplayRecord, ExecutionRecord
from loommux_kernel.shared.records.reader import RecordReader

#: Characters of one execution's text; of a longer one, so many lines at each end, of so many characters each.
BODY = BODY_CHARACTERS
EDGE_LINES, EDGE_CHARACTERS = 100, 500
#: Bytes of one display with its images.
BUNDLE = 32 << 20
#: A widget is nothing without the state that the process had.
WIDGET = "application/vnd.jupyter.widget-view+json"
_JSON = re.compile(r"application/(.*\+)?json")
#: What Markdown or HTML would act on.
_ACTIVE = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~&$:@/])")

Output = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One process. `records` is None when they are gone; `death` is None as long as it runs."""

    process: int
    records: RecordReader | None
    death: Death | None = None


def notebook(name: str, kernel_id: str, parts: Iterable[Part], at: float) -> Iterator[str]:
    """The notebook's text in pieces; `parts` in the order in which they ran, `at` is now."""
    yield '{"cells": ['
    before = ""
    following = 1
    for part in parts:
        for pieces in _cells(part, following):
            yield before
            yield from pieces
            before = ",\n"
        following = part.process + 1
    metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"},
        "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
        "loommux": {"kernel": name, "kernel_id": kernel_id, "exported_at": at, "version": VERSION},
    }
    yield f'],\n"metadata": {_json(metadata)}, "nbformat": 4, "nbformat_minor": 5}}\n'


def _cells(part: Part, following: int) -> Iterator[Iterator[str]]:
    """The cells of one process and its marks, each in pieces."""
    if part.process > following:
        earlier = plural(part.process - following, "earlier process", "earlier processes")
        yield _mark(f"gone-{part.process}", f"{earlier} of this kernel left no records.")
    if part.records is None:
        yield _mark(f"none-{part.process}", f"Process {part.process} left no records.")
    else:
        newest = part.records.executions(1)
        for serial in range(1, newest[0].serial + 1 if newest else 1):
            record = part.records.by_serial(serial)
            if record is not None:
                yield _execution(part, part.records, record)
    if part.death is not None:
        yield _mark(f"end-{part.process}", _end(part.death))


def _mark(id: str, text: str) -> Iterator[str]:
    yield _json(
        {"cell_type": "markdown", "id": id, "metadata": {"tags": ["loommux"]}, "source": f"---\n*{_plain(text)}*"}
    )


def _end(death: Death) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(death.at))
    return f"Process {death.process} {how_ended(death)} at {at}. Its variables are gone."


def _plain(text: str) -> str:
    """As Markdown that shows just this."""
    return _ACTIVE.sub(r"\\\1", one_line(text, 500)).replace("\\.", ".").replace("\\:", ":")


# -- one execution ---------------------------------------------------------------------


def _execution(part: Part, reader: RecordReader, record: ExecutionRecord) -> Iterator[str]:
    header, source = _without_header(record.source)
    head = {
        "cell_type": "code",
        "id": f"{part.process}-{record.serial}",
        "execution_count": record.number,
        "metadata": _metadata(part, record, header),
        "source": source,
    }
    yield _json(head)[:-1] + ', "outputs": ['
    before = ""
    for output in _outputs(part, reader, record):
        yield before + _json(output)
        before = ",\n"
    yield "]}"


def _without_header(source: str) -> tuple[str | None, str]:
    """The header of a cell, which only loommux knows, and the rest."""
    lines = source.split("\n")
    first = next((n for n, line in enumerate(lines) if line.strip()), 0)
    if not lines[first].lstrip().startswith("%%loommux "):
        return None, source
    return lines[first].strip(), "\n".join(lines[first + 1 :])


def _metadata(part: Part, record: ExecutionRecord, header: str | None) -> dict[str, Any]:
    facts = {
        "process": part.process,
        "serial": record.serial,
        "state": record.state,
        "header": header,
        "origin": {"kind": record.origin.kind, "label": record.origin.label},
        "submitted_at": record.submitted_at,
        "started_at": record.started_at,
        "completed_at": record.completed_at,
    }
    tags = {"tags": ["startup"]} if record.origin.kind is OriginKind.STARTUP else {}
    return {"loommux": facts, **tags}


def _outputs(part: Part, reader: RecordReader, record: ExecutionRecord) -> Iterator[Output]:
    text, left_out = _body(reader, record)
    yield from left_out
    for ordinal, line, length in reader.display_sizes(record.serial):
        if length > BUNDLE:
            yield from text.before(line)
            yield _said(f"[display {ordinal}: {size(length)}; left out of this notebook]")
            continue
        display = reader.display(record.serial, ordinal)
        if display is not None:
            yield from _display(text, display, record.number)
    yield from text.rest()
    for line in _remarks(part, record):
        yield _said(line)


def _display(text: _Text, display: DisplayRecord, number: int | None) -> Iterator[Output]:
    own = shown_text(display.bundle, display.ordinal)
    if display.kind == "result" and number is not None:
        own = shown_result(display.bundle, display.ordinal, number)
    lines = own.removesuffix("\n").split("\n")
    yield from text.before(display.line, without=lines)
    data = {kind: _data(kind, value) for kind, value in display.bundle.items() if kind != WIDGET}
    if not text.found:  # what it said stands there in another form, or is left out with the rest
        data.pop("text/plain", None)
    if not data:
        return
    metadata = display.metadata if type(display.metadata) is dict else {}
    if display.kind == "result":
        yield {"output_type": "execute_result", "execution_count": number, "data": data, "metadata": metadata}
    else:
        yield {"output_type": "display_data", "data": data, "metadata": metadata}


def _data(kind: str, value: Any) -> Any:
    """As the format takes it: anything where it is JSON, else text or a list of texts."""
    listed = isinstance(value, list) and all(isinstance(one, str) for one in value)
    if _JSON.fullmatch(kind) or isinstance(value, str) or listed:
        return value
    return json.dumps(value)


def _remarks(part: Part, record: ExecutionRecord) -> Iterator[str]:
    if record.dropped:
        yield f"[{record.dropped}]"
    if record.state is State.RUNNING:
        yield f"[{cell(record.number)} was still running when this notebook was made]"
    if record.state is State.KILLED:
        how = how_ended(part.death) if part.death else "ended"
        yield f"[killed: process {part.process} {how} before the cell did]"
    if record.state is State.INTERRUPTED:
        yield "[interrupted]"


def _said(line: str) -> Output:
    """A line of ours, apart from what was printed."""
    return {"output_type": "stream", "name": "stderr", "text": f"{line}\n"}


# -- its text --------------------------------------------------------------------------


def _body(reader: RecordReader, record: ExecutionRecord) -> tuple[_Text, list[Output]]:
    """The combined stream, and what to say first when it is not all."""
    counts = record.counts.get(Stream.COMBINED, Counts())
    alone = counts.lines > 0 and record.counts.get(Stream.STDERR) == counts
    text = _Text("stderr" if alone else "stdout", _Error.of(reader, record))
    if counts.characters <= BODY:
        text.add(1, reader.text(record.serial, Stream.COMBINED))
        return text, []
    edge = min(EDGE_LINES, counts.lines // 2 + 1)
    last = max(edge + 1, counts.lines - edge + 1)
    for first, end in ((1, edge), (last, counts.lines)):
        lines = reader.lines(record.serial, Stream.COMBINED, first, end, EDGE_CHARACTERS)
        text.add(first, "".join(f"{line}\n" for line in lines))
        if first == 1 and last > edge + 1:
            text.add(edge + 1, f"[lines {edge + 1:,}–{last - 1:,} are left out]\n")
    shown = f"{plural(edge, 'line')} from each end, clipped to {EDGE_CHARACTERS} characters"
    return text, [_said(f"[shortened for this notebook: {amount(counts)} in all; {shown}]")]


@dataclass(frozen=True)
class _Error:
    """The traceback that ended the execution."""

    ename: str
    evalue: str
    lines: list[str]

    @classmethod
    def of(cls, reader: RecordReader, record: ExecutionRecord) -> _Error | None:
        counts = record.counts.get(Stream.TRACEBACK, Counts())
        if not counts.lines or counts.characters > BODY or record.ename is None:
            return None
        text = reader.text(record.serial, Stream.TRACEBACK)
        return cls(record.ename, record.evalue or "", text.removesuffix("\n").split("\n"))

    def output(self) -> Output:
        return {"output_type": "error", "ename": self.ename, "evalue": self.evalue, "traceback": self.lines}


class _Text:
    """Numbered lines that are given out up to where a display stands, then the rest."""

    def __init__(self, name: str, error: _Error | None) -> None:
        self._name, self._error = name, error
        self._lines: list[tuple[int, str]] = []
        #: Whether the last display's own lines stood before it.
        self.found = False

    def add(self, first: int, text: str) -> None:
        self._lines += enumerate(_kept(text), first)

    def before(self, line: int, without: list[str] | None = None) -> Iterator[Output]:
        """What stands up to that line, but for the lines `without` at its end."""
        count = sum(number <= line for number, _ in self._lines)
        taken, self._lines = [text for _, text in self._lines[:count]], self._lines[count:]
        own = [text.removesuffix("\n") for text in taken[-len(without) :]] if without else None
        self.found = own is not None and own == without
        yield from self._given(taken[: -len(without)] if without and self.found else taken)

    def rest(self) -> Iterator[Output]:
        """What is left, with the traceback as an error where it stands."""
        taken, self._lines = [text for _, text in self._lines], []
        at = _place([text.removesuffix("\n") for text in taken], self._error.lines) if self._error else None
        if self._error is None or at is None:
            yield from self._given(taken)
            if self._error is not None:
                yield self._error.output()
            return
        yield from self._given(taken[:at])
        yield self._error.output()
        yield from self._given(taken[at + len(self._error.lines) :])

    def _given(self, lines: list[str]) -> Iterator[Output]:
        if lines:
            yield {"output_type": "stream", "name": self._name, "text": "".join(lines)}


def _kept(text: str) -> list[str]:
    """Lines with their ends: a line ends with a newline alone."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + lines[-1:] * (lines[-1] != "")


def _place(lines: list[str], wanted: list[str]) -> int | None:
    """Where `wanted` stands last."""
    for at in range(len(lines) - len(wanted), -1, -1):
        if lines[at : at + len(wanted)] == wanted:
            return at
    return None


def _json(value: Any) -> str:
    """JSON that UTF-8 can say."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
