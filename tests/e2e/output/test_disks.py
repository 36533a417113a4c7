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
def small(tmp_path: Path, private_jupyter: Path) -> Iterator[Place]:
    """A place whose temporary directory is a disk of 12 MiB."""
    disk = Path(tempfile.mkdtemp(prefix="lm-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={FILL}", "tmpfs", disk], capture_output=True, check=False
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
