"""What was printed last outlives its process: each text once, in order, or a word that some is missing."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loommux_kernel.capture.queue import Channel, OrderedQueue
from loommux_kernel.shared.protocol import Stream, now
from loommux_kernel.shared.records import unrecorded_text
from loommux_kernel.shared.records.database import CODES
from loommux_kernel.shared.records.finisher import MISSING, finish
from loommux_kernel.shared.records.reader import RecordReader
from loommux_kernel.shared.records.unrecorded_text import HALF_BYTES, Text, Unrecorded, left
from tests.kernel.kernel_process import Launch
from tests.kernel.reading import text

OUT = CODES[Stream.STDOUT]
#: Lengths of texts; a few fill a half.
LENGTHS = st.integers(0, 60) | st.integers(HALF_BYTES // 4 - 30, HALF_BYTES // 4 + 30) | st.just(HALF_BYTES)


def texts_of(found: list[Text]) -> list[tuple[int, str]]:
    return [(text.number, text.text) for text in found]


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(LENGTHS, st.integers(0, 40)), max_size=60))
def test_what_is_left_is_what_was_put_and_not_recorded(tmp_path_factory: Any, steps: list[tuple[int, int]]) -> None:
    """After each text so many of them are recorded, as it happens to be; then the process dies."""
    path = tmp_path_factory.mktemp("left") / unrecorded_text.FILE
    file, put, recorded = Unrecorded(path), [], 0
    for length, more in steps:
        put.append(f"{len(put)}é".ljust(length, "x")[:length])
        file.put(7, OUT, put[-1])
        recorded = min(recorded + more, len(put))
        file.recorded(recorded)
    found, left_out = left(path, recorded)
    wanted = list(enumerate(put[recorded:], recorded + 1))
    assert texts_of(found) == [one for one in wanted if one in texts_of(found)]
    missing = [number for number, _ in wanted if number not in {text.number for text in found}]
    assert max(missing, default=0) == (left_out if left_out > recorded else 0)
    assert all(len(put[number - 1]) >= HALF_BYTES // 4 - 30 or left_out >= number for number in missing)


def test_what_fits_is_never_missing(tmp_path: Path) -> None:
    path = tmp_path / unrecorded_text.FILE
    file = Unrecorded(path)
    for number in range(1, 20_001):
        file.put(1, OUT, f"line {number}\n")
        if number % 5_000 == 0:
            file.recorded(number - 2_500)
    found, left_out = left(path, 17_500)
    assert left_out == 0 and [text.number for text in found] == list(range(17_501, 20_001))
    assert found[-1] == Text(20_000, 1, Stream.STDOUT, "line 20000\n")


def test_a_damaged_file_leaves_nothing_rather_than_nonsense(tmp_path: Path) -> None:
    size = unrecorded_text.HEAD_BYTES + 2 * HALF_BYTES
    not_text = bytes(unrecorded_text.HEAD_BYTES) + unrecorded_text._ENTRY.pack(1, 4, OUT, 0, 1) + b"\xff" * 4
    path = tmp_path / unrecorded_text.FILE
    for damage in (b"", b"\xff" * 200_000, random.Random(1).randbytes(size), not_text.ljust(size, b"\0")):
        path.write_bytes(damage)
        assert left(path, 0)[0] == []
    assert left(tmp_path / "none", 0) == ([], 0)


def test_a_forked_childs_queue_keeps_nothing(tmp_path: Path) -> None:
    queue = OrderedQueue()
    queue.unrecorded = Unrecorded(tmp_path / unrecorded_text.FILE)
    queue.text(Channel(1, Stream.STDOUT), "parent")
    queue.clear()
    queue.text(Channel(1, Stream.STDOUT), "child")
    assert texts_of(left(tmp_path / unrecorded_text.FILE, 0)[0]) == [(1, "parent")]


#: Ways to die, with what they need.
DEATHS = {
    "abort": "os.abort()",
    "a segmentation fault": "import ctypes; ctypes.string_at(0)",
    "SIGKILL": "os.kill(os.getpid(), 9)",
    "exit": "os._exit(3)",
}


#: The most fits into half of the file, however late a drain comes.
@pytest.mark.parametrize("count", [0, 1, 7, 400, 5_000])
@pytest.mark.parametrize("how", DEATHS)
def test_every_line_printed_before_a_death_is_recorded_once(launch: Launch, how: str, count: int) -> None:
    kernel = launch()
    server = kernel.server()
    before = server.run("print('before')")
    print_by_turns = "print('line', i, file=(sys.stdout, sys.stderr)[i % 3 == 0])"
    serial = before.serial + 1
    server.submit(f"import os, sys\nfor i in range({count}): {print_by_turns}\n{DEATHS[how]}")
    kernel.process.wait(60)
    finish(Path(kernel.launch.records), now())
    lines = [f"line {i}" for i in range(count)]
    assert text(kernel, serial).splitlines() == lines
    assert text(kernel, serial, Stream.STDERR).splitlines() == lines[::3]
    assert text(kernel, before.serial) == "before\n"
    finish(Path(kernel.launch.records), now())
    assert text(kernel, serial).splitlines() == lines, "nothing is recorded a second time"
    assert not Path(kernel.launch.records).with_name(unrecorded_text.FILE).exists()


def test_what_was_too_much_is_told_where_it_is_missing(launch: Launch) -> None:
    kernel = launch()
    server = kernel.server()
    serial = server.run("import os").serial + 1
    server.submit("print('first'); print('x' * 3_000_000); print('last'); os.abort()")
    kernel.process.wait(60)
    finish(Path(kernel.launch.records), now())
    found = text(kernel, serial)
    assert found.startswith("first\n") and found.endswith("last\n")
    assert "x" in found or "[lines are missing here: " in found


def test_a_death_in_the_middle_of_a_flood_leaves_no_doubles_and_no_gap_without_a_word(launch: Launch) -> None:
    kernel = launch()
    server = kernel.server()
    serial = server.run("1").serial + 1
    server.submit("i = 0\nwhile True:\n    print(i); i += 1")
    reader = RecordReader(Path(kernel.launch.records))
    while "2000\n" not in reader.text(serial, Stream.COMBINED):
        server.take_published(0.01)
    reader.close()
    os.kill(kernel.process.pid, signal.SIGKILL)
    kernel.process.wait(60)
    finish(Path(kernel.launch.records), now())
    expected = 0
    for part in text(kernel, serial).split(MISSING):
        numbers = [int(line) for line in part.split("\n") if line]
        first = numbers[0] if numbers else expected
        assert numbers == list(range(first, first + len(numbers))) and first >= expected
        expected = first + len(numbers)
    assert expected > 2000
