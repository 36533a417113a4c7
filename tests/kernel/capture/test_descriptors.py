"""The files behind fd 1 and 2: taken in once, given back to the disk, removed when nobody writes them."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loommux_kernel.capture import append_file, descriptors, libc
from loommux_kernel.capture.append_file import BLOCK_BYTES, PUNCH_BYTES
from loommux_kernel.capture.descriptors import Descriptors
from loommux_kernel.capture.queue import OrderedQueue, Step
from loommux_kernel.shared.protocol import State, Stream, now
from loommux_kernel.shared.records.finisher import finish
from tests.kernel.kernel_process import TIMEOUT, Client, KernelProcess
from tests.kernel.reading import execution, text

#: Times of changes, in nanoseconds.
TICKS = itertools.count(1)


class Taken:
    """A recorder that keeps what is taken in."""

    def __init__(self) -> None:
        self.texts: list[tuple[int, Stream, str]] = []
        self.offsets: dict[str, int] = {}
        self._after: list[Callable[[], None]] = []

    def take_in(self, serial: int, stream: Stream, text: str, path: Path, offset: int) -> None:
        if text:
            self.texts.append((serial, stream, text))
        self.offsets[path.name] = (offset if offset >= 0 else ~offset) - len(descriptors.HEAD)

    def after_commit(self, step: Callable[[], None]) -> None:
        self._after.append(step)

    def drain(self, queue: OrderedQueue) -> None:
        items, held, _ = queue.take(1 << 40)
        for item in items:
            assert isinstance(item, Step)
            item.act(self)
        queue.done(held)
        after, self._after = self._after, []
        for step in after:
            step()

    def text(self, serial: int) -> str:
        return "".join(text for owner, _, text in self.texts if owner == serial)


@pytest.fixture
def queue() -> OrderedQueue:
    return OrderedQueue()


@pytest.fixture
def files(tmp_path: Path, queue: OrderedQueue) -> Iterator[Descriptors]:
    """Descriptors in the place of this process's own fd 1 and 2; nothing may be printed meanwhile."""
    sys.stdout.flush()
    sys.stderr.flush()
    made = Descriptors(tmp_path, queue)
    made.open()
    yield made
    made.close()
    for file in [*made.current, *made.retired]:
        os.close(file.fd)
    gc.collect()


def _names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_what_is_written_to_a_descriptor_belongs_to_the_execution_that_runs(
    files: Descriptors, queue: OrderedQueue
) -> None:
    taken = Taken()
    files.begin(1)
    os.write(1, b"one")
    files.begin(2)
    os.write(1, b"two")
    os.write(2, b"error")
    files.mark()
    taken.drain(queue)
    assert taken.texts == [(1, Stream.STDOUT, "one"), (2, Stream.STDOUT, "two"), (2, Stream.STDERR, "error")]
    assert taken.offsets == {"1.out": 6, "1.err": 5}


def test_after_a_process_was_started_the_next_execution_has_files_of_its_own(
    files: Descriptors, queue: OrderedQueue, tmp_path: Path
) -> None:
    taken = Taken()
    files.begin(1)
    files.shared = True
    with subprocess.Popen(["sh", "-c", "read go; echo late"], stdin=subprocess.PIPE) as child:
        files.begin(2)
        os.write(1, b"two\n")
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.close()
        child.wait(TIMEOUT)
    files.mark()
    taken.drain(queue)
    assert (taken.text(1), taken.text(2)) == ("late\n", "two\n")
    assert _names(tmp_path) == {"1.out", "1.err", "2.out", "2.err"}


def test_files_are_removed_when_nobody_can_write_them_any_more(
    files: Descriptors, queue: OrderedQueue, tmp_path: Path
) -> None:
    taken = Taken()
    files.begin(1)
    files.shared = True
    with subprocess.Popen(["sh", "-c", "read go; echo late"], stdin=subprocess.PIPE) as child:
        files.begin(2)
        files.changed()
        taken.drain(queue)
        assert "1.out" in _names(tmp_path)  # the child has it
        assert child.stdin is not None
        child.stdin.close()
        child.wait(TIMEOUT)
    files.changed()
    taken.drain(queue)
    assert taken.text(1) == "late\n"
    assert _names(tmp_path) == {"2.out", "2.err"}
    assert not files.retired


