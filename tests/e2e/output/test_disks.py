"""The disk under the records is full, read-only or slow: cells go on, recent output is had, it is said once."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.driving import Agent, Place, Start, serving, until
from tests.e2e.fixtures import checked
from tests.e2e.shown import lines_of, notices, printed

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="tmpfs, and the faults of Linux's disks"),
]
FILL = 12 << 20
INCOMPLETE = "Records are incomplete: the record store cannot be written"
#: In a cell: what the kernel's own writes meet from now on.
FAULTS = {
    "a read-only disk": """\
import sqlite3
def fault(store, rows): raise sqlite3.OperationalError("attempt to write a readonly database")""",
    "a slow disk": """\
import time
def fault(store, rows): time.sleep(2); return real(store, rows)""",
}
INJECT = """\
from loommux_kernel.shared.records.database import Store
real = Store.apply
{}
Store.apply = fault"""


@pytest.fixture
def small(request: pytest.FixtureRequest, tmp_path: Path, private_jupyter: Path) -> Iterator[Place]:
    """A place whose temporary directory is a disk of 12 MiB, or of so many bytes as a test wants."""
    size = getattr(request, "param", FILL)
    disk = Path(tempfile.mkdtemp(prefix="lm-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], capture_output=True, check=False
    )
    try:
        if mounted.returncode:
            pytest.skip("only root may mount a small disk")
        with checked(tmp_path, private_jupyter) as place:
            shutil.rmtree(place.temporary)
            place.temporary = disk
            place.errors = tmp_path / "stderr"
            yield place
            place.temporary = Path(tempfile.mkdtemp(prefix="lm-"))
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", disk], check=True)
        disk.rmdir()


def told_once(results: list[str]) -> None:
    """Of all results exactly one says that records are incomplete."""
    said = [line for text in results for line in notices(text) if INCOMPLETE in line]
    assert len(said) == 1, said
    assert "The kernel goes on and keeps recent output in memory." in said[0]


async def recorded(agent: Agent, execution: int) -> None:
    """Wait for the next attempt to write."""

    async def read() -> bool:
        return not (await agent.call("read_output", execution=execution)).is_error

    await until(read)


async def test_a_full_disk_stops_no_cell_and_records_go_on_when_there_is_room(small: Place) -> None:
    async with serving(small) as agent:
        assert "Out[1]: 1" in await agent.run("1")
        filler = small.temporary / "filler"
        with filler.open("wb") as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        results = [await agent.run(f"for i in range(3000): print({n}, i)") for n in range(3)]
        assert all("Last 20 lines:" in text and f"{n} 2999" in text for n, text in enumerate(results))
        results.append(await agent.run("for i in range(9000): print('long', i)"))
        assert "Output omitted: its record cannot be read yet" in results[-1]
        results.append(await agent.run("6 * 7"))
        assert "Out[6]: 42" in results[-1]
        for tool, more in (("read_output", {}), ("search_output", {"query": "1"})):
            refused = await agent.refusal(tool, execution=4, **more)
            assert refused.startswith("records_behind: "), refused
        filler.unlink()
        results.append(await agent.run("'room again'"))
        told_once(results)
        await recorded(agent, 5)
        assert await lines_of(agent, execution=4) == [f"2 {i}" for i in range(3000)]
        assert await printed(agent, "print('recorded')") == "recorded"
        assert "process 2 " in await agent.text("restart")


def fill(place: Place) -> Path:
    """Leave no byte free on the small disk."""
    filler = place.temporary / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(1 << 16))
    with filler.open("ab", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x")
    return filler


@pytest.mark.case("X11")
async def test_on_a_full_disk_programs_and_descriptors_are_written_to_and_nothing_is_lost(small: Place) -> None:
    async with serving(small) as agent:
        assert await printed(agent, "!echo before") == "before"
        filler = fill(small)
        await agent.run("import os\nassert os.write(1, b'x' * 99_999 + b'\\n') == 100_000")
        assert await printed(agent, "!seq 1 3") == "1\n2\n3"
        await agent.run("!seq 1 100000\nassert _exit_code == 0")
        await agent.run("!yes | head -c 2000000\nassert _exit_code == 0")
        await agent.run("import subprocess\nprint(subprocess.run(['seq', '1', '100000']).returncode)")
        assert await printed(agent, "os.system('echo there >&2')") == "there\nOut[7]: 0"
        filler.unlink()
        await recorded(agent, 6)
        assert await lines_of(agent, execution=2) == ["x" * 99_999]
        assert "[100,000 matching lines" in await agent.text("search_output", execution=4, query="^[0-9]+$")
        assert await lines_of(agent, execution=4, range="99999:") == ["99999", "100000"]
        assert "of 1,000,000]" in await agent.text("read_output", execution=5, line_range="-1:")
        assert await lines_of(agent, execution=6, range="-2:") == ["100000", "0"]
        assert await printed(agent, "!echo after") == "after"


@pytest.mark.case("X11")
async def test_programs_that_a_cell_starts_after_it_filled_the_disk_can_write(small: Place) -> None:
    fills = """\
