"""A helper of a server's was stopped (SIGSTOP, swapping): every tool answers with its word, and the server ends."""

from __future__ import annotations

import re
import signal
import sys
from dataclasses import dataclass

import psutil
import pytest

from tests.e2e.driving import Agent, Lines, Place, Start, StartLines

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="the helpers of Linux"),
]
#: 300 lines that are neither surely within the limit of tokens nor surely beyond it.
PROSE = """\
import random
words = "the quick brown fox jumps over some lazy dog while thinking about other matters".split()
for _ in range(300): print(*random.choices(words, k=12))"""
SLEEP = "%%loommux --wait 0.3\nimport time; print('asleep', flush=True); time.sleep(60)"
HELPERS = ["keeper", "guard", "init"]


@dataclass
class Helpers:
    """The processes beside a server."""

    server: psutil.Process
    kernel: psutil.Process

    def named(self, name: str) -> psutil.Process:
        if name in ("kernel", "counting"):
            return self.kernel if name == "kernel" else self.counting()
        init = self.kernel.parent()
        assert init is not None
        guard = init.parent()
        assert guard is not None
        if name in ("init", "guard"):
            return init if name == "init" else guard
        return next(p for p in self.server.children(recursive=True) if _command(p).startswith("loommux-keeper "))

    def counting(self) -> psutil.Process:
        return next(p for p in self.server.children() if "token_counting.counter" in _command(p))


def _command(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


async def helpers_of(agent: Agent, place: Place) -> Helpers:
    found = re.search(r"pid (\d+)", await agent.text("status"))
    assert found is not None
    server = next(p for p in place.processes() if "loommux_host.cli" in _command(p))
    return Helpers(server, psutil.Process(int(found[1])))


@pytest.mark.case("X06")
async def test_a_result_does_not_wait_for_a_counting_process_that_was_stopped(start: Start, place: Place) -> None:
    async with start() as agent:
        await agent.run(PROSE)
        helpers = await helpers_of(agent, place)
        first = helpers.counting()
        for tool in ("run_cell", "wait"):
            helpers.counting().suspend()
            text = await (agent.run(PROSE) if tool == "run_cell" else agent.text(tool))
            assert "Output omitted: In [2] is completed, 300 lines, " in text
            assert "could not be applied (the process that counts tokens did not answer; the next count" in text
            assert len((await agent.text("wait", execution=1)).splitlines()) == 301
            assert helpers.counting() != first
        helpers.counting().suspend()


@pytest.mark.case("X06")
@pytest.mark.parametrize("end", ["eof", "SIGTERM"])
@pytest.mark.parametrize("name", ["counting", *HELPERS, "kernel"])
async def test_a_server_ends_whichever_helper_was_stopped(lines: StartLines, place: Place, name: str, end: str) -> None:
    server = await lines().open()
    await server.cell(PROSE)
    helpers = await _helpers_of(server)
    helpers.named(name).suspend()
    waiting = server.begin_cell(PROSE) if name == "counting" else None
    server.stdin.close() if end == "eof" else server.process.send_signal(getattr(signal, end))
    if waiting is not None:
        answer = await server.answer(waiting)
        assert "could not be applied" in answer["result"]["content"][0]["text"]
    assert await server.exit_code() == 0
    assert place.wait_until_empty() == []


async def _helpers_of(server: Lines) -> Helpers:
    answer = await server.ask("tools/call", {"name": "status", "arguments": {}})
    found = re.search(r"pid (\d+)", answer["result"]["content"][0]["text"])
    assert found is not None
    return Helpers(psutil.Process(server.process.pid), psutil.Process(int(found[1])))


@pytest.mark.case("X06")
@pytest.mark.parametrize("name", HELPERS)
async def test_every_tool_answers_whichever_helper_was_stopped(start: Start, place: Place, name: str) -> None:
    async with start() as agent:
        await agent.run("kept = 1")
        (await helpers_of(agent, place)).named(name).suspend()
        assert "Running" in await agent.run(SLEEP)
        assert "running" in await agent.text("status")
        assert "running" in await agent.text("execution_status")
        assert "asleep" in await agent.text("read_output")
        assert "M 1 | asleep" in await agent.text("search_output", query="asleep")
        assert "Running" in await agent.text("wait", timeout_seconds=0.1)
        assert (await agent.text("interrupt")).startswith("interrupted: ")
        assert "1" in await agent.run("kept")
        assert (await agent.text("restart")).startswith("restarted: process 2 ")
        assert "NameError" in await agent.run("kept")
