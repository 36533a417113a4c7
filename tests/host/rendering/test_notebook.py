"""A kernel as a notebook: valid, in order, bounded, and clear about what ended and what is left out."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from loommux_host.facts.results import Death
from loommux_host.rendering import notebook as notebook_module
from loommux_host.rendering.notebook import Part, notebook
from loommux_kernel.shared.protocol import Origin, OriginKind, State, Stream
from loommux_kernel.shared.records.reader import RecordReader
from loommux_kernel.shared.records.writer import RecordWriter

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)  # fmt: skip
ME = Origin(OriginKind.SESSION, "session test", "test")
NOON = 1_700_000_000.0


class Store:
    """One process's records."""

    def __init__(self, path: Path) -> None:
        self.writer = RecordWriter.open(path, 1 << 30, lambda text: None)
        self.reader = RecordReader(path)
        self.serial = 0

    def cell(
        self,
        source: str,
        fill: Callable[[Store], object] = lambda store: None,
        state: State | None = State.COMPLETED,
        error: tuple[str, str] | tuple[None, None] = (None, None),
        origin: Origin = ME,
    ) -> None:
        self.serial += 1
        number = None if origin.kind is OriginKind.STARTUP else self.serial
        self.writer.begin(self.serial, number, origin, source, NOON, NOON)
        fill(self)
        if state is not None:
            self.writer.end(self.serial, state, NOON + 1, *error)
        self.writer.commit()

    def print(self, text: str, stream: Stream = Stream.STDOUT) -> None:
        self.writer.text(self.serial, stream, text)

    def show(self, bundle: dict[str, Any], kind: str = "display") -> None:
        self.writer.display(
            self.serial, kind=kind, number=self.serial, bundle=bundle, metadata={"detail": "low"}, display_id=None
        )

    def close(self) -> None:
        self.reader.close()
        self.writer.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "1.sqlite")
    yield made
    made.close()


def exported(*parts: Part) -> list[Any]:
    """The cells of a notebook that nbformat takes."""
    text = "".join(notebook("lab/ü", "k_1", parts, NOON))
    made = nbformat.reads(text, as_version=4)
    nbformat.validate(made)
    assert json.loads(text)["metadata"]["loommux"]["kernel"] == "lab/ü"
    return made.cells


def outputs(store: Store) -> list[tuple[str, Any]]:
    """Those of the last cell: its kind with its text or its data."""
    found = exported(Part(1, store.reader))[-1].outputs
    return [(o.get("name", o.output_type), o.get("text", o.get("data", o.get("evalue")))) for o in found]


def test_a_kernel_that_ran_nothing_is_an_empty_notebook(store: Store) -> None:
    assert exported() == []
    assert exported(Part(1, store.reader)) == []


def test_sources_numbers_and_origins_are_kept(store: Store) -> None:
    store.cell("x = 1", origin=Origin(OriginKind.STARTUP, "00.py"))
    store.cell("%%time\n'é\\n'  ")
    first, second = exported(Part(3, store.reader))[1:]
    assert (first.source, first.execution_count, first.metadata.tags) == ("x = 1", None, ["startup"])
    assert (second.source, second.execution_count, second.id) == ("%%time\n'é\\n'  ", 2, "3-2")
    assert second.metadata.loommux.origin == {"kind": "session", "label": "session test"}
    assert (second.metadata.loommux.state, second.metadata.loommux.submitted_at) == ("completed", NOON)


def test_text_displays_and_results_stand_in_their_order(store: Store) -> None:
    def fill(store: Store) -> None:
        store.print("before\n")
        store.show({"text/plain": "<Figure>", "image/png": PIXEL})
        store.print("between\n")
        store.show({"text/plain": "a\nb", "text/html": ["<b>a", "b</b>"], "application/x+json": {"k": [1]}}, "result")
        store.print("after")

    store.cell("plot()", fill)
    assert outputs(store) == [
        ("stdout", "before\n"),
        ("display_data", {"text/plain": "<Figure>", "image/png": PIXEL}),
        ("stdout", "between\n"),
        ("execute_result", {"text/plain": "a\nb", "text/html": "<b>ab</b>", "application/x+json": {"k": [1]}}),
        ("stdout", "after"),
    ]
    assert exported(Part(1, store.reader))[-1].outputs[1].metadata == {"detail": "low"}


def test_a_display_without_text_or_of_an_odd_shape_is_kept(store: Store) -> None:
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "m"}}
    store.cell("x", lambda s: (s.show({"image/png": PIXEL}), s.show({"text/x": {"a": 1}}), s.show(widget)))
    shown = [data for kind, data in outputs(store) if kind == "display_data"]
    assert shown == [{"image/png": PIXEL}, {"text/x": '{"a": 1}'}]