def test_without_inotify_the_same_is_found_by_looking(
    monkeypatch: pytest.MonkeyPatch, queue: OrderedQueue, tmp_path: Path
) -> None:
    monkeypatch.setattr(libc, "watch_directory", lambda path: None)
    monkeypatch.setattr(descriptors, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(append_file, "fcntl", None)
    monkeypatch.setattr(append_file, "_children", lambda: False)  # other tests have left some
    made, taken = Descriptors(tmp_path, queue), Taken()
    made.open()
    try:
        made.begin(1)
        made.shared = True
        os.write(1, b"one")
        made.begin(2)
        made.poll()
    finally:
        made.close()
    taken.drain(queue)
    assert taken.text(1) == "one"
    assert _names(tmp_path) == {"2.out", "2.err"}
    for file in made.current:
        os.close(file.fd)


def test_half_a_character_waits_for_its_other_half(files: Descriptors, queue: OrderedQueue) -> None:
    taken = Taken()
    files.begin(1)
    os.write(1, b"\xe2\x82")
    files.mark()
    taken.drain(queue)
    assert (taken.text(1), taken.offsets["1.out"]) == ("", 0)
    os.write(1, b"\xac")
    files.mark()
    taken.drain(queue)
    assert (taken.text(1), taken.offsets["1.out"]) == ("€", 3)
    os.write(1, b"\xe2")
    files.begin(2)
    taken.drain(queue)
    assert taken.text(1) == "€\\xe2"


def test_closed_and_redirected_descriptors_are_repaired(files: Descriptors, queue: OrderedQueue) -> None:
    taken = Taken()
    files.begin(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    os.close(1)
    files.begin(2)
    os.write(1, b"out")
    os.write(2, b"err")
    files.mark()
    taken.drain(queue)
    assert taken.text(2) == "outerr"


def test_a_truncated_file_begins_anew_and_says_what_is_lost(files: Descriptors, queue: OrderedQueue) -> None:
    taken = Taken()
    files.begin(1)
    os.write(1, b"x" * (descriptors.EAGER_BYTES + 1))  # marked, and not read yet
    files.mark()
    os.truncate(Path(files.current[0].target), 0)
    os.write(1, b"new")
    files.mark()
    taken.drain(queue)
    lost, new = taken.text(1).splitlines()
    assert lost.startswith(f"[{descriptors.EAGER_BYTES + 1} bytes lost: a program truncated fd 1")
    assert new == "new"


def anew(path: Path, words: bytes) -> None:
    """As ``echo words > /dev/stdout``, and never in the same tick of the system's coarse clock."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, words)
    os.close(fd)
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, next(TICKS)))


@pytest.mark.parametrize(
    "words",
    [[b"one\n", b"two\n", b"six\n"], [b"x\n", b"x\n"], [b"12345678\n"], [b"a\n", b"longer\n", b"b\n"], [b"loommux"]],
)
def test_what_is_written_anew_is_taken_each_time_somebody_looks(
    files: Descriptors, queue: OrderedQueue, words: list[bytes]
) -> None:
    taken = Taken()
    files.begin(1)
    os.write(1, b"before\n")
    files.mark()
    for word in words:
        anew(Path(files.current[0].target), word)
        files.changed()
    os.write(1, b"after\n")
    files.changed()
    taken.drain(queue)
    assert taken.text(1) == "before\n" + b"".join(words).decode() + "after\n"
    files.begin(2)
    os.write(1, b"next")
    files.mark()
    taken.drain(queue)
    assert taken.text(2) == "next"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="that a file was closed is told on Linux")
def test_a_look_that_comes_late_hides_no_loss(
    files: Descriptors, queue: OrderedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is told of one writing is read, and the next one is there already."""
    taken, watched = Taken(), libc.watched
    files.begin(1)
    files.changed()
    anew(Path(files.current[0].target), b"x\n")

    def slowly(fd: int) -> Iterator[tuple[int, str]]:
        told = list(watched(fd))
        anew(Path(files.current[0].target), b"y\n")
        return iter(told)

    with monkeypatch.context() as patch:
        patch.setattr(libc, "watched", slowly)
        files.changed()
    files.changed()
    taken.drain(queue)
    assert taken.text(1).startswith("y\n[lines may be missing here: ")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="that a file was opened is told on Linux")
@pytest.mark.parametrize(
    ("before", "written_anew", "after", "kept"),
    [
        (b"", [b"start\n", b"middle\n", b"end\n"], b"", ["end"]),
        (b"one\n", [b"two\n"], b"three\n", ["two", "three"]),
    ],
)
def test_what_nobody_has_looked_at_before_it_was_gone_may_be_lost_which_is_said(
    files: Descriptors, queue: OrderedQueue, before: bytes, written_anew: list[bytes], after: bytes, kept: list[str]
) -> None:
    taken = Taken()
    files.begin(1)
    files.changed()
    os.write(1, before)
    for words in written_anew:
        anew(Path(files.current[0].target), words)
    os.write(1, after)
    files.changed()
    taken.drain(queue)
    said = "[lines may be missing here: a program truncated fd 1; write to >&1, not > /dev/stdout]"
    assert taken.text(1).splitlines() == [*kept, said]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="holes are punched on Linux")
def test_a_file_that_is_written_anew_may_be_large(files: Descriptors, queue: OrderedQueue) -> None:
    taken = Taken()
    files.begin(1)
    anew(Path(files.current[0].target), b"small\n")
    files.changed()
    block = b"z" * (2 * PUNCH_BYTES) + b"\n"
    os.write(1, block)
    for _ in range(5):
        files.changed()
        taken.drain(queue)
    assert taken.text(1) == "small\n" + block.decode()


