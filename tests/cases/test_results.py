"""What a model or a program is told of a cell: its state, its error, how much there is and how to have the rest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.e2e.driving import Agent, Place, serving, text_of, until
from tests.e2e.oracle import living_kernel_of, server_of
from tests.e2e.shown import lines_of

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def agent(common_place: Place) -> AsyncIterator[Agent]:
    """Told in text and in fields."""
    async with serving(common_place, "--result-mode", "structured") as made:
        yield made


async def facts(agent: Agent, tool: str, /, **arguments: Any) -> dict[str, Any]:
    result = await agent.call(tool, **arguments)
    assert result.structured_content is not None
    assert not result.is_error
    return result.structured_content


@pytest.mark.case("M08")
async def test_a_call_that_ends_before_its_cell_tells_what_there_is_and_the_rest_can_be_waited_for(
    agent: Agent,
) -> None:
    source = "%%loommux --wait 0.5\nprint('hello', flush=True); import time; time.sleep(2); 'late value'"
    result = await agent.call("run_cell", freeform=source)
    told = result.structured_content or {}
    assert (told["status"], told["recent_lines"]) == ("running", ["hello"])
    assert "use wait() for completion" in text_of(result)
    number = told["execution"]
    ended = await facts(agent, "wait", execution=number)
    assert (ended["status"], ended["output_text"]) == ("completed", f"hello\nOut[{number}]: 'late value'\n")
    assert (await facts(agent, "run_cell", freeform="%%loommux --wait 0.5\ntime.sleep(60)"))["status"] == "running"
    assert (await facts(agent, "interrupt"))["status"] == "interrupted"
    assert (await facts(agent, "wait"))["status"] == "interrupted"


FAILING = {
    "1/0": ("error", "ZeroDivisionError", "division by zero"),
    "%%bash\nfalse": ("error", "CalledProcessError", "returned non-zero exit status 1."),
    "raise ExceptionGroup('g', [ValueError('a'), KeyError('b')])": ("error", "ExceptionGroup", "g (2 sub-exceptions)"),
    "x = (": ("error", "SyntaxError", "'(' was never closed"),
    "!exit 3": ("completed", None, None),
}


@pytest.mark.case("M10")
@pytest.mark.parametrize("source", FAILING)
async def test_a_program_is_told_that_a_cell_or_its_command_failed_and_how(agent: Agent, source: str) -> None:
    state, name, value = FAILING[source]
    told = await facts(agent, "run_cell", freeform=source)
    assert told["status"] == state
    if name is None:
        assert told["error"] is None
        assert told["stderr"] == "[exit code 3: exit 3]\n"
    else:
        assert told["error"]["ename"] == name
        assert value in told["error"]["evalue"]


@pytest.mark.case("M10")
async def test_output_result_and_error_can_be_told_apart(agent: Agent) -> None:
    source = "import sys\nprint('out'); print('err', file=sys.stderr); display('shown'); 1/0"
    told = await facts(agent, "run_cell", freeform=source)
    assert (told["stdout"], told["stderr"], told["result_text"]) == ("out\n", "err\n", "'shown'\n")
    assert told["error"] == {"ename": "ZeroDivisionError", "evalue": "division by zero"}
    assert (await lines_of(agent, told["execution"], "traceback"))[-1] == "ZeroDivisionError: division by zero"


@pytest.mark.case("E12")
async def test_no_reply_is_larger_than_clients_take_and_the_exact_way_on_is_named(agent: Agent) -> None:
    result = await agent.call("run_cell", freeform="for i in range(6000): print(f'line {i:05} ' + 'x' * 38)")
    whole = result.model_dump_json(by_alias=True)
    assert len(whole) < 10_000, "a few thousand tokens, its fields included"
    assert "Output omitted: 6,000 lines, 300,000 characters" in text_of(result)
    read = await agent.call("read_output")
    assert len(read.model_dump_json(by_alias=True)) < 30_000
    assert 'Next: read_output(execution=1, line_range="1:4000")'.replace(
        "=1,", f"={(result.structured_content or {})['execution']},"
    ) in text_of(read)
    largest = await agent.call("read_output", line_range="1:4000")
    assert len(text_of(largest).encode()) < 210_000


@pytest.mark.case("P02")
async def test_output_and_the_end_of_a_cell_are_known_though_the_server_was_stopped_meanwhile(
    agent: Agent, common_place: Place
) -> None:
    _, kernel = await living_kernel_of(agent)
    server = server_of(kernel)
    begun, go, done = (common_place.workspace / name for name in ("begun", "go", "done"))
    source = (
        "%%loommux --wait 60 --silence 60\nimport os, time\nopen('begun', 'w').close()\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "for i in range(20000): print('chunk', i, flush=True)\nopen('done', 'w').close()"
    )
    running = asyncio.create_task(facts(agent, "run_cell", freeform=source))

    async def has_begun() -> bool:
        return begun.exists()

    async def is_done() -> bool:
        return done.exists()

    await until(has_begun)
    server.suspend()
    try:
        go.touch()
        await until(is_done)
    finally:
        server.resume()
    told = await running
    assert (told["status"], told["output_total_lines"]) == ("completed", 20_000)
    for first in (1, 10_001):
        lines = await lines_of(agent, told["execution"], range=f"{first}:{first + 9_999}")
        assert lines == [f"chunk {i}" for i in range(first - 1, first + 9_999)]
    assert json.dumps(told)
