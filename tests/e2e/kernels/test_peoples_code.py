"""What people's own code changes in a kernel, seen through a server: scripts, stores, hooks, clocks, streams."""

from __future__ import annotations

import re
import sys

import pytest

from tests.e2e.driving import Agent, Start, until

pytestmark = pytest.mark.anyio

ARGPARSE = """\
import argparse
p = argparse.ArgumentParser()
p.add_argument('output', nargs='?', default='result.txt')
p.add_argument('--epochs', type=int, default=3)
a = p.parse_args()
open(a.output, 'w').write('done')
print(a)"""
#: Everything about the process that a script may look at.
FACTS = """\
import sys, os, __main__
print([*sys.argv, *sys.orig_argv[1:], *sys.path, sys.flags, sys.warnoptions, sys._xoptions, os.getcwd()])
print(hasattr(__main__, '__file__'), __main__.__spec__, __main__.__name__)"""
SPAWN = """\
import multiprocessing, os
pool = multiprocessing.get_context('spawn').Pool(1)
print(pool.apply(eval, ("__import__('sys').argv",)), pool.apply(abs, (-3,)))
pool.terminate(); pool.join()"""


@pytest.mark.parametrize("flags", [[], ["--spawn"]], ids=["forked", "spawned"])
@pytest.mark.case("N11")
async def test_a_pasted_script_finds_no_arguments_and_no_path_of_ours(start: Start, flags: list[str]) -> None:
    async with start(*flags) as agent:
        assert "Namespace(output='result.txt', epochs=3)" in await agent.run(ARGPARSE)
        assert "done" in await agent.run("print(open('result.txt').read())")
        assert "usage: ipython " in await agent.run("p.print_usage()")
        facts = await agent.run(FACTS)
        assert "'ipython'" in facts
        assert "launch.json" not in facts and "loommux_" not in facts and "enter.py" not in facts
        assert "False None __main__" in facts
        if sys.platform == "linux":
            assert "['ipython'] 3" in await agent.run(SPAWN)
        await agent.run("sys.argv = ['train.py', '--epochs', '5']")
        assert "epochs=5" in await agent.run("print(p.parse_args())")  # what a cell sets stays
        await agent.run("sys.argv.clear()")
        assert (await agent.text("restart")).startswith("restarted: ")
        assert "['ipython']" in await agent.run("import sys; sys.argv")


@pytest.mark.case("N16")
async def test_what_store_and_its_like_are_given_outlives_processes_and_not_the_kernel(start: Start) -> None:
    async with start() as agent:
        await agent.run("y = 5\n%store y\n%bookmark here .\n%alias hi echo said\n%store hi")
        await agent.text("restart")
        assert "Out[1]: 5" in await agent.run("%store -r y\ny")
        assert "here -> " in await agent.run("%bookmark -l")
        assert "said" in await agent.run("%store -r\n%hi")
        assert "Killed" in await agent.run("import os; os._exit(3)")
        assert "Out[1]: 5" in await agent.run("%store -r y\ny")
        await agent.run("%store -d y")
        assert "no stored variable or alias y" in await agent.run("%store -r y")
        assert "no stored variable or alias z" in await agent.run("z = 1\n%store z\n%store -z\n%store -r z")
    async with start() as agent:
        assert "no stored variable or alias hi" in await agent.run("%store -r hi")


@pytest.mark.case("N15")
async def test_what_would_go_into_a_next_input_is_shown_and_told(agent: Agent) -> None:
    await agent.run("open('s.py', 'w').write('loaded = 1\\n'); None")
    said = await agent.run("%load s.py")
    assert "# %load s.py\nloaded = 1\n" in said
    assert "the text above was not run" in said
    assert "no editor can be opened here" in await agent.run("%edit s.py")
    assert "NameError" in await agent.run("loaded")


@pytest.mark.case("N18")
async def test_late_output_is_told_while_clocks_are_frozen(agent: Agent) -> None:
    await agent.run("from freezegun import freeze_time\nfrozen = freeze_time('2020-01-01'); frozen.start(); None")
    number = re.match(
        r"In \[(\d+)\]",
        await agent.run(
            "import threading\npause = threading.Event()\ndef late():\n"
            "    for n in range(3):\n        pause.wait(0.2); print('late', n)\n"
            "threading.Thread(target=late).start()"
        ),
    )
    assert number is not None
    told = ""

    async def all_told() -> bool:
        nonlocal told
        told += await agent.run("None")
        counts = re.findall(rf"In \[{number[1]}\] · (\d+) more lines? after its end", told)
        return sum(map(int, counts)) == 3

    await until(all_told)
    assert re.match(r"In \[\d+\] · (2\d\d ms|[0-9.]+ s):", await agent.run("import asyncio; await asyncio.sleep(0.2)"))
    await agent.run("frozen.stop()")


@pytest.mark.case("N22")
async def test_input_reads_a_replaced_stdin(agent: Agent) -> None:
    assert "8" in await agent.run(
        "import io, sys\nsys.stdin = io.StringIO('5\\n3\\n')\nprint(int(input()) + int(input()))"
    )
    assert "has no stdin" in await agent.run("sys.stdin = sys.__stdin__\ninput()")
    said = await agent.run("sys.displayhook = lambda value: None")
    assert "sys.displayhook was replaced; put back for later cells" in said


@pytest.mark.case("X20")
async def test_a_byte_order_mark_is_passed_over(agent: Agent) -> None:
    assert "Out[" in await agent.run("\ufeff'x'")
    assert "Out[" in await agent.run("\ufeff%%loommux --wait 5\n\ufeff'x'")
    assert "Out[" in await agent.run("\ufeff%%loommux --kernel marks\n\ufeff'x'")
    for blank in ("\ufeff", "\ufeff%%loommux --wait 5\n\ufeff\n"):
        assert (await agent.refusal("run_cell", freeform=blank)).startswith("empty_cell")
    assert (await agent.refusal("run_cell", freeform="\ufeff%%loommux --wat\n1")).startswith("invalid_cell_header")
    assert "'x'" in await agent.run(
        "loommux['marks'].run_cell('\\ufeff%%loommux --wait 5\\n\\ufeff\"x\"')['result_text']"
    )


@pytest.mark.case("X21")
async def test_a_hook_that_exits_is_a_notice_and_cells_go_on(agent: Agent) -> None:
    put = await agent.run("import sys\nget_ipython().events.register('post_run_cell', lambda result: sys.exit(3))")
    number = re.match(r"In \[(\d+)\]", put)
    assert number is not None
    told = f"the post_run_cell hook <lambda> (In [{number[1]}], line 2) failed: SystemExit: 3\n"
    assert "error" not in await agent.text("execution_status")
    for source, shown in (("6 * 7", "Out["), ("1 / 0", "ZeroDivisionError")):
        said = await agent.run(source)
        assert shown in said and told in said and said.count("SystemExit") == 1
    await agent.run("get_ipython().events.callbacks['post_run_cell'].clear()")
    assert "hook" not in await agent.run("6 * 7")


@pytest.mark.case("X21")
async def test_a_task_that_exits_ends_itself_and_not_the_kernel(agent: Agent) -> None:
    await agent.run("import asyncio, sys\nasync def leave():\n    sys.exit(3)\nkept = asyncio.ensure_future(leave())")

    async def told() -> bool:
        return "SystemExit: 3" in await agent.text("status")

    await until(told)
    assert "leave" in await agent.run("kept.get_coro().__name__")
