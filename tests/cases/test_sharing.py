"""Sessions, people and their own clients on one server: what one does to another, and what each is told of it."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from tests.e2e.driving import Agent, Place, attached, configure, foreign, text_of, until
from tests.e2e.http_driving import Web, web

pytestmark = pytest.mark.anyio

UNTIL = (
    "%%loommux --wait 60 --silence 60\nimport os, time\nprint('runs', flush=True)\n"
    "while not os.path.exists({go!r}): time.sleep(0.01)\n"
)


def named(kernel: str, operator: str) -> dict[str, str]:
    return {"X-Loommux-Resource": kernel, "X-Loommux-Operator": operator}


async def runs(agent: Agent) -> bool:
    return "running" in text_of(await agent.call("execution_status")).split("\n")[0]


@pytest.mark.case("M18")
async def test_a_person_and_an_agent_see_each_others_cells_under_the_same_numbers(server: Web) -> None:
    async with server.agent(**named("m18", "agent")) as agent:
        await agent.run("1")
        async with attached(agent) as person:
            await foreign(person, "h = 41")
            text = await agent.run("print('agent says'); h + 1")
            assert text.split("\n")[1:3] == ["agent says", "Out[3]: 42"]
            assert re.search(r"1 cell was run by others since your last result: In \[2\] \(completed, \S+\)\.", text)
            heard: dict[str, Any] = {}
            while "execute_result" not in heard:
                message = await asyncio.wait_for(person.get_iopub_msg(), 20)
                heard[message["msg_type"]] = message["content"]
            assert heard["execute_input"]["code"] == "print('agent says'); h + 1"
            assert heard["execute_result"]["execution_count"] == 3
            status = await agent.text("status")
            assert "In [2] · completed" in status
            assert " · h = 41" in status
            assert "sent by session" not in await agent.text("execution_status", execution=2)


@pytest.mark.case("R21")
async def test_what_one_session_stops_cancels_or_leaves_never_ends_anothers_cell(
    server: Web, common_place: Place
) -> None:
    go = common_place.workspace / "r21"
    async with server.agent(**named("r21", "ann")) as ann:
        await ann.run("1")
        running = asyncio.create_task(ann.run(UNTIL.format(go=str(go)) + "'mine'"))
        await until(lambda: runs(ann))
        async with server.agent(**named("r21", "bob")) as bob:
            busy = await bob.refusal("run_cell", freeform="2")
            assert re.match(r"busy: In \[2\] of r21 has run for [\d.]+ m?s, sent by session ann\. Nothing", busy), busy
            refused = await bob.refusal("interrupt")
            assert refused.startswith("not_yours: In [2] of r21 was sent by session ann, still there")
            assert "interrupt(execution=2)" in refused
            with anyio.move_on_after(0.3):
                await bob.call("wait", execution=2, timeout_seconds=60, silence_seconds=60)
            assert "Others here: session ann" in await bob.text("status")
            async with AsyncExitStack() as stack:  # one that goes in the middle of a call
                gone = await stack.enter_async_context(server.agent(**named("r21", "eve")))
                waiting = asyncio.create_task(gone.call("wait", timeout_seconds=60, silence_seconds=60))
                await gone.text("status")
                waiting.cancel()
        go.touch()
        assert (await running).split("\n")[1:3] == ["runs", "Out[2]: 'mine'"]


@pytest.mark.case("R24")
async def test_a_restart_says_all_that_it_ended_to_everybody_and_touches_no_other_kernel(
    server: Web, common_place: Place
) -> None:
    background = (
        "import subprocess, threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    go = common_place.workspace / "r24"
    async with (
        server.agent(**named("r24", "ann")) as ann,
        server.agent(**named("r24", "bob")) as bob,
        server.agent(**named("other", "eve")) as eve,
    ):
        untouched = asyncio.create_task(eve.run(UNTIL.format(go=str(go)) + "'untouched'"))
        await ann.run(f"{background}child = subprocess.Popen(['sleep', '600'])")
        async with attached(ann) as person:
            await foreign(person, "1")
            running = asyncio.create_task(ann.run(UNTIL.format(go="never")))
            await until(lambda: runs(ann))
            assert (await bob.refusal("restart", kernel="r42")).startswith("kernel_not_found: there is no kernel 'r42'")
            assert (await bob.refusal("restart", kernel="")).startswith("invalid_argument")
            said = await bob.text("restart")
        found = re.match(
            r"restarted: process 2 \(pid \d+\) replaces process 1 \(pid \d+\)\. Variables are gone; the next cell is"
            r" In \[1\]\.\nEnded with it: In \[3\] after [\d.]+ m?s, 1 child process\.\n"
            r"Attached clients, which stay connected: \S+\.\nRecords: process=1\.",
            said,
        )
        assert found, said
        assert "Killed: process 1 ended by restart (session bob)" in await running
        assert "1 (ended by restart (session bob) at " in await ann.text("status")
        go.touch()
        assert "'untouched'" in await untouched


@pytest.mark.case("P08")
async def test_state_and_variables_can_be_had_while_a_cell_runs_without_touching_what_it_did(server: Web) -> None:
    async with server.agent(**named("p08", "agent")) as agent, server.http() as http:
        source = "%%loommux --wait 0.5\nimport time\nfor step in range(9000): loss = 1 / (step + 1); time.sleep(0.01)"
        assert "Running" in await agent.run(source)
        status = await agent.text("status")
        assert re.search(r"Running: In \[1\] · running · [\d.]+ m?s · sent by session agent", status)
        assert re.search(r": running, silent for [\d.]+ m?s\n", await agent.text("execution_status"))
        (kernel,) = [k for k in (await http.get("/api/resources")).json()["resources"] if k["name"] == "p08"]
        variables: dict[str, dict[str, Any]] = {}

        async def told() -> bool:  # refused when the kernel has no time to answer
            answer = (await http.get(f"/api/resources/{kernel['resource_id']}/variables")).json()
            variables.update({variable["name"]: variable for variable in answer.get("variables", ())})
            return bool(variables)

        await until(told, 20)
        assert {"loss", "step"} <= set(variables)
        assert variables["loss"]["type"] == "float"
        assert 0 < float(variables["loss"]["preview"]) < 1
        assert (await agent.text("interrupt")).startswith("interrupted")
        assert "Out[2]: 0" in await agent.run("len(Out)")


@pytest.mark.case("R16")
async def test_a_kernel_is_not_reclaimed_while_it_works_and_it_is_said_when_and_why_it_was(place: Place) -> None:
    windows = "private_activity_timeout_seconds = 1\nnamed_activity_timeout_seconds = 2\n"
    configure(place, f"{windows}orphan_grace_seconds = 0.5\nsweep_interval_seconds = 0.2\n")
    async with web(place) as server, server.agent() as agent, server.http() as http:

        async def kernels() -> list[dict[str, Any]]:
            return (await http.get("/api/resources")).json()["resources"]

        async def ended() -> bool:
            (kernel,) = await kernels()
            return not kernel["busy"]

        assert "Running" in await agent.run("%%loommux --wait 0.2\nimport time; time.sleep(4); 'res'")
        await until(ended, 20)  # reading the API is no sign of life
        assert "Out[1]: 'res'" in await agent.text("read_output")

        async def reclaimed() -> bool:
            return not await kernels()

        await until(reclaimed, 20)
        assert re.search(r"was retired at \d\d:\d\d: its lease had lapsed", await agent.text("status"))


HOSTILE = """\
from IPython.display import HTML, SVG, Javascript, Markdown, display
print("<img src=x onerror=alert(1)>")
print("\\x1b]8;;javascript:alert(1)\\x1b\\\\link\\x1b]8;;\\x1b\\\\")
display(HTML("<script>alert(1)</script>"), SVG('<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>'))
display(Javascript("alert(1)"), Markdown("[link](javascript:alert(1))"))
raise ValueError("<script>alert(1)</script>")"""


@pytest.mark.case("S03")
async def test_no_answer_of_the_api_can_be_taken_for_a_page_whatever_a_cell_showed(server: Web) -> None:
    hostile = "%3Cscript%3Ealert(1)%3C-script%3E"
    async with server.agent(**named(hostile, "<script>")) as agent, server.http() as http:
        text = await agent.run(HOSTILE)
        assert "<img src=x onerror=alert(1)>\nlink\n" in text
        (kernel,) = [k for k in (await http.get("/api/resources")).json()["resources"] if "<script>" in k["name"]]
        base = f"/api/resources/{kernel['resource_id']}"
        reads = ("", "/executions", "/executions/1", "/executions/1/output", "/executions/1/combined", "/notebook")
        for path in ["/api/resources", *(base + read for read in reads), f"{base}/nowhere%3Cscript%3E"]:
            answer = await http.get(path)
            assert re.match(r"application/(json|x-ipynb\+json)", answer.headers["content-type"]), path
            assert answer.headers["x-content-type-options"] == "nosniff", path