import os
try:
    with open('filler', 'wb', buffering=0) as file:
        while True: file.write(bytes(4096))
except OSError: pass
print(os.system('seq 1 100000'))"""
    async with serving(small) as agent:
        await agent.run(f"%cd -q {small.temporary}")
        await agent.run(fills)
        await agent.run("os.unlink('filler')")
        await recorded(agent, 2)
        assert "[100,001 matching lines" in await agent.text("search_output", execution=2, query="^[0-9]+$")


@pytest.mark.case("X11")
@pytest.mark.parametrize("small", [64 << 20], indirect=True)
async def test_what_a_program_writes_without_end_on_a_full_disk_is_bounded_and_that_is_said(small: Place) -> None:
    async with serving(small) as agent:
        await agent.run("import os, resource")
        filler = fill(small)
        await agent.run("%%loommux --wait 60 --silence 60\nos.system('yes 2>&1')")
        filler.unlink()
        await recorded(agent, 2)
        found = await agent.text("search_output", execution=2, query="after it failed]")
        assert "[the disk is full and 64 MiB of this waited in memory: what programs wrote to fd 1" in found
        assert int(await printed(agent, "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)")) < 800_000
        assert await printed(agent, "!echo after") == "after"


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_disk_that_cannot_be_written_or_is_slow_stops_no_cell(start: Start, kind: str) -> None:
    async with start() as agent:
        results = [await agent.run(INJECT.format(FAULTS[kind]))]
        for n in range(3):
            results.append(await agent.run(f"print('line', {n}); {n}"))
            assert f"line {n}\nOut[{n + 2}]: {n}" in results[-1]
        results.append(await agent.run("1/0"))
        assert "ZeroDivisionError" in results[-1]
        assert "In [5]" in await agent.text("execution_status")
        if kind == "a read-only disk":
            told_once(results)
        results.append(await agent.run("Store.apply = real"))
        await recorded(agent, 3)
        assert await printed(agent, "print('recorded')") == "recorded"
        assert await lines_of(agent, execution=3) == ["line 1", "Out[3]: 1"]
        assert re.match(r"restarted: process 2 ", await agent.text("restart"))
        assert await printed(agent, "1") == "Out[1]: 1"


async def test_cells_run_and_a_restart_works_after_the_temporary_directory_was_cleaned_up(
    place: Place, agent: Agent
) -> None:
    assert await printed(agent, "!echo first") == "first"
    for directory in [path for path in place.temporary.iterdir() if path.is_dir()]:
        shutil.rmtree(directory)
    assert await printed(agent, "print('second')") == "second"
    assert await printed(agent, "!echo third") == "third"
    assert (await printed(agent, "1/0")).endswith("ZeroDivisionError: division by zero")
    assert "restarted: process 2" in await agent.text("restart")
    assert await printed(agent, "!echo fourth") == "fourth"