def test_a_program_may_write_what_files_once_began_with(files: Descriptors, queue: OrderedQueue) -> None:
    taken = Taken()
    files.begin(1)
    os.write(1, b"before\n")
    files.mark()
    anew(Path(files.current[0].target), descriptors.HEAD[:-1])  # shorter than what was there
    files.changed()
    taken.drain(queue)
    assert taken.text(1).startswith("before\n" + descriptors.HEAD[:-1].decode())


def test_files_begin_without_their_mark_on_a_full_disk(
    files: Descriptors, queue: OrderedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if data == descriptors.HEAD:
            raise OSError(28, "No space left on device")
        return write(fd, data)

    taken = Taken()
    files.shared = True
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        files.begin(1)
    os.write(1, b"there is room again\n")
    files.changed()
    taken.drain(queue)
    assert taken.text(1) == "there is room again\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="holes are punched on Linux")
def test_what_was_taken_in_goes_back_to_the_disk(files: Descriptors, queue: OrderedQueue) -> None:
    taken = Taken()
    files.begin(1)
    block = b"y" * BLOCK_BYTES
    for _ in range(3 * PUNCH_BYTES // BLOCK_BYTES):
        os.write(1, block)
    files.mark()
    taken.drain(queue)
    assert len(taken.text(1)) == 3 * PUNCH_BYTES
    status = Path(files.current[0].target).stat()
    assert status.st_size == len(descriptors.HEAD) + 3 * PUNCH_BYTES
    assert status.st_blocks * 512 < PUNCH_BYTES


def test_a_kernel_keeps_no_files_of_processes_that_have_ended(kernel: KernelProcess, server: Client) -> None:
    for i in range(5):
        server.run(f"!echo {i}")
    server.run("1")
    until = time.monotonic() + TIMEOUT
    while len(found := _names(Path(kernel.launch.descriptors))) > 2:
        assert time.monotonic() < until, found
        time.sleep(0.02)
    for path in Path(kernel.launch.descriptors).iterdir():
        assert path.stat().st_mode & 0o777 == 0o600


def test_an_idle_kernel_with_a_silent_child_uses_no_processor(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("import subprocess\nchild = subprocess.Popen(['sleep', '60'])")
    assert reply.state is State.COMPLETED
    server.run("import time; time.sleep(0.3)")

    def used() -> float:
        fields = Path(f"/proc/{kernel.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(1.5)
    assert used() - before <= 0.05
    server.run("child.kill(); child.wait();")


def test_a_flood_of_a_child_is_taken_in_whole(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("!seq 1 300000", timeout=60)
    assert reply.counts.lines == 300000
    assert text(kernel, reply.serial).splitlines() == [str(i) for i in range(1, 300001)]


def test_last_words_before_an_abort_are_in_the_record(launch: Callable[..., KernelProcess]) -> None:
    process = launch()
    client = process.server()
    client.submit(
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nprint('early', flush=True)\n"
        "os.write(1, b'written\\n'); libc.printf(b'printed\\n'); os.abort()"
    )
    process.process.wait(TIMEOUT)
    finish(Path(process.launch.records), now())
    assert text(process, 1) == "early\nwritten\nprinted\n"
    assert execution(process, 1).state is State.KILLED


WRITES_BEHIND_PYTHON = """\
import asyncio, os, sys, threading, time
from pathlib import Path
from types import SimpleNamespace
from loommux_kernel.executions.gate import Execution
from loommux_kernel.capture.output import Output
from loommux_kernel.shared.protocol import Origin, OriginKind, Stream, now
from loommux_kernel.shared.records.reader import RecordReader
from loommux_kernel.shared.records.relay import RelayedWriter

place, first = Path(sys.argv[1]), sys.argv[2]
(place / "fd").mkdir()
nobody = SimpleNamespace(wants_stream=lambda stream: False, event=lambda event: None, sent=lambda: None)
output = Output(lambda trouble: RelayedWriter(place / "records", 1 << 30, trouble), place / "fd")
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()

def start():
    started = threading.Event()
    loop.call_soon_threadsafe(lambda: (output.start(nobody, loop), started.set()))
    started.wait()

for step in [start, output.open] if first == "the drain" else [output.open, start]:
    step()
output.begin(Execution(1, 1, Origin(OriginKind.SESSION, "a"), None, "source", now(), now()), {})
os.write(1, b"late")
reader, until = RecordReader(place / "records"), time.monotonic() + 20
while reader.text(1, Stream.COMBINED) != "late":
    assert time.monotonic() < until
    time.sleep(0.01)
os._exit(0)
"""


@pytest.mark.parametrize("first", ["the drain", "the files"])
def test_what_is_written_behind_python_is_noticed_whatever_is_there_first(tmp_path: Path, first: str) -> None:
    done = subprocess.run([sys.executable, "-c", WRITES_BEHIND_PYTHON, str(tmp_path), first], timeout=60)
    assert done.returncode == 0