def test_a_cell_that_wrote_to_stderr_alone_says_so(store: Store) -> None:
    store.cell("warn()", lambda s: s.print("careful\n", Stream.STDERR))
    assert outputs(store) == [("stderr", "careful\n")]


def test_an_error_is_an_error_where_its_traceback_stands(store: Store) -> None:
    def fill(store: Store) -> None:
        store.print("x\n")
        store.writer.traceback(store.serial, "Traceback\nValueError: bad\n")
        store.print("late\n")

    store.cell("fail()", fill, State.ERROR, ("ValueError", "bad"))
    assert outputs(store) == [("stdout", "x\n"), ("error", "bad"), ("stdout", "late\n")]
    [_, error, _] = exported(Part(1, store.reader))[-1].outputs
    assert (error.ename, error.traceback) == ("ValueError", ["Traceback", "ValueError: bad"])


def test_a_long_body_is_cut_to_its_ends_and_the_cell_says_so(store: Store) -> None:
    def fill(store: Store) -> None:
        store.print("".join(f"line {n}\n" for n in range(1, 30_001)))
        store.show({"text/plain": "<Figure>", "image/png": PIXEL})
        store.print("x" * 10_000 + "\nlast\n")

    store.cell("flood()", fill)
    found = outputs(store)
    assert found[0] == (
        "stderr",
        "[shortened for this notebook: 30,003 lines, 328,909 characters, 321.2 KiB in all; 100 lines"
        " from each end, clipped to 500 characters]\n",
    )
    assert found[1][1].startswith("line 1\n")
    assert "line 100\n[lines 101–29,903 are left out]\nline 29904\n" in found[1][1]
    assert found[2] == ("display_data", {"text/plain": "<Figure>", "image/png": PIXEL})
    assert found[3][1].endswith("…[9,500 chars omitted]\nlast\n")
    store.cell("one line", lambda s: s.print("y" * 300_000))
    assert [len(text) < 700 for _, text in outputs(store)] == [True, True]


def test_a_display_over_the_bound_is_left_out_and_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook_module, "BUNDLE", 1000)
    store.cell("x", lambda s: s.show({"text/plain": "<Figure>", "image/png": "A" * 2000}))
    assert outputs(store) == [("stdout", "<Figure>\n"), ("stderr", "[display 1: 2.0 KiB; left out of this notebook]\n")]


def test_a_process_that_ended_is_marked_with_how_and_what_it_killed(store: Store, tmp_path: Path) -> None:
    store.cell("x = 1")
    store.cell("crash()", state=State.KILLED)
    store.cell("stop()", state=State.INTERRUPTED)
    death = Death(process=2, at=NOON, cause="restart", by="session <b>_x_</b>")
    second = Store(tmp_path / "3.sqlite")
    second.cell("y", state=None)
    cells = exported(Part(2, store.reader, death), Part(3, second.reader))
    second.close()
    kinds = [cell.cell_type for cell in cells]
    assert kinds == ["markdown", "code", "code", "code", "markdown", "code"]
    assert "1 earlier process of this kernel left no records" in cells[0].source
    assert "killed: process 2 ended by restart" in cells[2].outputs[0].text
    assert cells[3].outputs[0].text == "[interrupted]\n"
    assert cells[4].source.startswith("---\n*Process 2 ended by restart \\(session \\<b\\>\\_x\\_\\<\\/b\\>\\) at 20")
    assert "In [1] was still running" in cells[5].outputs[0].text
    assert len({cell.id for cell in cells}) == len(cells)


def test_a_process_whose_records_are_gone_is_named() -> None:
    assert [cell.source for cell in exported(Part(1, None))] == ["---\n*Process 1 left no records.*"]


def test_memory_does_not_grow_with_the_notebook(store: Store) -> None:
    for _ in range(20):
        store.cell("x", lambda s: [s.show({"image/png": "A" * 500_000}) for _ in range(4)])
    for _ in notebook("k", "k", [Part(1, store.reader)], NOON):
        break
    tracemalloc.start()
    try:
        size = sum(map(len, notebook("k", "k", [Part(1, store.reader)], NOON)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 40_000_000
    assert peak < 8_000_000


@pytest.mark.parametrize(
    ("source", "header", "rest"),
    [
        ("%%loommux --wait 50\n1 + 1", "%%loommux --wait 50", "1 + 1"),
        ("\n  %%loommux --kernel lab\n%%bash\nls", "%%loommux --kernel lab", "%%bash\nls"),
        ("1 + 1", None, "1 + 1"),
        ("'%%loommux --wait 50'", None, "'%%loommux --wait 50'"),
    ],
)
def test_a_header_that_no_other_kernel_knows_is_kept_beside_the_source(
    store: Store, source: str, header: str | None, rest: str
) -> None:
    store.cell(source)
    [cell] = exported(Part(1, store.reader))
    assert (cell["source"], cell["metadata"]["loommux"]["header"]) == (rest, header)
