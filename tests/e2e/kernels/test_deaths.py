"""However a kernel's process dies, everybody is told the same truth, soon, and nothing is run unasked."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.driving import PATIENCE, Agent, Place, until
from tests.e2e.oracle import is_alive, living_kernel_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="the oracle reads /proc"),
]

#: The contract says a second; a machine that runs much else beside these tests gets more.
TOLD = 10.0
#: What ends the process, by its own doing or by somebody else's, and what is to be said of it.
BY_ITSELF = {
    "os._exit(4)": "exited with code 4",
    "os.kill(os.getpid(), signal.SIGKILL)": "ended by SIGKILL",
    "ctypes.string_at(0)": "ended by SIGSEGV",
    "os.abort()": "ended by SIGABRT",
}
BY_OTHERS = {
    signal.SIGKILL: "ended by SIGKILL",
    signal.SIGTERM: "ended by SIGTERM",
    signal.SIGSEGV: "ended by SIGSEGV",
}
IMPORTS = "import ctypes, os, pathlib, signal, threading, time\n"
LONG = {"timeout_seconds": PATIENCE, "silence_seconds": PATIENCE}
WAITING = "%%loommux --wait 60 --silence 60\n" + IMPORTS


async def last_words(agent: Agent) -> bool:
    return "last words" in await agent.text("read_output")


async def state_at_the_end(agent: Agent) -> str:
    """Ask for the state again and again until the process is said to be gone."""
    while "stopped" not in (text := await agent.text("status")):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return text


def highest_memory(kernel: psutil.Process) -> int:
    """Bytes, by the system's own account."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{kernel.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


async def everybody_is_told(agent: Agent, place: Place, how: str | signal.Signals, said: str) -> str:
    """Let a cell's process end while it is run, waited for twice and looked at; what they were told."""
    process, kernel = await living_kernel_of(agent)
    go = place.workspace / f"go-{process}"
    body = how if isinstance(how, str) else "time.sleep(60)"
    cell = f"print('last words', flush=True)\ngo = pathlib.Path({str(go)!r})\nwhile not go.exists(): time.sleep(0.01)\n"
    running = asyncio.create_task(agent.run(WAITING + "memory = bytearray(b'x' * (100 << 20))\n" + cell + body))
    await until(lambda: last_words(agent))
    calls = [running, *(asyncio.create_task(agent.text("wait", **LONG)) for _ in range(2))]
    looking = asyncio.create_task(state_at_the_end(agent))
    await agent.text("execution_status")  # answered when the calls before it wait
    memory = highest_memory(kernel)
    if isinstance(how, signal.Signals):
        kernel.send_signal(how)
    else:
        go.touch()
    await asyncio.to_thread(kernel.wait, PATIENCE)
    async with asyncio.timeout(TOLD):
        texts = await asyncio.gather(*calls)
        status = await looking
    assert all(re.match(r"In \[\d+\] · [\d.]+ m?s:\nlast words\n", text) for text in texts), texts
    number = int(texts[0].partition("[")[2].partition("]")[0])
    ends = {text.partition("Killed: ")[2] for text in texts}
    assert len(ends) == 1, texts
    (end,) = ends
    assert end.startswith(f"process {process} {said}"), end
    assert f"{process} ({said} at " in status
    assert not is_alive(kernel)
    found = re.search(r"its memory had reached ([\d.]+) MiB", end)
    assert (found is not None) == ("SIGKILL" in said)
    if found is not None:
        assert memory * 0.9 < float(found[1]) * 2**20 < memory * 1.5
    assert "Out[1]: 2" in await agent.run("1 + 1")
    assert "last words" in await agent.text("read_output", execution=number, process=process)
    return end


