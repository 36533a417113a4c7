"""Cells that run in a child kernel: what they say reads here as if it had been said here."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from tests.e2e.driving import Agent, text_of, until
from tests.e2e.shown import body, failed

pytestmark = pytest.mark.anyio

HEADER = "%%loommux --wait 60 --silence 60"

#: What a cell may say in whatever way, and the same from another kernel.
SAID = {
    "both streams in turn": """\
import sys
for i in range(300):
    print("out", i)
    print("err", i, file=sys.stderr)
print("no newline at the end", end="")""",
    "a progress bar beside lines": """\
import sys
for i in range(500):
    print(f"\\r{i:4d} |{'█' * (i // 20)}", end="", flush=True)
    if i % 100 == 99:
        print(" done")
print("\\x1b[31mred\\x1b[0m \\x1b[2Aup", file=sys.stderr)""",
    "bytes, surrogates and controls": r"""
import sys
sys.stdout.buffer.write(b"\xff bytes \xc3")
sys.stdout.buffer.write(b"\xa9\n")
print("lone \udce9 and \x07 bell, tab\t|", "\u2028 separator \x85")""",
    "displays that change": """\
from IPython.display import display, clear_output, HTML, Markdown
shown = display("first", display_id=True)
print("between")
shown.update("changed")
display(HTML("<b>x</b>"))
display(Markdown("# head"))
print("gone"); clear_output(wait=True); print("kept")
display({"text/html": "<i>only</i>"}, raw=True)""",
    "widgets": """\
import ipywidgets
from IPython.display import display
bar = ipywidgets.IntProgress(value=1)
out = ipywidgets.Output()
display(bar, out)
with out:
    print("captured")
bar.value = 7
out.clear_output()
with out:
    print("again")""",
    "programs and native code": """\
import os, subprocess
print("before")
os.system("echo from a shell")
subprocess.run("echo from a program", shell=True)
os.write(1, b"native\\n")
!echo magic; exit 3
print("after")""",
    "many lines": "for i in range(5000): print('line', i)",
    "nothing": "x = 1",
}
STREAMS = ("combined", "stdout", "stderr", "result")


def number_of(text: str) -> int:
    found = re.match(r"In \[(\d+)\]", text)
    assert found, text
    return int(found[1])


async def forwarded(agent: Agent, source: str, child: str = "build") -> str:
    return await agent.run(f"{HEADER} --kernel {child}\n{source}")


async def read(agent: Agent, number: int, stream: str) -> str:
    return await agent.text("read_output", execution=number, stream=stream)


@pytest.mark.parametrize("what", SAID)
async def test_what_a_forwarded_cell_says_reads_as_if_it_had_been_said_here(agent: Agent, what: str) -> None:
    here = number_of(await agent.run(f"{HEADER}\n{SAID[what]}"))
    there = number_of(await forwarded(agent, SAID[what]))
    for stream in STREAMS:
        assert await read(agent, there, stream) == await read(agent, here, stream), stream


async def test_results_and_top_level_await_come_from_the_child(agent: Agent) -> None:
    source = "import asyncio\nawait asyncio.sleep(0.01)\nprint('awaited')\n6 * 7"
    assert re.search(r"awaited\nOut\[\d+\]: 42$", await forwarded(agent, source))
    assert "NameError" in await agent.run("%%loommux\nasyncio")
    assert "True" in await forwarded(agent, "'asyncio' in globals()")


async def test_an_error_there_is_one_line_under_its_own_traceback(agent: Agent) -> None:
    shown, named = await failed(agent, f"{HEADER} --kernel build\nprint('x')\nraise ValueError('no\\nsecond line')")
    lines = shown.split("\n")
    assert lines[0] == "x"
    assert lines[-3:] == ["ValueError: no", "second line", "ForwardedCellError: build: ValueError: no…"]
    assert any(re.fullmatch(r"-+> 3 raise ValueError.*", line) for line in lines), shown  # counted as the sender does
    assert named == "ForwardedCellError: build: ValueError: no…"


async def test_images_stay_in_the_childs_record_and_a_line_says_so(agent: Agent) -> None:
    source = (
        "import io\nfrom PIL import Image as Pillow\nfrom IPython.display import Image, display\n"
        "file = io.BytesIO()\nPillow.new('RGB', (9, 9)).save(file, 'png')\ndisplay(Image(file.getvalue()))"
    )
    result = await agent.call("run_cell", freeform=f"{HEADER} --kernel build\n{source}")
    assert [block.type for block in result.content] == ["text"]
    line = "[image/png of display 1 is in the record of build]"
    assert text_of(result).endswith(line)
    there = await agent.call("wait", kernel="build")
    assert [block.type for block in there.content][:2] == ["text", "image"]


async def test_a_body_that_begins_with_a_header_or_a_magic_belongs_to_the_child(agent: Agent) -> None:
    assert body(await forwarded(agent, "%%bash\necho from bash")) == "from bash"
    own = await forwarded(agent, f"{HEADER} --kernel build\nprint('its own name')")
    assert body(own) == "its own name"
    both = await forwarded(agent, f"{HEADER} --kernel other\nloommux.self.name")
    assert body(both).endswith("'other'")


async def test_naming_this_very_kernel_is_the_same_as_naming_none(agent: Agent) -> None:
    me = (await agent.run("print(loommux.self.name)")).split("\n")[1]
    path, id = (await agent.run(f"print('/{me}', loommux.self.id)")).split("\n")[1].split()
    await agent.run("mine = 'mine'")
    for name in (me, path, id):
        assert "'mine'" in await agent.run(f"%%loommux --kernel {name}\nmine")


async def test_a_cycle_ends_as_busy(agent: Agent) -> None:
    me = (await agent.run("print(loommux.self.name)")).split("\n")[1]
    shown, named = await failed(agent, f"{HEADER} --kernel build\n%%loommux --kernel {me}\n1")
    first, second = shown.split("\n")
    assert first.startswith(f"ForwardedCellError: {me}: busy: In [")
    assert second.startswith(f"ForwardedCellError: build: ForwardedCellError: {me}: busy: ")
    assert named == second


async def test_a_cycle_is_busy_also_when_an_earlier_process_has_died(agent: Agent) -> None:
    me = (await agent.run("print(loommux.self.name)")).split("\n")[1]
    await agent.run("import os; os._exit(4)")
    await agent.run(f"{HEADER} --kernel later\n1")
    shown, _ = await failed(agent, f"{HEADER} --kernel later\n%%loommux --kernel {me}\n1")
    assert shown.startswith(f"ForwardedCellError: {me}: busy: In ["), shown


async def test_a_busy_child_and_a_name_that_is_none_are_one_clear_line(agent: Agent) -> None:
    start = "n = loommux.create('build').run_cell('import time; time.sleep(60)', wait_seconds=0)['execution']"
    await agent.run(start)
    shown, _ = await failed(agent, f"{HEADER} --kernel build\n1")
    assert re.match(r"ForwardedCellError: build: busy: In \[\d+\] of build has run", shown), shown
    await agent.run("loommux['build'].interrupt(n)")
    shown, _ = await failed(agent, "%%loommux --kernel /nobody/here\n1")
    assert shown.startswith("ForwardedCellError: /nobody/here: kernel_not_found: "), shown


async def test_a_header_within_a_cell_is_refused_also_when_it_names_a_kernel(agent: Agent) -> None:
    for source in (
        "1\nget_ipython().run_cell_magic('loommux', '--kernel build', 'print(1)')",
        "%%loommux\n%%loommux --kernel build\nprint(1)",
        "%%time\n%%loommux --kernel build\nprint(1)",
    ):
        assert (await failed(agent, source))[1].startswith("UsageError: "), source


@asynccontextmanager
async def in_the_background(agent: Agent, source: str) -> AsyncIterator[list[str]]:
    """The cell runs in the child and has said ``begun``; its result is there after the block."""
    result: list[str] = []
    mark = uuid.uuid4().hex

    async def run() -> None:
        result.append(await forwarded(agent, f"print('begun', '{mark}')\n{source}"))

    async def has_begun() -> bool:
        return mark in await agent.text("read_output")

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await until(has_begun)
        yield result


ENDING = """\
import asyncio, time
try:
    {}
