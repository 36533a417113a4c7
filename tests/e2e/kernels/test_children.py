"""Kernels from inside kernels: homes, names, rights, notices, and what ends with what."""

from __future__ import annotations

import re

import psutil
import pytest

from tests.e2e.driving import Agent, Place, Start, until
from tests.e2e.http_driving import Web, web
from tests.e2e.private_driving import control, kernels, only_server, server_with

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def shared(common_place: Place):
    """One HTTP server for the tests that need several homes."""
    async with web(common_place) as running:
        yield running


def home(server: Web, name: str):
    return server.agent(**{"X-Loommux-Resource": name})


async def evaluated(agent: Agent, source: str) -> str:
    """The result of a cell, without its heading and notices."""
    text = await agent.run(f"%%loommux --wait 50 --silence 50\n{source}")
    found = re.search(r"^Out\[\d+\]: (.*?)(?=\n<loommux-notice>|\Z)", text, re.M | re.S)
    assert found, text
    return found[1]


async def failure(agent: Agent, source: str) -> str:
    """The last line of a cell that fails."""
    text = await agent.run(f"%%loommux --wait 50 --silence 50\n{source}")
    return [line for line in text.splitlines() if "Error" in line][-1]


async def refused(agent: Agent, source: str, starts: str) -> None:
    """The cell fails as a `DaemonError` that begins so."""
    last = await failure(agent, source)
    assert last.startswith(f"DaemonError: {starts}"), last


async def test_a_main_kernel_goes_on_taking_cells_while_its_child_runs_one(agent: Agent) -> None:
    await agent.run("lab = loommux.create('lab'); seen = 0")
    source = "import time\nfor i in range(600):\n    print('step', i, flush=True)\n    time.sleep(0.1)"
    number = await evaluated(agent, f"n = lab.run_cell({source!r}, wait_seconds=0)['execution']; n")
    assert await evaluated(agent, "seen += 1; seen") == "1"
    assert await evaluated(agent, f"lab.execution_status({number})['status']") == "'running'"
    assert "step 0" in await evaluated(agent, f"lab.wait({number}, timeout_seconds=1, silence_seconds=1)\n"
                                              f"lab.read_output({number}, line_range='1:1')['text']")  # fmt: skip
    assert "Children: lab" in await agent.text("status")
    assert (await agent.text("status", kernel="lab")).startswith("lab: running, busy")
    await refused(agent, "lab.run_cell('1')", "busy: In [1] of lab has run for")
    await refused(agent, "loommux.recycle(lab)", "kernel_busy: In [1] of lab is running")
    for _ in range(3):  # at once, when the server may not have heard yet that this very cell has begun
        assert re.search(r"kernel_busy: In \[\d+\] of ", await failure(agent, "loommux.recycle(loommux.self)"))
    assert await evaluated(agent, "lab.interrupt()['status']") == "'interrupted'"
    await agent.run("loommux.recycle(lab)")
    await refused(agent, "loommux['lab']", "kernel_not_found: ")


async def test_what_a_child_says_is_told_in_its_home_once(agent: Agent) -> None:
    await agent.run("build = loommux.create('build')")
    said = await agent.run("_ = build.run_cell('loommux.notify(\"half done\")', wait_seconds=40)")
    assert said.count("build · half done") == 1
    assert "half done" not in await agent.run("1")
    await agent.run("loommux.recycle(build)")


async def test_a_renamed_kernel_has_the_name_it_got_also_in_its_next_header(agent: Agent) -> None:
    await agent.run("a, b = loommux.create('a'), loommux.create('b')")
    assert await evaluated(agent, "loommux.rename(b, 'a')") == "'a-2'"
    source = "import os; print(loommux.self.name, os.environ['LOOMMUX_KERNEL_NAME'])"
    assert "a-2 a-2" in await evaluated(agent, f"loommux['a-2'].run_cell({source!r}, wait_seconds=40)['output_text']")
    assert await evaluated(agent, "loommux.rename(loommux.self, 'report')") == "'report'"
    assert "Out" in await agent.run("%%loommux --kernel report\n2 + 3")
    assert sorted(eval(await evaluated(agent, "[k['name'] for k in loommux.kernels()]"))) == ["a", "a-2", "report"]
    assert await evaluated(agent, "sorted(loommux.recycle_idle())") == "['a', 'a-2']"


