"""Lines over the standard streams: whole, in order, and never in the way of the event loop."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from loommux_host.mcp.stdio_lines import PolledWriter, Reader, ThreadedWriter, Writer

pytestmark = pytest.mark.anyio


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for fd in (read, write):
        with suppress(OSError):
            os.close(fd)


class Heard:
    """What a reader gave, and when it ended."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.ended = asyncio.Event()

    async def all(self) -> list[bytes]:
        await asyncio.wait_for(self.ended.wait(), 10)
        return self.lines


async def at_once() -> None:
    """Nothing is in flight."""


async def test_lines_come_whole_and_in_order_however_they_were_cut(pipe: tuple[int, int]) -> None:
    read, write = pipe
    heard = Heard()
    Reader(read, heard.lines.append, heard.ended.set, at_once)
    for piece in (b"on", b"e\ntwo\n\nth", b"ree\n", b"fo", b"ur"):
        os.write(write, piece)
        await asyncio.sleep(0)
    os.close(write)
    assert await heard.all() == [b"one", b"two", b"", b"three", b"four"]


@pytest.mark.case("X17")
@pytest.mark.parametrize("end", ["\n", ""])
async def test_the_lines_of_a_file_come_one_by_one_and_the_last_with_the_end(tmp_path: Path, end: str) -> None:
    file = tmp_path / "requests"
    file.write_text(f"one\ntwo\nthree{end}")
    fd = os.open(file, os.O_RDONLY)
    heard = Heard()
    had: list[int] = []

    async def answered() -> None:
        had.append(len(heard.lines))
        assert not heard.ended.is_set()
        await asyncio.sleep(0)

    Reader(fd, heard.lines.append, heard.ended.set, answered)
    assert await heard.all() == [b"one", b"two", b"three"]
    assert had == [1, 2]
    os.close(fd)


async def test_a_closed_reader_gives_nothing_more(pipe: tuple[int, int]) -> None:
    read, write = pipe
    heard = Heard()
    reader = Reader(read, heard.lines.append, heard.ended.set, at_once)
    os.write(write, b"one\n")
    reader.close()
    await asyncio.sleep(0)
    assert heard.lines == []


def writers() -> list[type[PolledWriter] | type[ThreadedWriter]]:
    return [ThreadedWriter] if sys.platform == "win32" else [PolledWriter, ThreadedWriter]


async def read_all(fd: int) -> bytes:
    def read() -> bytes:
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read()

    return await asyncio.to_thread(read)


@pytest.mark.parametrize("make", writers())
async def test_lines_larger_than_a_pipe_stay_whole_when_their_writers_are_cancelled(
    make: type[Writer], pipe: tuple[int, int]
) -> None:
    read, write = pipe
    broken = asyncio.Event()
    writer = make(write, broken.set)  # pyright: ignore[reportCallIssue]
    lines = [bytes([letter]) * 300_000 + b"\n" for letter in b"abc"]
    tasks = [asyncio.create_task(writer.write(line)) for line in lines]
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    tasks[0].cancel()
    tasks[1].cancel()
    reading = asyncio.create_task(read_all(read))
    await asyncio.wait_for(tasks[2], 10)
    os.close(write)
    assert await asyncio.wait_for(reading, 10) == b"".join(lines)
    assert not broken.is_set()


@pytest.mark.parametrize("make", writers())
async def test_a_client_that_reads_slowly_does_not_hold_the_loop(make: type[Writer], pipe: tuple[int, int]) -> None:
    read, write = pipe
    writer = make(write, lambda: None)  # pyright: ignore[reportCallIssue]
    line = b"x" * 1_000_000 + b"\n"
    writing = asyncio.create_task(writer.write(line))
    turns = got = 0
    while not writing.done() and turns < 100_000:
        await asyncio.sleep(0)
        turns += 1
        if turns > 100 and got < len(line):  # a read of what never comes would not end
            got += len(await asyncio.to_thread(os.read, read, 1 << 16))
    assert turns > 100
    await asyncio.wait_for(writing, 10)


@pytest.mark.parametrize("make", writers())
async def test_a_client_that_is_gone_ends_all_writing_and_is_told_once(
    make: type[Writer], pipe: tuple[int, int]
) -> None:
    read, write = pipe
    told: list[str] = []
    writer = make(write, lambda: told.append("broken"))  # pyright: ignore[reportCallIssue]
    waiting = [asyncio.create_task(writer.write(b"x" * 200_000 + b"\n")) for _ in range(2)]
    await asyncio.sleep(0)
    os.close(read)
    await asyncio.wait_for(asyncio.gather(*waiting), 10)
    await asyncio.wait_for(writer.write(b"late\n"), 10)
    assert told == ["broken"]


CLAIM = """
import os, subprocess, sys
from loommux_host.mcp.stdio_lines import claim
read, write = claim()
print("printed")
os.write(1, b"written\\n")
subprocess.run(["sh", "-c", "cat; echo from a child"])
subprocess.run([sys.executable, "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))"])
os.write(write, os.read(read, 100).upper())
"""


async def test_nothing_else_reaches_the_wire_once_it_is_claimed() -> None:
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", CLAIM], input=b"request\n", capture_output=True, timeout=60
    )
    assert done.stdout == b"REQUEST\n"
    assert b"written" in done.stderr
    assert b"from a child" in done.stderr
    assert b"request" not in done.stderr
    if sys.platform == "linux":
        assert b"['0', '1', '2', '3']" in done.stderr  # 3 is the listing's own


async def test_a_process_without_standard_streams_cannot_claim_them() -> None:
    code = (
        "import os\nfrom loommux_host.mcp.stdio_lines import claim\n"
        "os.close(0)\ntry: claim()\nexcept OSError: os._exit(7)"
    )
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], timeout=60)
    assert done.returncode == 7
