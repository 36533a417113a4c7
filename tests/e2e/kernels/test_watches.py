"""Watches beside running cells: waited for by name and by whichever ends first, whatever their end."""

from __future__ import annotations

import re

import anyio
import pytest

from tests.e2e.driving import Agent, text_of, until
from tests.e2e.shown import body, lines_of, notices

pytestmark = pytest.mark.anyio

THREE = """\
import asyncio, threading
gates = {name: threading.Event() for name in ("prints", "fails", "never")}
async def prints():
    await asyncio.to_thread(gates["prints"].wait)
    print("from the watch")
def fails():
    gates["fails"].wait()
    raise ValueError("as it should")
loommux.watch("prints", prints())
loommux.watch("fails", fails)
loommux.watch("never", asyncio.sleep(1000))"""

HOLDING = """\
%%loommux --wait 60
import time
gates["fails"].set()
until = time.monotonic() + 20
while len(loommux.watches()) > 2 and time.monotonic() < until: time.sleep(0.01)"""


async def test_with_none_pending_it_is_said_at_once(agent: Agent) -> None:
    with anyio.fail_after(20):  # not the hour that was asked for
        refusal = await agent.refusal("wait", watch="next", timeout_seconds=3600, silence_seconds=3600)
        assert refusal.startswith("watch_not_found: no watch is pending in ")
        assert (await agent.refusal("wait", watch="nobody")).startswith("watch_not_found: there is no watch nobody in ")


async def test_three_watches_beside_running_cells_are_waited_for_by_name_and_by_whichever_ends_first(
    agent: Agent,
) -> None:
    await agent.run(THREE)
    cell = (await agent.text("execution_status")).split("]")[0].removeprefix("In [")
    assert "\nWatches: prints, fails, never\n" in await agent.text("status")
    running = await agent.text("wait", watch="never", timeout_seconds=0.05)
    assert running.startswith("Running: never (")

    first: list[str] = []
    async with anyio.create_task_group() as group:

        async def wait() -> None:
            first.append(await agent.text("wait", watch="next", timeout_seconds=60, silence_seconds=60))

        group.start_soon(wait)  # sent first
        # a cell that holds the kernel: the function in its thread ends meanwhile
        group.start_soon(agent.run, HOLDING)
    failed = first[0]
    assert failed.startswith("Watch fails: failed after ")
    assert "ValueError: as it should" in failed.split("\n")[0]
    assert f"Its output is in In [{cell}]: read_output(execution={cell})." in failed
    assert "Still pending: prints, never" in failed

    await agent.run("gates['prints'].set()")
    printed = await agent.text("wait", watch="prints")
    assert printed.startswith("Watch prints: completed after ")
    record = await lines_of(agent, int(cell))
    assert "from the watch" in record
    assert record.count("ValueError: as it should") == 1
    assert "ValueError: as it should" in await lines_of(agent, int(cell), "traceback")
    # what has ended is still known by its name
    assert (await agent.text("wait", watch="fails")).startswith("Watch fails: failed after ")


async def test_its_end_is_a_notice(agent: Agent) -> None:
    # Lines of earlier tests' watches may still be told in between.
    def of_watches(text: str) -> list[str]:
        return [line for line in notices(text) if " · watch " in line]

    await agent.run("loommux.watch('short', int)")
    assert (await agent.text("wait", watch="short")).startswith("Watch short: completed after ")
    told = [line for n in range(2) for line in of_watches(await agent.run(f"{n}"))]
    assert not [line for line in told if " watch short " in line], "the wait has told it"
    await agent.run("import threading; go = threading.Event(); w = loommux.watch('told', go.wait)")
    said = of_watches(await agent.run("go.set()\nwhile w.pending: pass"))

    async def is_told() -> bool:
        said.extend(of_watches(await agent.run("0")))
        return bool(said)

    if not said:
        await until(is_told)
    [line] = said
    assert " · watch told completed after " in line


async def test_a_restart_ends_watches_and_whoever_waits_for_them(agent: Agent) -> None:
    await agent.run(
        "import asyncio, threading\nloommux.watch('task', asyncio.sleep(1000))\n"
        "loommux.watch('thread', threading.Event().wait)"
    )
    ended: dict[str, str] = {}
    async with anyio.create_task_group() as group:

        async def wait(name: str) -> None:
            result = await agent.call("wait", watch=name, timeout_seconds=60, silence_seconds=60)
            ended[name] = text_of(result)

        for name in ("task", "thread"):
            group.start_soon(wait, name)
        restarted = await agent.text("restart")
        assert restarted.startswith("restarted: ")
        assert re.search(r"\nEnded with it: watches (.*, )?task, thread\.\n", restarted)
    assert all(not text.startswith("Running") for text in ended.values()), ended
    assert "Watches:" not in await agent.text("status")
    assert (await agent.refusal("wait", watch="next")).startswith("watch_not_found: no watch is pending")
    assert body(await agent.run("print(loommux.watches())")) == "[]"


async def test_neither_thread_nor_task_is_left_of_ended_watches(agent: Agent) -> None:
    await agent.run(
        "import asyncio, threading\nfor i in range(9): loommux.watch(f'f{i}', int)\n"
        "for i in range(9): loommux.watch(f'a{i}', asyncio.sleep(0))"
    )
    for name in [f"{kind}{i}" for kind in "fa" for i in range(9)]:
        assert "completed" in await agent.text("wait", watch=name)
    left = await agent.run(
        "names = [t.get_name() for t in asyncio.all_tasks()] + [t.name for t in threading.enumerate()]\n"
        "print([n for n in names if n.startswith('watch ')])"
    )
    assert body(left) == "[]"