async def test_each_home_has_children_of_its_own_and_only_paths_reach_those_of_others(shared: Web) -> None:
    async with home(shared, "one") as one, home(shared, "two") as two:
        for agent in (one, two):
            await agent.run("build = loommux.create('build'); build.run_cell('x = 1', wait_seconds=40); None")
        assert await evaluated(one, "build.id") != await evaluated(two, "build.id")
        assert await evaluated(one, "loommux['build'].id == build.id") == "True"
        await two.run("loommux.create('only')")
        await refused(one, "loommux['only']", "kernel_not_found")
        await refused(one, "loommux['two']", "kernel_not_found")
        await one.run("far = loommux['/two/build']")
        assert await evaluated(one, "far.execution_status(1)['status']") == "'completed'"
        for source in ("far.run_cell('1')", "far.interrupt()", "far.restart()", "loommux.recycle(far)",
                       "loommux.rename(far, 'mine')"):  # fmt: skip
            await refused(one, source, "other_home: /two/build belongs to another home")
        await refused(one, "loommux.create('/two/mine')", "kernel_not_found")
        await refused(one, "loommux.create('/three')", "invalid_argument")
        assert await evaluated(one, "sorted(loommux.recycle_all())") == "['build']"
        assert await evaluated(two, "loommux['build'].status()['status']") == "'running'"


async def test_a_kernel_where_nobody_works_can_be_used_from_another_home(shared: Web) -> None:
    async with home(shared, "left") as leaving:
        await leaving.run("x = 42")

    async def nobody_there() -> bool:
        async with control(server_with(shared.place, shared.process.pid)) as http:
            return (await kernels(http))["/left"]["lease_count"] == 0

    await until(nobody_there)
    async with home(shared, "user") as user:
        await user.run("left = loommux['/left']")
        assert "42" in await evaluated(user, "left.run_cell('x', wait_seconds=40)['output_text']")
        await refused(user, "loommux.recycle(left)", "other_home")


async def test_calls_of_a_kernel_renew_no_lease(shared: Web) -> None:
    async with home(shared, "quiet") as agent:
        await agent.run("lab = loommux.create('lab')")
        async with control(
            server_with(shared.place, shared.process.pid),
        ) as http:
            id = (await kernels(http))["/quiet"]["resource_id"]
        async with control(server_with(shared.place, shared.process.pid), **{"X-Loommux-Kernel": id}) as http:
            before = await remaining(http)
            assert (await http.get(f"/resources/{id}/status")).status_code == 200
            assert await remaining(http) < before


async def remaining(http) -> float:
    [lease] = (await kernels(http))["/quiet"]["leases"]
    return lease["remaining_seconds"]


async def test_children_end_with_their_home_and_with_all_that_they_started(start: Start, place: Place) -> None:
    async with start() as agent:
        await agent.run("lab = loommux.create('lab')")
        child = "import subprocess; p = subprocess.Popen(['setsid', 'sleep', '1000']); p.pid"
        pid = int(
            re.findall(r"\d+", await evaluated(agent, f"lab.run_cell({child!r}, wait_seconds=40)['result_text']"))[-1]
        )
        async with control(only_server(place)) as http:
            main = next(one for one in (await kernels(http)).values() if one["home"] is None)
            await http.post(f"/resources/{main['resource_id']}/recycle", json={"force": True})
            assert await kernels(http) == {}
        assert not psutil.pid_exists(pid)


async def test_a_server_that_does_not_answer_costs_a_kernel_its_timeout_and_no_more(shared: Web) -> None:
    async with home(shared, "patient") as agent:
        go, over = (shared.place.workspace / name for name in ("ask", "asked"))
        source = (
            f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nt = time.monotonic()\n"
            "try:\n    loommux.kernels(timeout=1)\n"
            "except Exception as e:\n    print(type(e).__name__, e.status, time.monotonic() - t < 20)\n"
            f"open({str(over)!r}, 'w').close()"
        )

        async def asked() -> bool:
            return over.exists()

        await agent.text("run_cell", freeform=f"%%loommux --wait 0.1\n{source}")
        server = psutil.Process(shared.process.pid)
        server.suspend()
        try:
            go.touch()
            await until(asked)
        finally:
            server.resume()
        assert "DaemonError timeout True" in await agent.text("wait", timeout_seconds=40, silence_seconds=40)


async def test_a_childs_failing_startup_file_is_told_in_its_home(start: Start, place: Place) -> None:
    startup = place.workspace / ".loommux" / "startup"
    startup.mkdir(parents=True, mode=0o700)
    (startup / "10-env.py").write_text("import os\nif os.environ['LOOMMUX_KERNEL_NAME'] == 'build': x")
    async with start() as agent:
        said = await agent.run("build = loommux.create('build'); _ = build.run_cell('1', wait_seconds=40)")
        assert "build · Startup · 10-env.py failed: NameError: name 'x' is not defined" in said
        assert "10-env.py" not in await agent.run("1")
