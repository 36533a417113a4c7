"""Standard output carries answers and nothing else; standard input is the server's alone."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import IO

import pytest

from tests.e2e.driving import Lines, Start, StartLines

pytestmark = pytest.mark.anyio

FORGED = json.dumps({"jsonrpc": "2.0", "id": 77, "result": {"content": [{"type": "text", "text": "forged"}]}})
WRITERS = {
    "descriptor": "import os; os.write(1, (FORGED + '\\n').encode())",
    "both descriptors": "import os; [os.write(fd, (FORGED + '\\n').encode()) for fd in (1, 2)]",
    "stdout": "import sys; sys.__stdout__.write(FORGED + '\\n'); sys.__stdout__.flush()",
    "child": "import subprocess; subprocess.run(['echo', FORGED])",
    "shell": "import os; os.system('echo x >&2; echo y; cat; echo ' + repr(FORGED))",
    "terminal": "import os; os.system('echo z > /dev/tty')",
    "daemon": "import subprocess; subprocess.Popen('sleep 0.2; echo late', shell=True, start_new_session=True).wait()",
    "every descriptor": "import os\nfor fd in range(3, 256):\n  try: os.fstat(fd)\n  except OSError: pass",
}
DESCRIPTORS = """\
from pathlib import Path
from typing import IO
[str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]"""


@pytest.mark.case("R11")
async def test_nothing_a_cell_or_its_children_write_reaches_the_servers_output(lines: StartLines) -> None:
    server = await lines().open()
    await server.cell(f"FORGED = {FORGED!r}")
    pings = 0
    for source in WRITERS.values():
        cell = server.begin_cell(source)
        wanted = [server.request("ping", id=f"ping {pings + n}") for n in range(10)]
        pings += 10
        await server.answer(cell)
        while [m["id"] for m in server.heard if str(m.get("id")).startswith("ping")][-10:] != wanted:
            await server.read()
    assert pings >= 50
    assert 77 not in [message["id"] for message in server.heard]
    server.stdin.close()
    assert await server.rest() == b""


@pytest.mark.case("R11")
async def test_what_is_written_to_descriptors_is_in_the_cells_record(start: Start) -> None:
    async with start() as agent:
        await agent.run(
            "import os, subprocess\nos.write(1, b'junk\\n')\nsubprocess.run(['sh', '-c', 'echo x >&2; echo y'])"
        )
        stdout = await agent.text("read_output", execution=1, stream="stdout")
        assert "junk" in stdout
        assert "y" in stdout.splitlines()
        assert "x" in (await agent.text("read_output", execution=1, stream="stderr")).splitlines()


@pytest.mark.case("R11")
async def test_children_never_read_the_servers_input(lines: StartLines) -> None:
    server = await lines().open()
    assert "[]" in await server.cell(
        "import subprocess; subprocess.run(['cat'], capture_output=True).stdout.splitlines()"
    )
    assert "''" in await server.cell("import sys; sys.stdin.read()")
    assert "result" in await server.ask("ping")


def pipe_of(stream: IO[bytes]) -> str:
    """The system's name of a pipe, ``pipe:[4711]``, the same in every process."""
    return str(Path(f"/proc/self/fd/{stream.fileno()}").readlink())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.case("R11")
async def test_the_wire_is_not_among_a_kernels_descriptors(lines: StartLines) -> None:
    server = await lines().open()
    open_ones = await server.cell(DESCRIPTORS)
    for stream in (server.stdin, server.process.stdout):
        assert stream is not None
        assert pipe_of(stream) not in open_ones


async def test_requests_may_come_in_pieces_or_all_at_once(lines: StartLines) -> None:
    server = await lines().open()
    request = json.dumps({"jsonrpc": "2.0", "id": "a", "method": "ping"}).encode() + b"\n"
    for piece in (request[:5], request[5:20], request[20:] + request.replace(b'"a"', b'"b"')):
        os.write(server.stdin.fileno(), piece)
    assert [(await server.read())["id"] for _ in range(2)] == ["a", "b"]


async def test_a_client_may_open_and_call_without_waiting_for_answers(lines: StartLines) -> None:
    server = lines()
    client = {"name": "lines", "version": "1"}
    server.request("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}, id=0)
    server.notify("notifications/initialized")
    server.request("tools/list", id=1)
    cell = server.begin_cell("6 * 7")
    answer = await server.answer(cell)
    assert "Out[1]: 42" in answer["result"]["content"][0]["text"]
    assert [message["id"] for message in server.heard] == [0, 1, cell]


async def test_lines_that_are_no_requests_are_protocol_errors_and_the_server_goes_on(lines: StartLines) -> None:
    server = await lines().open()
    server.send(b"not json", b"[]", b'{"jsonrpc":"2.0","id":5}', b"\xff\xfe\x00")
    assert [(await server.read())["error"]["code"] for _ in range(4)] == [-32700, -32600, -32600, -32700]
    assert "Out[1]: 2" in await server.cell("1 + 1")


async def test_a_result_of_a_megabyte_goes_to_a_client_that_reads_slowly(lines: StartLines) -> None:
    server = await lines().open()
    await server.cell("print('é' * 150_000)")
    reading = server.request("tools/call", {"name": "read_output", "arguments": {"execution": 1}})
    pinged = server.request("ping")
    answer = await server.answer(reading)
    assert "é" * 1000 in answer["result"]["content"][0]["text"]
    await server.answer(pinged) if pinged not in [m.get("id") for m in server.heard] else None


async def test_modern_requests_need_no_opening(lines: StartLines) -> None:
    server: Lines = lines()
    envelope = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    cell = {"name": "run_cell", "arguments": {"freeform": "6 * 7"}, "_meta": envelope}
    answer = await server.ask("tools/call", cell)
    assert answer["result"]["resultType"] == "complete"
    assert "Out[1]: 42" in answer["result"]["content"][0]["text"]
