"""The relay: what a record is given, as lines that another kernel does again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loommux_kernel.shared.protocol import Origin, OriginKind, State, Stream
from loommux_kernel.shared.records import relay
from loommux_kernel.shared.records.finisher import finish
from loommux_kernel.shared.records.reader import RecordReader
from loommux_kernel.shared.records.relay import RelayedWriter
from loommux_kernel.shared.records.start_note import HEAD

ORIGIN = Origin(OriginKind.KERNEL, "kernel /main")


class Relayed:
    """A record writer whose execution 1 is relayed."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "relay-1"
        self.store = directory / "records.sqlite"
        self.writer = RelayedWriter(self.store, 1 << 30, pytest.fail)
        self.writer.begin(1, 1, ORIGIN, "source", 1.0, 1.0)
        self.writer.relay(1, str(self.file))

    def lines(self) -> list[list[Any]]:
        text = self.file.read_bytes().decode("utf-8", "surrogatepass")
        return [json.loads(line) for line in text.split("\n") if line]


@pytest.fixture
def relayed(tmp_path: Path) -> Relayed:
    return Relayed(tmp_path)


def display(relayed: Relayed, bundle: dict[str, Any], **more: Any) -> None:
    asked = {"kind": "display", "number": None, "metadata": {}, "display_id": None, **more}
    relayed.writer.display(1, bundle=bundle, **asked)


def test_everything_a_record_is_given_is_a_line_in_its_order_as_it_was_written(relayed: Relayed) -> None:
    writer = relayed.writer
    writer.said(1, "10%\r20%\x1b[31m é\u2028\udce9\n", {Stream.STDOUT: "10%\r20%\x1b[31m é\u2028\udce9\n"})
    writer.said(1, "ab", {Stream.STDOUT: "a", Stream.STDERR: "b"})
    display(relayed, {"text/plain": "x"}, display_id="d")
    writer.update_display(1, "d", {"text/plain": "y"}, {})
    writer.clear(1, True)
    writer.traceback(1, "long", "short")
    writer.said(2, "another's", {Stream.STDOUT: "another's"})
    writer.end(1, State.ERROR, 2.0, "E", "why")
    writer.said(1, "late", {Stream.STDOUT: "late"})
    assert relayed.lines() == [
        ["text", "stdout", "10%\r20%\x1b[31m é\u2028\udce9\n"],
        ["said", "ab", {"stdout": "a", "stderr": "b"}],
        ["display", "display", None, {"text/plain": "x"}, {}, "d", None],
        ["update", "d", {"text/plain": "y"}, {}, True, None],
        ["clear", True],
        ["traceback", "long", "short"],
        ["end", "error", "E", "why"],
    ]
    writer.close()


def test_images_are_named_and_not_relayed(relayed: Relayed) -> None:
    display(relayed, {"text/plain": "p", "image/png": "AAAA", "IMAGE/jpeg": "BBBB", "text/html": "h"})
    display(relayed, {"image/png": "AAAA"}, display_id="d")
    relayed.writer.update_display(1, "d", {"image/png": "CCCC"}, {})
    first, second, update = relayed.lines()
    assert first[3] == {"text/plain": "p", "text/html": "h"}
    assert first[6] == "image/png, IMAGE/jpeg of display 1"
    assert (second[3], second[6]) == ({}, "image/png of display 2")
    assert (update[2], update[5]) == ({}, "image/png")
    relayed.writer.close()


def test_a_display_that_is_shown_anew_is_relayed_once(relayed: Relayed) -> None:
    relayed.writer.update_display(1, "unknown here", {"text/plain": "anew"}, {})
    assert [line[0] for line in relayed.lines()] == ["update"]
    relayed.writer.close()


def test_removing_the_file_ends_the_relay_and_nothing_else(relayed: Relayed) -> None:
    relayed.writer.text(1, Stream.STDOUT, "first\n")
    relayed.file.unlink()
    relayed.writer.text(1, Stream.STDOUT, "second\n")
    relayed.writer.end(1, State.COMPLETED, 2.0, None, None)
    relayed.writer.close()
    assert not relayed.file.exists()
    reader = RecordReader(relayed.store)
    assert reader.text(1, Stream.STDOUT) == "first\nsecond\n"
    reader.close()


def test_a_relay_that_cannot_be_opened_costs_the_cell_nothing(relayed: Relayed, tmp_path: Path) -> None:
    relayed.writer.begin(2, 2, ORIGIN, "source", 1.0, 1.0)
    relayed.writer.relay(2, str(tmp_path / "missing" / "relay"))
    relayed.writer.text(2, Stream.STDOUT, "said\n")
    assert relayed.writer.counts(2).lines == 1
    relayed.writer.close()


def test_what_nobody_takes_in_is_bounded_and_the_end_is_told_all_the_same(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "MOST_BYTES", 64 << 10)
    for _ in range(20):
        relayed.writer.text(1, Stream.STDOUT, "x" * 9999 + "\n")
    relayed.writer.end(1, State.COMPLETED, 2.0, None, None)
    *texts, lost, end = [line[0] for line in relayed.lines()]
    assert set(texts) == {"text"}
    assert (lost, end) == ("lost", "end")
    assert relayed.file.stat().st_size < 128 << 10
    relayed.writer.close()


@pytest.mark.parametrize("half", [b"", b'["text", "stdout", "never fin'])
def test_what_a_killed_process_left_goes_on_behind_its_last_whole_line(
    relayed: Relayed, tmp_path: Path, half: bytes
) -> None:
    output = tmp_path / "fd-1"
    output.write_bytes(HEAD + b"taken in\nlast words\n")
    relayed.writer.text(1, Stream.STDOUT, "taken in\n")
    relayed.writer.descriptor(1, Stream.STDOUT, output, len(HEAD + b"taken in\n"))
    relayed.writer.commit()
    with relayed.file.open("ab") as file:
        file.write(half)
    finish(relayed.store, 9.0, relay=str(relayed.file))
    assert relayed.lines() == [
        ["text", "stdout", "taken in\n"],
        ["text", "stdout", "last words\n"],
        ["end", "killed", None, None],
    ]
    relayed.writer.close()