@pytest.mark.parametrize("how", BY_ITSELF)
@pytest.mark.case("R01", "M07", "M09")
async def test_whoever_waits_or_looks_is_told_the_same_truth_of_a_death(
    agent: Agent, common_place: Place, how: str
) -> None:
    end = await everybody_is_told(agent, common_place, how, BY_ITSELF[how])
    if how in ("ctypes.string_at(0)", "os.abort()"):
        assert "Current thread (most recent call first):\n" in end
        assert re.search(r"\n  Cell, line 7 in <module>\n  … \d+ more frames of IPython and the kernel\n", end), end


@pytest.mark.parametrize("how", BY_OTHERS, ids=lambda how: getattr(how, "name", how))
async def test_the_same_of_a_process_that_others_end(agent: Agent, common_place: Place, how: signal.Signals) -> None:
    await everybody_is_told(agent, common_place, how, BY_OTHERS[how])


@pytest.mark.parametrize("how", ["os._exit(4)", signal.SIGKILL], ids=lambda how: getattr(how, "name", how))
@pytest.mark.case("M09")
async def test_a_session_that_was_not_told_of_a_death_is_told_before_anything_runs(
    agent: Agent, common_place: Place, how: str | signal.Signals
) -> None:
    process, kernel = await living_kernel_of(agent)
    if isinstance(how, str):
        said = "exited with code 4"
        await agent.run(f"{IMPORTS}threading.Thread(target=lambda: (time.sleep(0.1), {how})).start()")
    else:
        said = BY_OTHERS[how]
        kernel.send_signal(how)
    await asyncio.to_thread(kernel.wait, PATIENCE)
    ran = common_place.workspace / f"ran-{process}"
    cell = f"import pathlib; pathlib.Path({str(ran)!r}).touch()"
    told = await agent.refusal("run_cell", freeform=cell)
    assert told.startswith(f"kernel_died: process {process} of "), told
    assert f" {said} at " in told
    assert "Nothing was run: send it again" in told
    assert f"Records: process={process}." in told
    assert "<loommux-notice>" not in told
    again = await agent.run(cell)
    assert again.startswith("In [1] · ")
    assert "process" not in again
    assert ran.exists()


@pytest.mark.case("R01")
async def test_memory_that_runs_out_under_a_limit_is_an_error_or_a_death_and_told_as_what_it_was(
    agent: Agent,
) -> None:
    process, kernel = await living_kernel_of(agent)
    await agent.run("kept = 42")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
    text = await agent.run(f"%%loommux --wait 60 --silence 60\n{limit}print('before')\nb = bytearray(64 << 30)")
    assert "\nbefore\n" in text
    if is_alive(kernel):
        assert "MemoryError" in text
        assert "Killed" not in text
        assert "]: 42" in await agent.run("kept")
    else:
        assert f"Killed: process {process} " in text
        assert "NameError" in await agent.run("kept")
    await agent.text("restart")  # without the limit


@pytest.mark.case("R08")
async def test_what_a_dead_process_had_started_ends_with_it_and_is_counted(agent: Agent) -> None:
    process, kernel = await living_kernel_of(agent)
    await agent.run(
        "import subprocess\n"
        "for more in ({}, {'start_new_session': True}, {'env': {}}): subprocess.Popen(['/bin/sleep', '1000'], **more)"
    )
    init = kernel.parent()
    assert init is not None
    started = [p for p in init.children(recursive=True) if p != kernel]
    assert len(started) == 3
    os.kill(kernel.pid, signal.SIGKILL)
    await asyncio.to_thread(kernel.wait, PATIENCE)
    told = await agent.refusal("run_cell", freeform="1")
    assert "3 processes it had started were ended with it." in told
    assert [p for p in started if is_alive(p)] == []
    assert (await living_kernel_of(agent))[0] == process + 1


@pytest.mark.parametrize("how", [*BY_ITSELF])
async def test_what_was_printed_right_before_a_death_is_in_the_result(agent: Agent, how: str) -> None:
    count = 300
    result = await agent.run(f"{IMPORTS}for i in range({count}): print('line', i)\n{how}")
    lines = [line for line in result.splitlines() if line.startswith("line ")]
    assert lines == [f"line {i}" for i in range(count)]
    assert "\nKilled: process " in result
