"""What others have chosen is shown to a person by every command and in the log, and never acts on the terminal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from loommux_host.command_line.catalogue import COMMANDS
from tests.e2e.driving import COMMAND, PATIENCE, Place
from tests.e2e.http_driving import ACCEPT, Web, initialize, web

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="names that Windows has not")]

#: The clipboard (OSC 52), the title, an erased screen, 8-bit CSI and NEL, a line separator, an override, DEL.
ACTS = "\x1b]52;c;aGk=\x07\x1b]0;owned\x07\x1b[2J\x9b31m\x85\u2028\u202edecnirp\x7f\x08"
#: What a terminal would act on; lines, and tabs of the output, are ours or harmless.
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
#: Both faces of `attach` need a program; where it is missing what stands before it is shown all the same.
WITHOUT_QT = (
    "import sys, loommux_host.commands.attach as a; a.QT = (); from loommux_host.cli import main; sys.exit(main({}))"
)
CELL = f"# {ACTS}\nprint({ACTS!r} + '|'); loommux.notify({ACTS!r}); {ACTS!r}"
FAILING = f"# {ACTS}\nraise ValueError({ACTS!r})"


def invocations(pid: int, workspace: Path) -> dict[str, list[list[str]]]:
    """Every command, at kernels, cells and paths that are called as somebody else likes."""
    at = ["--server", str(pid)]
    config = str(workspace / f"no {ACTS}")
    return {
        "kernels": [["kernels"], ["kernels", "--json"]],
        "logs": [
            *(["logs", *at, "lab", *more] for more in ([], ["1"], ["2"], ["1", "--json"], ["--tail", "3"])),
            ["logs", *at, "lab", "1", "--lines", "1:", "--json"],
            ["logs", *at, f"x{ACTS}"],
        ],
        "run": [
            ["run", *at, "--kernel", "lab", CELL],
            ["run", *at, "--kernel", "lab", "--json", CELL],
            ["run", *at, "--kernel", "lab", FAILING],
            ["run", *at, "--kernel", ACTS, "1"],
            ["run", *at, "--kernel", "lab", f"%%loommux --{ACTS}\n1"],
        ],
        "interrupt": [["interrupt", *at, "lab"], ["interrupt", *at, ACTS], ["interrupt", *at, "lab", "--json"]],
        "export": [["export", *at, "lab", "-"], ["export", *at, "lab", f"{ACTS}.ipynb", "--json"]],
        "attach": [["attach", f"x{ACTS}"], ["attach", "--qtconsole", "lab"]],
        "connect": [["connect", f"ht{ACTS}tp://x/"], ["connect", "http://x/mcp", "--token-file", config]],
        "console": [["console", "--port", "99999"], ["console", f"--{ACTS}"]],
        "doctor": [["doctor", "--no-trial"], ["doctor", "--no-trial", "--config", config]],
        "install": [
            ["install", "--client", ACTS],
            ["install", "--client", "cursor", "--dry-run", "--name", "x", "--", ACTS],
            ["install", "--client", "cursor", "--dry-run", "--http", f"http://{ACTS}/mcp"],
        ],
        "kernelspec": [["kernelspec", "remove", "--prefix", config], ["kernelspec", ACTS]],
        "restart": [["restart", *at, "lab"], ["restart", *at, "lab", "--json"], ["restart", *at, ACTS]],
        "create": [["create", *at, ACTS], ["create", *at, f"a/{ACTS}"], ["create", *at, "made", "--json"]],
        "release": [["release", *at, ACTS], ["release", *at, "lab"], ["release", *at, "lab", "--json"]],
        "recycle": [["recycle", *at, ACTS], ["recycle", *at, "lab", "--force"]],
        "": [[ACTS], [f"--{ACTS}"], ["--server", "--config", config], ["--server", "--path", ACTS]],
    }  # fmt: skip


async def shown(place: Place, workspace: Path, words: list[str]) -> str:
    """All that a command says, as a terminal would get it."""
    command = [sys.executable, "-c", WITHOUT_QT.format(repr(words))] if words[0] == "attach" else [*COMMAND, *words]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=workspace,
        env=os.environ | place.environment | {"HOME": str(place.workspace)},
    )  # fmt: skip
    said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    return said.decode("utf-8", "surrogateescape")


async def hostile_session(server: Web) -> None:
    """A session with a name like that, in kernel `lab`."""
    hello = initialize()
    hello["params"]["clientInfo"]["name"] = f"client {ACTS}"
    async with server.http() as http:
        headers = {**ACCEPT, "X-Loommux-Resource": "lab", "X-Loommux-Operator": quote(f"operator {ACTS}")}
        opened = await http.post("/mcp", json=hello, headers=headers)
        assert opened.status_code == 200, opened.text
        headers |= {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
        for id, cell in enumerate((CELL, FAILING), 1):
            params = {"name": "run_cell", "arguments": {"freeform": cell}}
            call = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
            answer = (await http.post("/mcp", json=call, headers=headers)).text
            said = json.loads(next(line for line in answer.split("\n") if line.startswith("data: {"))[6:])
            text = "".join(block["text"] for block in said["result"]["content"])
            assert text.startswith(f"In [{id}]")
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text), "an agent gets lines, as they were recorded"
        odd = {"jsonrpc": "2.0", "id": 9, "method": f"tools/{ACTS}", "params": {}}
        await http.post("/mcp", json=odd, headers=headers)


@pytest.mark.case("X10")
async def test_no_command_and_no_log_hands_on_what_acts_on_a_terminal(place: Place) -> None:
    workspace = place.workspace / f"work {ACTS}"
    workspace.mkdir()
    within = Place(workspace, place.temporary, place.runtime)
    within.mark = place.mark
    async with web(within) as server:
        await hostile_session(server)
        wanted = invocations(server.process.pid, place.workspace)
        assert set(wanted) == {"", *COMMANDS}, "a new command needs its lines here"
        everything = {tuple(words): await shown(place, workspace, words) for line in wanted.values() for words in line}
    acted = {words: said for words, said in everything.items() if ACTING.search(said)}
    assert acted == {}
    assert not ACTING.search(place.log()), place.log()
    at = str(server.process.pid)
    assert r"work \x1b]52;c;aGk=\x07" in everything["kernels",]
    assert r"operator \x1b]52;c;aGk=\x07\x1b]0;owned" in everything["kernels",]
    assert r": # \x1b]52;c;aGk=\x07\x1b]0;owned\x07\x1b[2J\x9b31m" in everything["logs", "--server", at, "lab", "1"]
    kept = json.loads(everything["logs", "--server", at, "lab", "1", "--json"])
    assert kept["source"] == CELL, "as JSON nothing is lost"
    assert json.loads(everything["export", "--server", at, "lab", "-"])["cells"][0]["source"] == CELL


@pytest.mark.case("X10")
async def test_the_log_of_a_server_over_stdio_shows_what_acts(place: Place) -> None:
    config = place.workspace / f"c {ACTS}"
    config.mkdir(mode=0o700)
    said = await shown(place, place.workspace, ["--config", str(config)])
    assert r"configuration directory: " in said and r"c \x1b]52;c;aGk=\x07" in said
    assert not ACTING.search(said)
