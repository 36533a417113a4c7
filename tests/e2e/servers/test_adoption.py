"""Servers that die by force, and their successors on the same workspace and endpoint (contract 5)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from typing import Any

import anyio
import httpx2
import psutil
import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient

from tests.e2e.driving import COMMAND, Place, configure, connected, interpreter, until
from tests.e2e.http_driving import Session, Web, start, web
from tests.e2e.trees import below

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a keeper"),
]
COUNT = "import time\nfor i in range({0}):\n    print('line', i, flush=True); time.sleep(0.02)\n'counted'"


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


async def kill(server: Web) -> None:
    server.process.kill()
    await asyncio.to_thread(server.process.wait)


def answered(response: httpx2.Response) -> str:
    """The text of the result that a response carries."""
    assert response.status_code == 200, response.text
    data = next(line for line in response.text.splitlines() if line.startswith("data: {"))
    return "".join(block["text"] for block in json.loads(data[6:])["result"]["content"])


async def call(session: Session, tool: str, **arguments: Any) -> str:
    params = {"name": tool, "arguments": arguments}
    return answered(await session.post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}))


async def run(session: Session, source: str) -> str:
    return await call(session, "run_cell", freeform=source)


async def kernels(server: Web) -> dict[str, dict[str, Any]]:
    async with server.http() as http:
        answer = await http.get("/api/resources")
    return {one["path"]: one for one in answer.json()["resources"]}


async def printed_by(client: AsyncKernelClient, request: str) -> str:
    """What a cell printed, up to its end, as the client was told."""
    text = ""
    while True:
        message = await client.get_iopub_msg(timeout=30)
        if message["parent_header"].get("msg_id") != request:
            continue
        if message["msg_type"] == "stream":
            text += message["content"]["text"]
        if message["content"].get("execution_state") == "idle":
            return text


WAITING = "kernel lab of the server {}, which is gone, waits for the next one at http://127.0.0.1:{}/mcp in {}"


async def command(place: Place, *words: str) -> tuple[int, str]:
    """A command for people: its exit code, and all it says."""
    environment = os.environ | place.environment
    done = await anyio.run_process([*COMMAND, *words], env=environment, cwd=place.workspace, check=False)
    return done.returncode, (done.stdout + done.stderr).decode()


async def until_busy(session: Session) -> str:
    """The first refusal, once a cell of somebody else runs."""
    while "busy" not in (said := await run(session, "1")):
        pass
    return said


async def test_a_kernel_of_a_killed_server_goes_on_under_the_next(place: Place) -> None:
    port = free_port()
    async with web(place, "--port", port) as first, first.http(**{"x-loommux-resource": "lab"}) as http:
        session = await Session.open(http)
        await run(session, "early = 'first process'; print(early)")
        await call(session, "restart")
        await run(session, "x = 41")
        before = (await kernels(first))["/lab"]
        async with connected(before["connection_file"]) as client:
            request = client.execute(COUNT.format(100))
            assert "busy" in await until_busy(session)
            await kill(first)
            code, said = await command(place, "logs", "lab")
            assert code == 3 and f"; {WAITING.format(first.process.pid, port, place.workspace)}\n" in said
            async with web(place, "--port", port) as second:
                assert "waits for the next one" not in (await command(place, "kernels"))[1]
                async with second.http(**{"x-loommux-resource": "lab"}) as again:
                    newcomer = await Session.open(again)
                    whole = await call(newcomer, "wait", timeout_seconds=30)
                    assert [f"line {i}" for i in range(100)] == re.findall(r"^line \d+$", whole, re.MULTILINE)
                    number = int(re.findall(r"In \[(\d+)\]", whole)[0])
                    assert f"Out[{number}]: 'counted'" in whole
                    assert f"Out[{number + 1}]: 42" in await run(newcomer, "x + 1")
                    assert "first process" in await call(newcomer, "read_output", execution=1, process=1)
                    after = (await kernels(second))["/lab"]
                told = await printed_by(client, request)
                assert told.splitlines() == [f"line {i}" for i in range(100)]
                reply = await client.get_shell_msg(timeout=30)
                assert reply["parent_header"]["msg_id"] == request
                same = ("resource_id", "kernel_pid", "process", "connection_file", "scope")
                assert [before[key] for key in same] == [after[key] for key in same]
                assert "took over 1 kernel" in place.log()


async def test_a_session_a_handle_a_child_and_what_was_told_are_known_to_the_next(place: Place) -> None:
    port = free_port()
    async with web(place, "--port", port) as first, first.http() as http:
        session, other = await Session.open(http), await Session.open(http)
        assert "Kernel: private-" in await run(session, "mine = 1; child = loommux.create('build')")
        name = next(path for path in await kernels(first) if path.count("/") == 1)
        assert "attached" in await run(other, f"%%loommux --attach {name[1:]}\nloommux.notify('hear'); 2")
        assert "· hear" in await call(session, "status")
        async with first.agent("2026-07-28") as agent:
            opened = await agent.run("deep = 6")
        handle = re.search(r"k_[\w-]+", opened)
        assert handle
        quiet = await run(session, "import time; time.sleep(1.0); 'ended alone'" + "\n# --wait")
        assert "ended alone" in quiet
        before = await kernels(first)
        await kill(first)
        async with web(place, "--port", port) as second, second.http() as http_again:
            session.http = other.http = http_again
            answer = await run(session, "mine + 1")
            assert "Out[4]: 2" in answer
            assert "hear" not in answer
            assert "Kernel:" not in answer
            assert "by others" not in answer
            seen = await run(other, "mine")
            assert "2 cells were run by others" in seen
            async with second.agent("2026-07-28") as agent:
                assert "Out[2]: 36" in await agent.text("run_cell", freeform="deep * 6", kernel=handle[0])
            after = await kernels(second)
            assert [(p, k["resource_id"], k["home"]) for p, k in before.items()] == [
                (p, k["resource_id"], k["home"]) for p, k in after.items()
            ]
            unknown = Session(http_again, "0" * 32)
            assert (await unknown.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})).status_code == 404


async def test_what_ended_while_nobody_was_there_is_told_once(place: Place) -> None:
    port = free_port()
    async with web(place, "--port", port) as first, first.http() as http:
        done, died = await Session.open(http), await Session.open(http)
        await run(
            done, "%%loommux --wait 0.1\nimport time; time.sleep(1.5); loommux.notify('late word'); print('end'); 5"
        )
        await run(
            died, "%%loommux --wait 0.1\nimport os, time; print('last', flush=True); time.sleep(1.5); os._exit(3)"
        )
        pids = [one["kernel_pid"] for one in (await kernels(first)).values()]
        await kill(first)
        await asyncio.to_thread(psutil.wait_procs, [psutil.Process(pids[1])], 30)
        async with web(place, "--port", port) as second, second.http() as http_again:
            done.http = died.http = http_again
            answer = await call(done, "wait")
            assert "end\nOut[1]: 5" in answer
            assert answer.count("late word") == 1
            assert "late word" not in await run(done, "1")
            refused = await run(died, "2")
            assert "kernel_died" in refused
            assert "exited with code 3" in refused
            assert "last" in await call(died, "read_output", execution=1, process=1)
            assert "Out[1]: 3" in await run(died, "3")


async def test_a_stopped_server_gives_way_for_good_and_of_four_that_start_at_once_one_takes_over(place: Place) -> None:
    port = free_port()
    async with web(place, "--port", port) as first:
        async with first.http() as http:
            await run(await Session.open(http), "x = 1")
        pid = next(iter((await kernels(first)).values()))["kernel_pid"]
        first.process.send_signal(signal.SIGSTOP)
        starting = [start(place, "--port", port) for _ in range(4)]
        try:

            async def decided() -> bool:
                ended = sum(process.poll() == 2 for process in starting)
                return ended == 3 and place.log().count("listening on") == 2

            await until(decided)
            first.process.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(first.process.wait, 30) == -signal.SIGKILL
            (last,) = (process for process in starting if process.poll() is None)
            server = Web(last, place, f"http://127.0.0.1:{port}")
            assert next(iter((await kernels(server)).values()))["kernel_pid"] == pid
            assert place.log().count("was stopped, not ended") == 1
            assert place.log().count("took over") == 1
            assert await server.end() == 0
        finally:
            for process in starting:
                process.kill()
                process.wait()


async def test_servers_on_other_endpoints_take_nothing(place: Place) -> None:
    one, two = free_port(), free_port()
    async with web(place, "--port", one) as first, web(place, "--port", two) as second:
        pids = []
        for server in (first, second):
            async with server.http(**{"x-loommux-resource": "lab"}) as http:
                await run(await Session.open(http), "1")
            pids.append((await kernels(server))["/lab"]["kernel_pid"])
        await kill(first)
        await kill(second)
        async with web(place, "--port", two) as again:
            assert [k["kernel_pid"] for k in (await kernels(again)).values()] == pids[1:]
        assert psutil.pid_exists(pids[0])
        (keeper,) = (process for process in place.processes() if process.name() == "loommux-keeper")
        keeper.kill()


async def test_what_cannot_be_taken_over_ends_and_the_start_says_why(place: Place) -> None:
    port = free_port()
    async with web(place, "--port", port) as first:
        for name in ("good", "bad"):
            async with first.http(**{"x-loommux-resource": name}) as http:
                await run(await Session.open(http), "x = 1")
        before = await kernels(first)
        await kill(first)
    (notes,) = below(place.temporary, f"k-{before['/bad']['resource_id'][:8]}/adoption.json")
    notes.write_text(notes.read_text()[:100])
    async with web(place, "--port", port) as second:
        assert list(await kernels(second)) == ["/good"]
        assert not psutil.pid_exists(before["/bad"]["kernel_pid"])
        assert before["/bad"]["connection_file"] not in [str(path) for path in place.runtime.iterdir()]
        assert re.search(r"kernel k-\w+ is not taken over, and ends: .* is damaged", place.log())
        await kill(second)
    interpreter(place, f'exec {sys.executable} "$@"')
    async with web(place, "--port", port) as third:
        assert await kernels(third) == {}
        assert not psutil.pid_exists(before["/good"]["kernel_pid"])
        assert re.search(r"kernel good is not taken over, and ends: it runs with ", place.log())


async def test_kernels_that_nobody_takes_over_end_after_their_time(place: Place) -> None:
    configure(place, "adopt_grace_seconds = 1\n")
    async with web(place) as server:
        async with server.http() as http:
            session = await Session.open(http)
            await run(session, "import subprocess; child = subprocess.Popen(['sleep', '1000'], start_new_session=True)")
        await kill(server)
    assert not place.wait_until_empty()
