"""Many clients at one real server: namespaces, sharing, sessions that outlast calls, clients and servers."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from contextlib import AsyncExitStack

import pytest

from tests.e2e.driving import PATIENCE, Agent, Place, configure, text_of, until
from tests.e2e.http_driving import Session, images, initialize, web

pytestmark = pytest.mark.anyio
MODES = ["legacy", "auto", "2026-07-28"]
DYING = """
import asyncio, os, sys
from mcp import Client
LONG = "%%loommux --wait 0.2 --silence 0.2\\nimport time; time.sleep(2); x += 1; print('done')"
async def main():
    async with Client(sys.argv[1] + "/mcp", mode="legacy") as client:
        await client.call_tool("run_cell", {"freeform": "%%loommux --attach lab --create\\nx = 41"})
        await client.call_tool("run_cell", {"freeform": LONG})
        os.kill(os.getpid(), 9)
asyncio.run(main())
"""
STOPPED = """
import asyncio, sys
from loommux_host.client import LeaseAwareClient
async def main():
    async with LeaseAwareClient(sys.argv[1] + "/mcp") as client:
        await client.run_cell("%%loommux --wait 0.3 --silence 0.3\\nimport time; time.sleep(3); print('slept')")
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        result = await client.call_tool("wait", {"timeout_seconds": 30})
        print(result.content[0].text, flush=True)
asyncio.run(main())
"""
PLOT = """\
import matplotlib.pyplot as plt
plt.plot([1, 2]); plt.show()"""


def handle(text: str) -> str:
    found = re.search(r"kernel=(k_[\w-]+)", text)
    return found[1] if found else ""


@pytest.mark.case("R22")
async def test_eight_clients_at_once_have_eight_namespaces_and_working_directories(place: Place) -> None:
    async def work(agent: Agent, n: int) -> str:
        (place.workspace / f"d{n}").mkdir()
        source = f"import os, time; wt = 's{n}'; os.chdir('d{n}'); time.sleep(0.5); assert wt == 's{n}'; os.getcwd()"
        return await agent.run(source)

    async with web(place) as server, AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(server.agent()) for _ in range(8)]
        texts = await asyncio.gather(*(work(agent, n) for n, agent in enumerate(agents)))
        assert all(f"d{n}'" in text for n, text in enumerate(texts))
        values = [await agent.run("wt") for agent in agents]
        assert all(f"Out[2]: 's{n}'" in text for n, text in enumerate(values))


async def test_two_clients_with_one_name_share_variables_and_one_leaving_ends_nothing(place: Place) -> None:
    lab = {"X-Loommux-Resource": "shared%20lab"}
    async with web(place) as server, server.agent(**lab, **{"X-Loommux-Operator": "ann"}) as ann:
        async with server.agent(**lab, **{"X-Loommux-Operator": "bob"}) as bob:
            await bob.run("x = 41")
            assert "Out[2]: 42" in await ann.run("x + 1")
            assert "In [2] (completed, session ann)" in await bob.text("status")
        assert "Out[3]: 41" in await ann.run("x")
        async with server.http() as http:
            [lease] = (await http.get("/api/resources")).json()["resources"][0]["leases"]
            assert lease["holder"] == "ann"


@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_runs_cells_keeps_state_and_gets_an_image(place: Place, mode: str) -> None:
    async with web(place) as server, server.agent(mode) as agent:
        first = await agent.run("x = 41")
        kernel = {"kernel": handle(first)} if handle(first) else {}
        assert bool(kernel) == (mode != "legacy")
        assert "Out[2]: 42" in await agent.text("run_cell", freeform="x + 1", **kernel)
        shown = await agent.call("run_cell", freeform=PLOT, **kernel)
        assert images(shown) == 1
        again = await agent.call("wait", **kernel)
        assert images(again) == 1


async def test_attach_finds_the_work_of_a_client_that_died(place: Place) -> None:
    async with web(place) as server:
        client = await asyncio.create_subprocess_exec(sys.executable, "-c", DYING, server.base)
        assert await asyncio.wait_for(client.wait(), PATIENCE) == -signal.SIGKILL
        async with server.agent() as agent:
            assert "lab" in text_of(await agent.call("run_cell", freeform="%%loommux --attach lab\nx"))
            assert "done" in await agent.text("wait", timeout_seconds=30, execution=2)
            assert ": 42" in await agent.run("x")


async def test_a_client_stopped_for_longer_than_its_windows_finds_its_cell_and_its_result(place: Place) -> None:
    configure(
        place,
        "lease_mode = 'heartbeat'\nheartbeat_interval_seconds = 0.3\nheartbeat_timeout_seconds = 1\n"
        "private_activity_timeout_seconds = 1\n",
    )
    async with web(place) as server:
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STOPPED, server.base, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert client.stdout is not None
        try:
            assert await asyncio.wait_for(client.stdout.readline(), PATIENCE) == b"ready\n"
            client.send_signal(signal.SIGSTOP)
            await asyncio.sleep(5)
            client.send_signal(signal.SIGCONT)
            said, _ = await asyncio.wait_for(client.communicate(b"\n"), PATIENCE)
            assert said.startswith(b"In [1]")
            assert b"slept" in said
        finally:
            if client.returncode is None:
                client.kill()
                await client.wait()


@pytest.mark.case("E03")
async def test_a_restarted_server_answers_an_old_session_with_404_and_opens_a_new_one_at_once(place: Place) -> None:
    async with web(place) as server, server.http() as http:
        port = server.base.rpartition(":")[2]
        session = await Session.open(http)
        assert "Out[1]: 1" in (await session.cell("1")).text
    async with web(place, "--port", port) as server, server.http() as http:
        session.http = http
        assert (await session.cell("2")).status_code == 404
        opened = await http.post("/mcp", json=initialize(), headers=session.headers)
        assert opened.status_code == 200
        fresh = await Session.open(http)
        assert "Out[1]: 3" in (await fresh.cell("3")).text


@pytest.mark.case("E02")
async def test_a_call_that_was_cut_off_goes_on_and_its_result_can_be_had(place: Place) -> None:
    async with web(place) as server, server.http() as http:
        session = await Session.open(http)
        await session.cell("1")
        source = "%%loommux --wait 60 --silence 60\nimport time; time.sleep(1.5); print('went on')"
        call = asyncio.create_task(session.cell(source))

        async def runs() -> bool:
            return (await http.get("/api/resources")).json()["resources"][0]["busy"]

        await until(runs)
        call.cancel()
        await asyncio.wait({call})
        wait = {"name": "wait", "arguments": {"timeout_seconds": 30}}
        answer = await session.post({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": wait})
        assert "went on" in answer.text
