"""The commands for people find every server of the user and act on its kernels; the agent is told."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import anyio
import nbformat
import pytest

from tests.e2e.driving import COMMAND, PATIENCE, Agent, Place, until
from tests.e2e.http_driving import Web, web

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def server(common_place: Place, agent: Agent) -> AsyncIterator[Web]:
    """Beside the agent's server over stdio one over HTTP, with the kernel `report` in it."""
    async with web(common_place) as made:
        async with made.agent(**{"X-Loommux-Resource": "report"}) as one:
            await one.run("x = 41")
        yield made


class Shell:
    """Runs commands as the user of a place does."""

    def __init__(self, place: Place, pid: int) -> None:
        self.place, self.pid = place, pid

    def begin(self, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        # Whoever runs the tests may have servers of their own, with a kernel of the same name.
        if words[0] not in ("kernels", "attach") and "--server" not in words:
            words = (words[0], "--server", str(self.pid), *words[1:])
        return subprocess.Popen(
            [*COMMAND, *words], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | self.place.environment, cwd=self.place.workspace,
        )  # fmt: skip

    async def __call__(self, *words: str, stdin: str | None = None) -> tuple[int, str, str]:
        process = self.begin(*words, stdin=subprocess.PIPE)
        out, err = await asyncio.to_thread(process.communicate, stdin, PATIENCE)
        return process.returncode, out, err

    async def read(self, *words: str) -> Any:
        _, out, err = await self(*words, "--json")
        return json.loads(out) if out else pytest.fail(err)


@pytest.fixture
def shell(common_place: Place, server: Web) -> Shell:
    return Shell(common_place, server.process.pid)


async def servers(shell: Shell) -> dict[str, Any]:
    """The servers of these tests, by transport."""
    listed = (await shell.read("kernels"))["servers"]
    return {one["transport"]: one for one in listed if one["workspace"] == str(shell.place.workspace)}


async def test_every_kernel_of_every_server_is_listed(server: Web, agent: Agent, shell: Shell) -> None:
    code, shown, _ = await shell("kernels")
    assert code == 0 and ", stdio, in" in shown and f", http at {server.base}/mcp, in" in shown and "report" in shown
    assert {name: len(one["kernels"]) for name, one in (await servers(shell)).items()} == {"stdio": 1, "http": 1}
    only = await shell.read("kernels", "--server", str(server.process.pid))
    assert [kernel["name"] for one in only["servers"] for kernel in one["kernels"]] == ["report"]


async def test_a_cell_runs_with_its_output_its_exit_code_and_word_to_the_agent(server: Web, shell: Shell) -> None:
    async with server.agent(**{"X-Loommux-Resource": "report"}) as one:
        await one.run("x")
        code, out, said = await shell("run", "--kernel", "report", "print('hi'); x += 1; x")
        assert (code, out) == (0, "hi\nOut[3]: 42\n") and said.startswith("loommux: In [3] · ")
        assert "run by others" not in said, "what the agent did before is no news of this cell"
        _, _, said = await shell("run", "--kernel", "report", "loommux.notify('of this cell')")
        assert said.splitlines()[1:] == ["loommux: of this cell"]
        code, out, said = await shell("run", "--kernel", "/report", stdin="1 / 0")
        assert code == 1 and "ZeroDivisionError" in out and said.startswith("loommux: In [5] · error · ")
        result = await shell.read("run", "--kernel", "report", "x")
        assert result["status"] == "completed" and result["result_text"] == "42\n"
        told = await one.run("x")
        assert "4 cells were run by others" in told and "command line" in told


@pytest.mark.case("X18")
async def test_lines_that_are_too_much_for_one_answer_are_shown_whole(server: Web, shell: Shell) -> None:
    async with server.agent(**{"X-Loommux-Resource": "long"}) as one:
        await one.run("print('first'); print('é' * 500_000); print('last'); print('tail')")
        _, shown, _ = await shell("logs", "/long", "--lines", "1:3")
        assert shown == "first\n" + "é" * 500_000 + "\nlast\n"
        many = "for n in range(50_000): print('line', n)"
        await one.run(f"%%loommux --wait 60 --silence 60\n{many}")
        _, shown, _ = await shell("logs", "/long", "--lines=-40000:")
        assert shown == "".join(f"line {n}\n" for n in range(10_000, 50_000))


async def test_a_long_cell_goes_on_is_followed_and_interrupted(server: Web, shell: Shell) -> None:
    code, _, said = await shell("run", "--kernel", "report", "--wait", "1", "import time\nprint('a')\ntime.sleep(50)")
    assert code == 4 and "goes on" in said
    code, _, said = await shell("run", "--kernel", "report", "1")
    assert code == 3 and said.startswith("loommux: busy: ") and "loommux interrupt report" in said
    assert "command line" in said and "this session" not in said
    following = shell.begin("logs", "report", "--follow")
    assert following.stdout is not None
    assert await asyncio.to_thread(following.stdout.readline) == "a\n"
    code, out, _ = await shell("interrupt", "report")
    assert code == 0 and "was interrupted" in out
    while "KeyboardInterrupt" not in await asyncio.to_thread(following.stdout.readline):
        assert following.poll() is None
    following.send_signal(signal.SIGINT)
    await asyncio.to_thread(following.communicate, None, PATIENCE)
    assert following.returncode == 130
    code, _, said = await shell("interrupt", "report")
    assert code == 3 and "idle" in said


async def test_ctrl_c_is_for_the_cell(server: Web, shell: Shell) -> None:
    running = shell.begin("run", "--kernel", "report", "print('on', flush=True)\nimport time; time.sleep(50)")
    assert running.stdout is not None
    assert await asyncio.to_thread(running.stdout.readline) == "on\n"
    running.send_signal(signal.SIGINT)
    _, said = await asyncio.to_thread(running.communicate, None, PATIENCE)
    assert running.returncode == 1 and "] · interrupted · " in said


async def test_output_is_read_whole_by_lines_or_by_stream(server: Web, shell: Shell) -> None:
    source = "import sys\nfor i in range(60_000): print('line', i)\nprint('bad', file=sys.stderr)"
    number = str((await shell.read("run", "--kernel", "report", source))["execution"])
    _, out, said = await shell("logs", "report", number)
    assert len(out.splitlines()) == 60_001 and out.startswith("line 0\n"), "no limit of an agent's results applies"
    assert f"In [{number}]" in said
    assert (await shell("logs", "report", number, "--tail", "2"))[1] == "line 59999\nbad\n"
    assert (await shell("logs", "report", number, "--stream", "stderr"))[1] == "bad\n"
    assert (await shell.read("logs", "report", number))["output_total_lines"] == 60_001


async def test_a_notebook_is_written_and_never_over_another_file_unless_forced(server: Web, shell: Shell) -> None:
    path = shell.place.workspace / "out.ipynb"
    assert (await shell("export", "report", "out.ipynb"))[0] == 0
    nbformat.validate(nbformat.read(path, as_version=4))
    assert (await shell("export", "report", "out.ipynb"))[0] == 3
    path.unlink()


async def test_a_process_is_replaced_and_a_stdio_agent_is_told(agent: Agent, shell: Shell) -> None:
    await agent.run("y = 1")
    stdio = (await servers(shell))["stdio"]
    restarted = await shell.read("restart", stdio["kernels"][0]["name"], "--server", str(stdio["pid"]))
    assert (restarted["status"], restarted["new_process"]) == ("restarted", 2)
    assert "command line" in await agent.run("1")


async def test_a_person_opens_a_kernel_and_releases_one_that_a_session_holds_alone(server: Web, shell: Shell) -> None:
    code, out, _ = await shell("create", "bench")
    assert code == 0 and re.match(r"/bench \(id \w{8}, server \d+\): opened$", out)
    assert "open already" in (await shell("create", "/bench"))[1]
    child = await shell.read("create", "/bench/build")
    assert (child["scope"], child["opened"]) == ("child", True)
    assert (await shell("create", "a/b"))[0] == 2
    assert (await shell("run", "--kernel", "bench", "6 * 7"))[1] == "Out[1]: 42\n"
    async with server.agent() as ann, server.agent() as bob:
        assert "held alone" in await ann.run("%%loommux --attach bench --alone\n1")
        refused = await bob.refusal("run_cell", freeform="1", kernel="bench")
        assert "loommux release bench" in refused
        assert (await shell("run", "--kernel", "bench", "1"))[0] == 0, "people are never refused"
        code, out, _ = await shell("release", "bench")
        assert code == 0 and "/bench is free: " in out
        assert "nobody holds /bench alone" in (await shell("release", "bench"))[1]
        assert "Out[" in await bob.run("1", kernel="bench")
    assert (await shell("recycle", "bench", "--force"))[0] == 0


async def test_where_several_servers_run_it_is_asked_in_which_to_open(server: Web, agent: Agent, shell: Shell) -> None:
    await agent.run("1")
    process = await anyio.run_process(
        [*COMMAND, "create", "bench"], env=os.environ | shell.place.environment, check=False
    )
    said = process.stderr.decode()
    assert process.returncode == 3 and "server_ambiguous: " in said
    assert f"{shell.pid} (http, in " in said and "(stdio, in " in said
    stdio = str((await servers(shell))["stdio"]["pid"])
    assert (await shell.read("create", "bench", "--server", stdio))["opened"]
    assert (await shell("recycle", "bench", "--server", stdio))[0] == 0


async def test_a_name_that_is_not_there_or_not_one_alone_is_refused_with_what_there_is(
    server: Web, agent: Agent, shell: Shell
) -> None:
    await agent.run("1")
    code, _, said = await shell("logs", "nowhere")
    assert code == 3 and "kernel_not_found" in said and "/report (id " in said
    kernel = (await servers(shell))["http"]["kernels"][0]
    assert (await shell.read("logs", kernel["resource_id"][:8]))["kernel"]["name"] == "report"
    async with server.agent(**{"X-Loommux-Resource": "other"}) as one:
        await one.run("1")
        refused = await shell.read("run", "1")
        assert refused["status"] == "kernel_ambiguous"
        assert "say which with --kernel: " in refused["message"] and "/other (id " in refused["message"]


async def test_kernels_of_one_name_in_two_servers_are_told_apart_by_their_ids(agent: Agent, shell: Shell) -> None:
    await agent.run("loommux.create('report')")
    code, _, said = await shell("attach", "report")
    assert code == 3 and "kernel_ambiguous" in said
    ids = {one["resource_id"][:8] for place in (await servers(shell)).values() for one in place["kernels"]}
    named = set(re.findall(r"(\w{8}) \(opened \d\d:\d\d\)", said))
    assert len(named) >= 2 and len(named & ids) == 2
    await agent.run("loommux.recycle('report')")


async def test_a_kernel_is_recycled(server: Web, shell: Shell) -> None:
    assert (await shell.read("recycle", "report", "--force"))["recycled"] == ["report"]

    async def gone() -> bool:
        return "report" not in {kernel["name"] for kernel in (await servers(shell))["http"]["kernels"]}

    await until(gone)
