"""A server's private directory is removed while the server lives: what ran is told as run, and all goes on."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from loommux_host.processes.running_servers import living_servers
from tests.e2e.driving import COMMAND, PATIENCE, Place, Start, attached, text_of, until
from tests.e2e.http_driving import web
from tests.e2e.shown import lines_of, notices, outline, printed

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="there a file that is open cannot be removed"),
]
INCOMPLETE = "Records may be incomplete: somebody removed this kernel's files."
MADE_AGAIN = "it has been made again"


def the_temporary_directory(place: Place) -> None:
    shutil.rmtree(place.temporary)
    place.temporary.mkdir()


def the_temporary_directory_itself(place: Place) -> None:
    shutil.rmtree(place.temporary)


def all_in_the_servers_directory(place: Place) -> None:
    [server] = living_servers(place.temporary)
    directory = next(path.parent for path in place.temporary.glob("loommux-*/*/server.json"))
    assert server.pid
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def the_record_store_alone(place: Place) -> None:
    for path in place.stores():
        path.unlink()


def the_log_of_the_record_store_alone(place: Place) -> None:
    for path in place.stores():
        path.with_name(f"{path.name}-wal").unlink()


REMOVALS = [
    the_temporary_directory,
    the_temporary_directory_itself,
    all_in_the_servers_directory,
    the_record_store_alone,
    the_log_of_the_record_store_alone,
]


@pytest.fixture
def place(place: Place) -> Place:
    place.errors = place.workspace / "stderr"
    return place


def command(place: Place, *words: str) -> str:
    """What a command of a person says."""
    return subprocess.run(
        [*COMMAND, *words], env=os.environ | place.environment, cwd=place.workspace, capture_output=True,
        text=True, check=True, timeout=PATIENCE,
    ).stdout  # fmt: skip


async def made_again(place: Place) -> None:
    """Wait until the server can be found again."""

    async def found() -> bool:
        return any(path.with_name("c").exists() for path in place.temporary.glob("loommux-*/*/server.json"))

    await until(found)


@pytest.mark.case("N03", "X08")
@pytest.mark.parametrize("remove", REMOVALS)
async def test_every_cell_is_told_as_what_it_did_and_once_that_records_may_be_incomplete(
    start: Start, place: Place, remove: Callable[[Place], None]
) -> None:
    async with start() as agent:
        results: list[Any] = []

        async def call(tool: str, **arguments: object) -> str:
            result = await agent.call(tool, **arguments)
            assert not result.is_error, text_of(result)
            results.append(result)
            return text_of(result)

        await call("run_cell", freeform="n = 0\nfor i in range(300): print('line', i)")
        remove(place)
        running = "import time\nn += 1\nfor i in range(30): print('tick', i); time.sleep(0.05)"
        assert "Running" in await call("run_cell", freeform=f"%%loommux --wait 0.3\n{running}")
        assert "tick 29" in await call("wait")
        assert "[lines 1–2 of 30]" in await call("read_output", line_range="1:2")
        assert "M 3 | tick 2" in await call("search_output", query="tick 2")
        assert "completed" in await call("execution_status")
        await call("run_cell", freeform="from PIL import Image; n += 1; Image.new('RGB', (20, 20))")
        assert "<image/png>" in outline(results[-1])
        assert "50,001 characters" in await call("run_cell", freeform="n += 1; print('y' * 50000)")
        assert "50,001 characters" in await call("wait")
        assert "[lines 1–1 of 1, characters 1–50 of 50,000" in await call("read_output", max_chars=50)
        assert "[lines 1–3 of 300]" in await call("read_output", execution=1, line_range="1:3")
        assert "hi\n3" in await call("run_cell", freeform="import os; os.system('echo hi'); print(n)")
        assert "In [5]" in await call("status")
        told = [line for result in results for line in notices(text_of(result)) if INCOMPLETE in line]
        assert len(told) == 1, told


@pytest.mark.case("N03", "X08")
async def test_what_a_cell_removes_itself_is_not_missing_in_its_own_result(start: Start, place: Place) -> None:
    async with start() as agent:
        source = f"import shutil\nshutil.rmtree({str(place.temporary)!r})\nprint('y' * 50000)"
        assert "50,001 characters" in await agent.run(source)
        assert (await lines_of(agent)) == ["y" * 50000]


@pytest.mark.case("X08")
@pytest.mark.parametrize("remove", REMOVALS[:3])
async def test_code_in_cells_and_commands_reach_the_server_again(
    start: Start, place: Place, remove: Callable[[Place], None]
) -> None:
    async with start() as agent:
        await agent.run("1")
        remove(place)
        said = [await agent.run("print(loommux.create('lab').run_cell('6 * 7')['output_text'])")]
        assert "Out[1]: 42" in said[0]
        listed = await asyncio.to_thread(command, place, "kernels")
        assert "lab " in listed, listed
        said.append(await agent.run("1"))
        assert len([line for text in said for line in notices(text) if MADE_AGAIN in line]) == 1, said
        assert "restarted: process 2" in await agent.text("restart")
        async with attached(agent) as person:
            assert (await person.execute_interactive("6 * 7", timeout=PATIENCE))["content"]["status"] == "ok"
        assert await printed(agent, "!echo there") == "there"
        assert "[lines 1–1 of 1]" in await agent.text("read_output", process=1, execution=1)


@pytest.mark.case("N03", "X08")
async def test_a_death_after_it_is_told_with_what_the_cell_had_printed(start: Start, place: Place) -> None:
    async with start() as agent:
        await agent.run("print('before')")
        the_temporary_directory(place)
        text = await agent.run("import os, signal\nprint('printed')\nos.kill(os.getpid(), signal.SIGKILL)")
        assert "printed\nKilled: process 1 ended by SIGKILL" in text
        assert await printed(agent, "1") == "Out[1]: 1"
        assert await agent.text("read_output", process=1, execution=1) == "[lines 1–1 of 1]\nbefore"


@pytest.mark.case("X08")
async def test_a_directory_that_cannot_be_made_again_is_told_once_with_what_helps(start: Start, place: Place) -> None:
    async with start() as agent:
        await agent.run("print('before')")
        assert await lines_of(agent) == ["before"]  # the server has opened the records
        shutil.rmtree(place.temporary)
        place.temporary.write_text("no directory")  # so that nobody can make one, root included
        results = [await agent.run("print('y' * 50000)")]

        async def told() -> bool:
            results.append(await agent.run("n = 1"))
            return any("cannot be made again" in line for text in results for line in notices(text))

        await until(told)
        results += [await agent.run("n += 1; print(n)") for _ in range(3)]
        assert "n\n4" not in results[-1]
        assert await lines_of(agent, execution=2) == ["y" * 50000]
        said = [line for text in results for line in notices(text)]
        server = [line for line in said if line.startswith("Server · ")]
        assert len(server) == 1, said
        assert "Make its parent directory again" in server[0]
        place.temporary.unlink()
        place.temporary.mkdir()
        await made_again(place)
        assert "Out[1]: 2" in await printed(agent, "print(loommux.create('lab').run_cell('1 + 1')['output_text'])")


@pytest.mark.case("X08")
async def test_after_a_restart_kernels_of_a_server_that_is_killed_later_are_still_taken_over(place: Place) -> None:
    async with web(place, "--port", "0") as first:
        async with first.agent() as agent:
            await agent.run("%%loommux --attach lab --create\n1")
            the_temporary_directory(place)
            await made_again(place)
            await agent.text("restart")
            await agent.run("x = 42")
        port = first.base.rsplit(":", 1)[1]
        await first.end(signal.SIGKILL)
    async with web(place, "--port", port) as second, second.agent() as agent:
        assert "Out[2]: 42" in await agent.run("%%loommux --attach lab\nx")
