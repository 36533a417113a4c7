"""A kernel that cannot answer can be observed all the same, and loses nothing meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import anyio
import pytest

from tests.e2e.driving import Agent, Start, until

pytestmark = pytest.mark.anyio

LOOP = "%%loommux --wait 0.3 --silence 0.3\nprint('before', flush=True)\nwhile True: pass"
#: `PyDLL` keeps the interpreter's lock while the C function runs.
HELD = """\
%%loommux --wait 1 --silence 1
import ctypes, time
print("before", flush=True)
time.sleep(0.3)
ctypes.PyDLL(None).sleep(10)"""
#: Seconds; the bound of the contract's numbers, ten times wider. `make bench` measures them.
AT_ONCE, SOON = 0.1, 2.0


async def timed(agent: Agent, tool: str, **arguments: object) -> tuple[float, str]:
    began = time.perf_counter()
    text = await agent.text(tool, **arguments)
    return time.perf_counter() - began, text


@pytest.mark.parametrize("source", [LOOP, HELD], ids=["python loops", "C code holds the interpreter"])
async def test_state_and_output_can_be_had_while_the_kernel_cannot_answer(start: Start, source: str) -> None:
    async with start() as agent:
        assert "Running" in await agent.run(source)
        taken: dict[str, list[float]] = {"status": [], "execution_status": [], "read_output": []}
        for _ in range(15):
            for tool, times in taken.items():
                seconds, text = await timed(agent, tool)
                times.append(seconds)
                assert ("before" if tool == "read_output" else "running") in text
        for tool, times in taken.items():
            median = sorted(times)[len(times) // 2]
            assert median < (SOON if tool == "read_output" else AT_ONCE), (tool, times)
        await agent.call("restart")


DEAF = {
    "its process is stopped": "None",
    "native code holds the interpreter": (
        "import ctypes, threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.3), ctypes.PyDLL(None).sleep(6))).start()"
    ),
}


@pytest.mark.parametrize("how", DEAF)
async def test_a_cell_that_was_refused_because_the_kernel_does_not_answer_never_runs(agent: Agent, how: str) -> None:
    pid = int((await agent.run("import os; ran = 0; os.getpid()")).partition("]: ")[2].split()[0])
    await agent.run(DEAF[how])
    if how == "its process is stopped":
        os.kill(pid, signal.SIGSTOP)
    else:
        await anyio.sleep(0.6)
    try:
        refused = await agent.refusal("run_cell", freeform="%%loommux --wait 0.1\nran += 1")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert refused.startswith("kernel_unresponsive: ") and "The cell was not run." in refused

    async def answers() -> bool:
        return not (await agent.call("run_cell", freeform="%%loommux --wait 30\n'there'")).is_error

    await until(answers)
    assert (await agent.run("ran")).partition("]: ")[2].startswith("0")


async def test_it_is_said_when_the_kernel_itself_does_not_answer(start: Start) -> None:
    async with start() as agent:
        assert "has not answered" not in await agent.text("status")
        await agent.run(HELD)

        async def said() -> bool:
            return "The kernel has not answered for" in await agent.text("status")

        await until(said, 8)
        text = await agent.text("interrupt")
        assert text.startswith("interrupt_sent")
        assert "native code" in text
        await agent.call("restart")


async def test_it_is_said_what_holds_a_kernel_in_which_no_cell_runs(start: Start) -> None:
    async with start() as agent:
        assert "main thread is held" not in await agent.text("status")
        await agent.run("import asyncio\nasync def spin():\n    while True: pass\ntask = asyncio.create_task(spin())")
        status = await agent.text("status")
        said = "Its main thread is held by what an earlier cell left running, at In [1], line 3, in spin."
        assert said in status and "busy" not in status.splitlines()[0]
        refused = await agent.refusal("run_cell", freeform="%%loommux --wait 0.1\n1")
        assert refused.startswith("kernel_unresponsive: ") and said in refused
        await agent.call("restart")
        assert "main thread is held" not in await agent.text("status")
        assert "Out[1]: 2" in await agent.run("1 + 1")


@pytest.mark.case("R03")
async def test_a_restart_ends_a_kernel_that_does_not_answer(start: Start) -> None:
    async with start() as agent:
        await agent.run(HELD)
        text = await asyncio.wait_for(agent.text("restart"), 15)
        assert "process 2" in text
        assert "In [1]" in text
        assert "Out[1]: 2" in await agent.run("1 + 1")
        assert "killed" in await agent.text("execution_status", execution=1, process=1)


async def test_every_display_beside_a_busy_loop_is_recorded(start: Start) -> None:
    source = """\
%%loommux --wait 60 --silence 60
import threading, time
from IPython.display import display
shown = []
def show():
    for n in range(300):
        display({"n": n})
        shown.append(n)
        time.sleep(0.01)
thread = threading.Thread(target=show); thread.start()
while thread.is_alive(): pass"""
    async with start() as agent:
        await agent.run(source)
        assert "[300 matching lines," in (await agent.text("search_output", query="'n':")).splitlines()[0]
