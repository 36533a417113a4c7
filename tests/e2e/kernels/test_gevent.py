"""A kernel in which gevent has replaced threads, locks and sleep is interrupted as any other."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.e2e.driving import PATIENCE, Agent, Place
from tests.e2e.kernels.test_signals import OWN, TAKEN, begun

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals"),
]


@pytest.fixture(scope="module", autouse=True)
async def patched(agent: Agent) -> None:
    """In the kernel gevent has replaced threads, locks and sleep."""
    await agent.run("from gevent import monkey; monkey.patch_all()")


#: What a patched program waits in; interrupts reach it in gevent's hub, or where no greenlet runs at all.
PATCHED = {
    "sleep": "import time\n{ready}\ntime.sleep(600)",
    "loop": "{ready}\nwhile True: pass",
    "subprocess": "import subprocess\n{ready}\nsubprocess.run(['sleep', '600'])",
    "shell": "{ready}\n!sleep 600",
    "await": "import asyncio\n{ready}\nawait asyncio.sleep(600)",
    "greenlet": "import gevent\n{ready}\ngevent.spawn(gevent.sleep, 600).join()",
}


@pytest.mark.parametrize("what", PATCHED)
@pytest.mark.case("N19")
async def test_an_interrupt_reaches_a_kernel_that_gevent_has_patched(
    agent: Agent, common_place: Place, what: str
) -> None:
    running, _ = await begun(agent, common_place, PATCHED[what])
    said = await agent.text("interrupt")
    assert said.startswith("interrupted: "), said
    assert (await asyncio.wait_for(running, PATIENCE)).endswith("\nInterrupted.")
    assert "'alive'" in await agent.run("'alive'")
    assert "idle" in (await agent.text("status")).partition("\n")[0]


@pytest.mark.case("N19")
async def test_a_handler_in_a_patched_kernel_gets_one_signal(agent: Agent, common_place: Place) -> None:
    running, go = await begun(agent, common_place, OWN["signal.signal"])
    assert TAKEN in await agent.text("interrupt")
    go.write_text("on")
    await running
    assert (await agent.run("print(len(hits))")).endswith("\n1")