finally:
    for i in range(3):
        time.sleep(0.2)
        print("ending", i)"""


@pytest.mark.parametrize("waiting", ["time.sleep(60)", "await asyncio.sleep(60)"])
async def test_an_interrupt_here_interrupts_there_and_what_it_says_while_ending_is_relayed(
    agent: Agent, waiting: str
) -> None:
    async with in_the_background(agent, ENDING.format(waiting)) as result:
        assert (await agent.text("interrupt")).startswith("interrupted: ")
    assert "ending 2" in result[0]
    assert result[0].endswith("KeyboardInterrupt: build\nInterrupted."), result[0]
    assert "interrupted" in await agent.text("execution_status", kernel="build")


async def test_an_interrupt_of_the_child_itself_interrupts_the_forwarding_cell(agent: Agent) -> None:
    async with in_the_background(agent, "import time; time.sleep(60)") as result:
        await agent.text("interrupt", kernel="build")
    assert result[0].endswith("Interrupted."), result[0]
    assert ": interrupted" in await agent.text("execution_status")


async def test_a_restart_here_says_what_goes_on_there(agent: Agent) -> None:
    async with in_the_background(agent, "import time; time.sleep(60)"):
        restarted = await agent.text("restart")
    said = r"\nGoes on, sent by its code to other kernels: In \[\d+\] of /\S+/build\.\n"
    assert re.search(said, restarted), restarted
    assert ": running" in await agent.text("execution_status", kernel="build")
    assert (await agent.text("interrupt", kernel="build")).startswith("interrupted: ")
    assert "Goes on" not in await agent.text("restart")


async def test_a_cell_that_catches_the_interrupt_there_ends_here_as_it_ends(agent: Agent) -> None:
    caught = "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('caught')"
    async with in_the_background(agent, caught) as result:
        assert (await agent.text("interrupt")).startswith("ended: ")
    assert result[0].endswith("\ncaught"), result[0]


async def test_a_child_that_dies_says_how_and_leaves_the_parent_as_it_was(agent: Agent) -> None:
    await agent.run("kept = 'kept'")
    shown, _ = await failed(
        agent, f"{HEADER} --kernel mortal\nimport os\nprint('last', flush=True)\nos.write(1, b'native\\n'); os._exit(3)"
    )
    *said, last = shown.split("\n")
    assert said == ["last", "native"]
    assert last.startswith("ForwardedCellError: mortal: killed: process 1 exited with code 3"), last
    assert "'kept'" in await agent.run("kept")


async def test_no_thread_of_a_forwarded_cell_is_left(agent: Agent) -> None:
    count = "import threading; print(sorted(t.name for t in threading.enumerate() if 'build' in t.name))"
    await forwarded(agent, "1")
    assert body(await agent.run(count)) == "[]"
