"""A server works, or says plainly what is wrong, in whatever surroundings it is started."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.e2e.driving import COMMAND, Place, Start, StartLines, serving, until
from tests.e2e.http_driving import ACCEPT, Session, web

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="POSIX paths and programs"),
]

BROKEN = "raise SystemExit(9)"


def a_broken_home(path: Path) -> dict[str, str]:
    """Where everything that IPython, Jupyter and Python read at their start fails."""
    profile = path / ".ipython" / "profile_default"
    (profile / "startup").mkdir(parents=True)
    (path / ".jupyter").mkdir()
    for file in ("ipython_config.py", "ipython_kernel_config.py", "startup/00-first.py"):
        (profile / file).write_text(BROKEN)
    (path / ".jupyter" / "jupyter_config.py").write_text(BROKEN)
    (path / "startup.py").write_text(BROKEN)
    return {"HOME": str(path), "IPYTHONDIR": str(path / ".ipython"), "PYTHONSTARTUP": str(path / "startup.py")}


#: What is in the environment, and what is taken out of it.
SURROUNDINGS: dict[str, tuple[dict[str, str], list[str]]] = {
    "no home": ({}, ["HOME", "JUPYTER_RUNTIME_DIR"]),
    "a home where nothing can be made": ({"HOME": "/proc"}, ["JUPYTER_RUNTIME_DIR"]),
    "the C locale": ({"LC_ALL": "C"}, []),
    "a broken profile": ({}, []),
    "Python's development mode": ({"PYTHONDEVMODE": "1"}, []),
    "warnings that are errors": ({"PYTHONWARNINGS": "error"}, []),
    "64 descriptors": ({}, []),
}
LONGER_THAN_ASYNCIO_LIKES = "import time; time.sleep(0.2); print('é')"


@pytest.mark.parametrize("kind", SURROUNDINGS)
async def test_cells_run_and_nothing_of_the_surroundings_is_in_their_output(
    place: Place, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, without = SURROUNDINGS[kind]
    place.more |= more
    if kind == "a broken profile":
        place.more |= a_broken_home(place.workspace / "home")
    if kind == "no home":  # the account's own is what is left, and is not ours to write to
        without = ["HOME"]
    command = ["env", *(word for name in without for word in ("-u", name)), *COMMAND]
    if kind == "64 descriptors":
        command = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *COMMAND]
    monkeypatch.setattr("tests.e2e.driving.COMMAND", command)
    async with serving(place) as agent:
        for number in (1, 2):
            text = await agent.run(LONGER_THAN_ASYNCIO_LIKES)
            assert text.split("\n")[1:] == ["é"]
            text = await agent.run("!echo héé")
            assert text.split("\n")[1:] == ["héé"]
            assert "ZeroDivisionError" in await agent.run("1/0")
            assert "--existing /" in await agent.text("status")
            assert f"process {number + 1} " in await agent.text("restart")


async def test_without_descriptors_for_another_kernel_that_one_is_refused_and_the_others_go_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.e2e.http_driving.COMMAND", ["sh", "-c", 'ulimit -n 72; exec "$@"', "sh", *COMMAND])
    async with web(place) as server, server.http() as http:
        sessions: list[Session] = []
        refused, session = "", await Session.open(http)
        while not refused:
            text = (await session.cell(f"x = {len(sessions)}; x")).text
            if f"Out[1]: {len(sessions)}" in text:
                sessions.append(session)
                session = await Session.open(http)
            else:
                refused = text
            assert len(sessions) < 20
        assert sessions
        assert re.search(r"kernel_start_failed: \S+ could not be started: .*Too many open files", refused), refused
        assert '"isError":true' in refused
        await http.delete("/mcp", headers=session.headers)
        for number, one in enumerate(sessions):
            assert f"Out[2]: {number}" in (await one.cell("x")).text
        await http.delete("/mcp", headers=sessions.pop().headers)

        async def another() -> bool:
            return "Out[1]: 7" in (await (await Session.open(http)).cell("7")).text

        await until(another, 20)
    place.errors.write_text("")  # what the server could not do, it has said there


async def test_a_workspace_that_is_deleted_does_not_end_its_kernel_and_is_named_when_the_next_cannot_start(
    place: Place, start: Start
) -> None:
    workspace = place.workspace / "mit Leerzeichen, ünd mehr"
    workspace.mkdir()
    async with start(cwd=workspace) as agent:
        assert str(workspace) in await agent.run("import os; x = 41; print(os.getcwd())")
        shutil.rmtree(workspace)
        assert "Out[2]: 42" in await agent.run("x + 1")
        assert "FileNotFoundError" in await agent.run("os.getcwd()")
        for refused in (await agent.refusal("restart"), await agent.refusal("run_cell", freeform="1")):
            assert refused.startswith("kernel_start_failed: ")
            assert f"the workspace {workspace} is gone; make that directory again" in refused
        workspace.mkdir()
        assert "Out[1]: 1" in await agent.run("1")


async def test_of_a_client_that_does_not_read_everything_waits_and_nothing_is_lost(lines: StartLines) -> None:
    server = await lines().open()
    await server.cell("print('x' * 190_000)")
    reading = [server.request("tools/call", {"name": "read_output", "arguments": {"execution": 1}}) for _ in range(9)]
    cell = server.begin_cell("40 + 2")
    answer = await server.answer(cell)
    assert "Out[2]: 42" in answer["result"]["content"][0]["text"]
    for id in reading:
        if id not in [message.get("id") for message in server.heard]:
            await server.answer(id)
    texts = [m["result"]["content"][0]["text"] for m in server.heard if m.get("id") in reading]
    assert [len(text) > 190_000 for text in texts] == [True] * 9


#: Takes as much from the clock of every Python process as a file says.
SHIM = """\
import time
from pathlib import Path
_real, _file = time.time, Path({file!r})
def _shifted():
    return _real() - float(_file.read_text())
