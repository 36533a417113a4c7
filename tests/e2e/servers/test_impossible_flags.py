"""A flag whose value is not possible: one line that says what is allowed, exit code 2, and nothing was started."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys

import pytest

from tests.e2e.driving import COMMAND, PATIENCE, Place

pytestmark = pytest.mark.anyio
SERVER = [
    *(["--host", host] for host in ("not a host", "", "256.1.1.1", "192.0.2.1", "::g", "[::1")),
    *(["--host", host] for host in ("x" * 300 + ".com", "a..b")),
    *(["--port", port] for port in ("x", "-1", "65536", "9" * 30, "", "1.5", "{taken}")),
    *(["--uds", path] for path in ("", "no/such/s", "file", "file/s", "directory", "s" * 200)),
    *(["--path", path] for path in ("", "mcp", "/", "/api", "/api/x", "/mcp?x", "/mcp#x", "/{id}", "/console/app.js")),
    *(["--path", path] for path in ("/console", "/servers/1", "/a b", "/%zz", "//x", "/a/../api")),
    *(["--path", path] for path in ("/./x", "/\u00e9", "/x\n")),
    *(["--config", path] for path in ("", "nowhere", "file")),
    ["--protocol", "x"],
    ["--result-mode", "x"],
    ["--completion", "x"],
    ["--uds", "s", "--port", "1"],
    ["--no-such-flag"],
]  # fmt: skip
COMMANDS = [
    ["kernels", "--server", "x"],
    ["kernels", "--server", "9" * 30],
    ["logs", "x", "0"],
    ["logs", "x", "--tail", "0"],
    ["logs", "x", "--stream", "x"],
    ["logs", "x", "--process", "x"],
    ["run", "--wait", "-1", "1"],
    ["run", "--wait", "x", "1"],
    ["console", "--port", "65536"],
    ["console", "--port", "-1"],
    ["console", "--port", "9" * 30],
    ["console", "--port", "{taken}"],
    ["connect", ""],
    ["connect", "ftp://x/"],
    ["connect", "http://me:secret@x/mcp"],
    ["connect", "http://[::1"],
    ["connect", "http://x:99999/mcp"],
    ["connect", "http://x/mcp", "--token-file", "nowhere"],
    ["doctor", "--config", ""],
    ["install", "--client", "nobody"],
    ["install", "--http", "nowhere"],
    ["export", "x", "no/such/file.ipynb"],
    ["restart", "x", "--server", "1"],
    ["kernelspec", "burn"],
    ["no-such-command"],
]


async def said(place: Place, words: list[str]) -> tuple[int, list[str]]:
    """Exit code and lines of a start that cannot work, without the usage and where the configuration is."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        cwd=place.workspace, env=os.environ | place.environment | {"HOME": str(place.workspace)},
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    lines = [line for line in out.decode(errors="replace").splitlines() if line.startswith(("loommux", "Traceback"))]
    assert process.returncode is not None
    return process.returncode, [line for line in lines if "configuration directory" not in line]


@pytest.fixture
def taken() -> object:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield str(listener.getsockname()[1])


@pytest.mark.case("X19", "X23")
@pytest.mark.skipif(sys.platform == "win32", reason="unix sockets")
async def test_a_server_says_in_one_line_what_is_allowed(place: Place, taken: str) -> None:
    (place.workspace / "file").touch()
    (place.workspace / "directory").mkdir()
    wrong = {}
    for flags in SERVER:
        words = ["--server", *(word.replace("{taken}", taken) for word in flags)]
        code, lines = await said(place, words)
        if code != 2 or len(lines) != 1 or not lines[0].startswith("loommux: "):
            wrong[" ".join(words)] = (code, lines)
    assert wrong == {}


@pytest.mark.case("X19")
async def test_a_command_says_in_one_line_what_is_wrong(place: Place, taken: str) -> None:
    wrong = {}
    for words in COMMANDS:
        code, lines = await said(place, [word.replace("{taken}", taken) for word in words])
        if code not in (2, 3) or len(lines) != 1:
            wrong[" ".join(words)] = (code, lines)
    assert wrong == {}
