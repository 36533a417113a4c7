"""However a server ends, everything it started ends with it, and no file stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.e2e.driving import COMMAND, ERAS, Place, StartLines, configure, interpreter, until

pytestmark = pytest.mark.anyio

BACKGROUND = """\
import subprocess
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sleep", "1000"], start_new_session=True)
subprocess.Popen("sleep 1000 &", shell=True, env={}).wait()"""
SLEEP = "%%loommux --wait 60 --silence 60\nimport time; print('asleep'); time.sleep({seconds})"
ENDS = ["eof", "SIGTERM", "SIGINT", "SIGHUP"]


async def _nothing_left(place: Place) -> None:
    assert await asyncio.to_thread(place.wait_until_empty) == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.case("R12")
async def test_a_server_that_ends_in_order_leaves_nothing(lines: StartLines, place: Place, end: str) -> None:
    server = await lines().open()
    await server.cell(BACKGROUND)
    children = len(place.processes())
    assert children >= 5  # server, guards, kernel, sleepers
    if end == "eof":
        server.stdin.close()
    else:
        server.process.send_signal(getattr(signal, end))
    assert await server.exit_code() == 0
    assert await server.rest() == b""
    await _nothing_left(place)
    assert [p.name for p in place.temporary.iterdir()] == ["stderr"]


@pytest.mark.parametrize("end", ["eof", "SIGTERM"])
async def test_calls_in_flight_may_finish_within_two_seconds(lines: StartLines, end: str) -> None:
    server = await lines().open()
    await server.cell("1")
    cell = server.begin_cell(SLEEP.format(seconds=0.7) + "; print('slept')")
    server.request("ping", id="p")
    await server.answer("p")
    server.stdin.close() if end == "eof" else server.process.send_signal(getattr(signal, end))
    answer = await server.answer(cell)
    assert "slept" in answer["result"]["content"][0]["text"]
    assert await server.exit_code() == 0


@pytest.mark.parametrize("end", ["eof", "SIGTERM"])
async def test_calls_in_flight_are_then_answered_as_running(lines: StartLines, end: str) -> None:
    server = await lines().open()
    await server.cell("1")
    cell = server.begin_cell(SLEEP.format(seconds=100))
    server.request("ping", id="p")
    await server.answer("p")
    server.stdin.close() if end == "eof" else server.process.send_signal(getattr(signal, end))
    answer = await server.answer(cell)
    text = answer["result"]["content"][0]["text"]
    assert answer["result"]["isError"] is False
    assert "Running" in text
    assert "asleep" in text
    assert await server.exit_code() == 0


async def test_a_server_ends_before_its_kernel_was_ever_needed(lines: StartLines, place: Place) -> None:
    server = await lines().open()
    server.stdin.close()
    assert await server.exit_code() == 0
    await _nothing_left(place)


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands for the interpreter")
async def test_a_call_that_waits_for_a_kernel_to_start_is_answered_when_the_server_ends(
    lines: StartLines, place: Place
) -> None:
    interpreter(place, "exec sleep 1000")
    server = await lines().open()
    cell = server.begin_cell("1")
    server.request("ping", id="p")
    await server.answer("p")
    server.stdin.close()  # the start may go on for a while yet; a signal waits for nothing
    server.process.send_signal(signal.SIGTERM)
    answer = await server.answer(cell)
    assert answer["result"]["isError"] is True
    assert answer["result"]["content"][0]["text"].startswith("server_stopping")
    assert await server.exit_code() == 0
    await _nothing_left(place)


HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "script", "version": "1"}}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def conversation(era: str, *cells: str) -> bytes:
    """What a script would send: cells, behind what its era opens with."""
    meta = ENVELOPE if era == "2026-07-28" else {}
    asked: list[dict[str, object]] = [
        {"id": i, "method": "tools/call", "params": {"name": "run_cell", "arguments": {"freeform": c}, "_meta": meta}}
        for i, c in enumerate(cells, 1)
    ]
    if era == "legacy":
        asked = [
            {"id": 0, "method": "initialize", "params": HELLO},
            {"method": "notifications/initialized"},
            *asked,
        ]
    return b"".join(json.dumps({"jsonrpc": "2.0", **one}).encode() + b"\n" for one in asked)


def texts(said: bytes) -> dict[int, str]:
    """The text of each result, by the id that it answers."""
    answers = [json.loads(line) for line in said.splitlines()]
    return {a["id"]: a["result"]["content"][0]["text"] for a in answers if "content" in a["result"]}


@pytest.mark.case("X17")
@pytest.mark.parametrize("era", ERAS)
async def test_what_was_read_before_the_end_is_run_once_there_is_a_kernel(
    lines: StartLines, place: Place, era: str
) -> None:
    (place.workspace / ".loommux" / "startup").mkdir(parents=True, mode=0o700)
    (place.workspace / ".loommux" / "startup" / "slow.py").write_text("import time; time.sleep(2.5)")
    configure(place, "")
    for cell, answer in (("5", "Out[1]: 5"), ("import time; print('begun'); time.sleep(60)", "begun")):
        server = lines()
        server.stdin.write(conversation(era, cell).rstrip(b"\n"))
        server.stdin.close()
        (text,) = texts(await server.rest()).values()
        assert text.startswith("In [1]"), text
        assert answer in text
        assert ("The server is shutting down" in text) == (answer == "begun")
        assert await server.exit_code() == 0


@pytest.mark.case("X17")
@pytest.mark.parametrize("era", ERAS)
async def test_a_file_of_requests_is_answered_one_by_one(lines: StartLines, place: Place, era: str) -> None:
    requests = place.workspace / "requests.jsonl"
    requests.write_bytes(conversation(era, "import time; time.sleep(0.5); x = 6", "x * 7", "print(x)").rstrip(b"\n"))
    with requests.open("rb") as file:
        server = lines(stdin=file.fileno())
    said = texts(await server.rest())
    assert [said[i].partition(" · ")[0] for i in (1, 2, 3)] == ["In [1]", "In [2]", "In [3]"]
    assert "Out[2]: 42" in said[2]
    assert said[3].endswith(":\n6")
    assert await server.exit_code() == 0
    await _nothing_left(place)


async def test_a_client_that_only_closes_its_reading_end_is_gone_too(lines: StartLines, place: Place) -> None:
    server = await lines().open()
    await server.cell("1")
    assert server.process.stdout is not None
    server.process.stdout.close()
    server.request("ping")
    assert await server.exit_code() == 0
    await _nothing_left(place)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("when", ["idle", "busy"])
@pytest.mark.case("R12")
async def test_a_killed_server_takes_everything_with_it_within_five_seconds(
    lines: StartLines, place: Place, when: str
) -> None:
    server = await lines().open()
    await server.cell(BACKGROUND)
    if when == "busy":
        await server.cell("%%loommux --wait 0.2 --silence 0.2\nwhile True: pass")
    others = [p for p in place.processes() if p.pid != server.process.pid]
    server.process.kill()
    await server.exit_code()
    _, alive = await asyncio.to_thread(psutil.wait_procs, others, 5)
    assert alive == []
    await _nothing_left(place)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.case("R12")
async def test_a_server_whose_host_is_killed_ends(lines: StartLines, place: Place) -> None:
    script = f"import subprocess, sys, time\nsubprocess.Popen({COMMAND!r}, stdin=subprocess.PIPE)\ntime.sleep(1000)"
    host = lines(command=[sys.executable, "-c", script], stdin=subprocess.DEVNULL)

    async def kernel_is_there() -> bool:
        return len(place.processes()) >= 5

    await until(kernel_is_there)
    os.kill(host.process.pid, signal.SIGKILL)
    await _nothing_left(place)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("to", ["the server", "all, from above", "all, from below", "all but the kernel"])
@pytest.mark.case("X32")
async def test_what_ended_a_cell_is_the_signal_that_asked_its_server_to_stop(
    lines: StartLines, place: Place, to: str
) -> None:
    """A batch system and a service manager signal all processes of what they stop, in any order."""
    server = await lines().open()
    mark = place.workspace / "runs"
    cell = server.begin_cell(f"{SLEEP.format(seconds=0)}; open({str(mark)!r}, 'w').close(); time.sleep(100)")

    async def runs() -> bool:
        return mark.exists()

    await until(runs)
    main = psutil.Process(server.process.pid)
    everybody = [main, *main.children(recursive=True)]
    if to == "the server":
        everybody = [main]
    elif to == "all, from below":
        everybody.reverse()
    elif to == "all but the kernel":
        everybody.pop()
    for process in everybody:
        process.send_signal(signal.SIGTERM)
    answer = await server.answer(cell)
    text = answer["result"]["content"][0]["text"].casefold()
    assert "the server was asked to stop by sigterm" in text, text
    assert "keeper" not in text
    assert ("nothing more runs in this kernel" in text) == (to != "the server"), text
    assert await server.exit_code() == 0
    await _nothing_left(place)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
async def test_a_server_that_was_started_with_sigint_ignored_interrupts_cells_and_their_programs(
    lines: StartLines, place: Place
) -> None:
    """As by `nohup` or `&` in a script: kernels, and what they start, have the usual handling again."""
    server = await lines(command=["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *COMMAND]).open()
    mark = place.workspace / "runs"
    program = f"import time; open({str(mark)!r}, 'w').close(); time.sleep(100)"
    for code in (
        f"import time; open({str(mark)!r}, 'w').close(); time.sleep(100)",
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {program!r}])",
    ):
        mark.unlink(missing_ok=True)
        cell = server.begin_cell(f"%%loommux --wait 60 --silence 60\n{code}")

        async def runs() -> bool:
            return mark.exists()

        await until(runs)
        asked = server.request("tools/call", {"name": "interrupt", "arguments": {}})
        texts: dict[object, str] = {}
        while not {cell, asked} <= texts.keys():  # in either order
            message = await server.read()
            if "result" in message:
                texts[message["id"]] = message["result"]["content"][0]["text"]
        assert texts[asked].startswith("interrupted: "), texts
        assert texts[cell].endswith("\nInterrupted."), texts
    assert "default_int_handler" in await server.cell(
        "print(subprocess.run([sys.executable, '-c', 'import signal; print(signal.getsignal(2))'],"
        " capture_output=True, text=True).stdout)"
    )