time.time = _shifted
"""


async def test_times_stay_true_when_the_clock_is_set_back(place: Place) -> None:
    behind = place.workspace / "behind"
    behind.write_text("0")
    (place.workspace / "sitecustomize.py").write_text(SHIM.format(file=str(behind)))
    place.more["PYTHONPATH"] = str(place.workspace)
    async with serving(place) as agent:
        text = await agent.run("%%loommux --wait 0.5 --silence 0.5\nimport time; before = time.time(); time.sleep(3)")
        assert "Running, silent for" in text
        behind.write_text("7200")
        assert re.search(r"\[1\] · [\d.]+ m?s: running", await agent.text("execution_status"))
        assert re.match(r"In \[1\] · \d\.\d s:$", await agent.text("wait"))
        assert "Out[2]: True" in await agent.run("time.time() < before"), "the cell's clock was set back"
        assert re.match(r"In \[3\] · \d[\d.]* m?s:\nOut\[3\]: 3$", await agent.run("3"))
        assert not re.search(r"-\d+ m?s|\b\d{4} s", await agent.text("status"))
        assert "process 2 " in await agent.text("restart")
        assert re.match(r"In \[1\] · \d[\d.]* m?s:\nOut\[1\]: 4$", await agent.run("4"))


async def test_a_client_that_never_reads_its_answers_over_http_holds_up_nobody(place: Place) -> None:
    async with web(place) as server, server.http() as http:
        deaf, other = await Session.open(http), await Session.open(http)
        await deaf.cell("print('x' * 190_000)")
        host, _, port = server.base.removeprefix("http://").partition(":")
        call = {"name": "read_output", "arguments": {"execution": 1}}
        writers: list[asyncio.StreamWriter] = []
        for n in range(40):
            body = json.dumps({"jsonrpc": "2.0", "id": 10 + n, "method": "tools/call", "params": call}).encode()
            if n % 4 == 0:
                _, writer = await asyncio.open_connection(host, int(port), limit=1)
                writers.append(writer)
            head = "".join(f"{name}: {value}\r\n" for name, value in {**ACCEPT, **deaf.headers}.items())
            writers[-1].write(
                f"POST /mcp HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
                f"{head}content-length: {len(body)}\r\n\r\n".encode()
                + body
            )
            await writers[-1].drain()
        for n in range(5):
            assert f"Out[{n + 1}]: {n}" in (await other.cell(str(n))).text
        assert "Out[2]: 42" in (await deaf.cell("42")).text
        for writer in writers:
            writer.close()
        assert "Out[3]: 43" in (await deaf.cell("43")).text
