"""Errors that a user causes: none hangs, none passes unnoticed, later cells are as before (contract 3.7)."""

from __future__ import annotations

import re
import time

import pytest

from tests.e2e.driving import Agent, Place
from tests.e2e.shown import failed, lines_of, notices, printed

pytestmark = pytest.mark.anyio

#: Seconds in which an error is complete, on a machine that does other things too.
SOON = 20.0


async def goes_on(agent: Agent) -> None:
    """Later cells print as before, and variables are kept."""
    source = "import os, sys\nprint('out'); print('err', file=sys.stderr); os.write(1, b'descriptor\\n'); kept"
    assert re.fullmatch(r"out\nerr\ndescriptor\nOut\[\d+\]: 'kept'", await printed(agent, source))


REFUSED = {
    "input": ("input('name? ')", "input() cannot be answered: this cell has no stdin"),
    "getpass": ("import getpass; getpass.getpass()", "getpass() cannot be answered: this cell has no stdin"),
    "breakpoint": ("print('a'); breakpoint(); print('b')", "breakpoint() cannot stop here: this cell has no stdin"),
    "pdb": ("import pdb; pdb.set_trace()", "pdb cannot stop here: this cell has no stdin"),
    "%debug": (
        "try: 1/0\nexcept ZeroDivisionError as e: import sys; sys.last_exc = e\n%debug",
        "%debug cannot stop here",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.case("M06")
async def test_what_nobody_can_answer_is_an_error_that_says_why_and_what_to_do(agent: Agent, kind: str) -> None:
    await agent.run("kept = 'kept'")
    source, said = REFUSED[kind]
    shown, named = await failed(agent, source)
    assert named.startswith(f"StdinNotImplementedError: {said}")
    assert said in shown
    assert re.search(r"Put the value into the code|Print what you want to see", shown)
    await goes_on(agent)


@pytest.mark.parametrize("leave", ["exit()", "quit()", "exit", "print('a'); exit(0)"])
@pytest.mark.case("M07")
async def test_exit_ends_the_cell_and_says_that_restart_is_the_way(agent: Agent, leave: str) -> None:
    await agent.run("kept = 'kept'")
    shown, named = await failed(agent, leave)
    assert named.startswith("SystemExit: this ended the cell, not the kernel")
    assert "use `restart`" in shown
    await goes_on(agent)


@pytest.mark.parametrize(("leave", "named"), [("sys.exit(3)", "SystemExit: 3"), ("sys.exit('why')", "SystemExit: why")])
@pytest.mark.case("M07")
async def test_sys_exit_is_an_error_of_its_cell(agent: Agent, leave: str, named: str) -> None:
    await agent.run("kept = 'kept'")
    assert (await failed(agent, f"import sys\n{leave}"))[1] == named
    await goes_on(agent)


async def test_asyncio_run_is_one_short_error_that_names_await(agent: Agent) -> None:
    shown, named = await failed(agent, "import asyncio\nasync def work(): return 5\nasyncio.run(work())")
    assert named.startswith("RuntimeError: asyncio.run() cannot be used in a cell")
    assert "`await work()`" in named
    assert len(shown.split("\n")) < 10
    assert (await printed(agent, "await work()")).endswith(": 5")


COMMANDS = {
    "a command that reads": ("!cat\nprint('on')", ["on"]),
    "a child that reads": ("import subprocess; subprocess.run(['cat']); print('on')", ["on"]),
    "a background process of bash": ("%%bash\nsleep 60 &\necho on", ["on"]),
    "an exit code": ("!exit 3\nprint('on')", ["[exit code 3: exit 3]", "on"]),
    "an exit code after half a line": ("!printf half; exit 3", ["half", "[exit code 3: printf half; exit 3]"]),
    "an exit code of a captured command": (
        "got = !echo x; exit 4\nprint(got)",
        ["[exit code 4: echo x; exit 4]", "['x']"],
    ),
}


@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.case("M10", "R10")
async def test_a_command_neither_hangs_nor_fails_silently(agent: Agent, kind: str) -> None:
    source, lines = COMMANDS[kind]
    assert (await printed(agent, source)).split("\n") == lines
    assert ": completed\n" in await agent.text("execution_status")


async def test_a_failing_test_run_is_told_with_its_exit_code(agent: Agent, common_place: Place) -> None:
    common_place.workspace.joinpath("test_failing.py").write_text("def test_it(): assert 0")
    command = "python -m pytest -q -p no:cacheprovider test_failing.py"
    lines = (await printed(agent, f"%%loommux --wait 60 --silence 60\n!{command}")).split("\n")
    assert lines[-1] == f"[exit code 1: {command}]"
    assert "FAILED test_failing.py::test_it - assert 0" in lines
    assert (await lines_of(agent, stream="stderr")) == [lines[-1]]


@pytest.mark.case("R10")
async def test_commands_have_no_terminal_and_no_editor(agent: Agent, common_place: Place) -> None:
    source = (
        "!git init -q r && cd r && git config user.name a && git config user.email b"
        " && git commit -q --allow-empty -m x && git commit -q --amend --allow-empty && git log --format=%s\n"
        "!rm -rf r\n!python -c 'input()' 2>&1 | tail -1\n!echo x > /dev/tty\n!echo $PAGER $GIT_EDITOR $TERM\n"
    )
    lines = (await printed(agent, source)).split("\n")
    assert lines[:2] == ["x", "EOFError: EOF when reading a line"]
    assert "/dev/tty" in lines[2]
    assert lines[-1] == "cat true dumb"


async def test_a_script_that_fails_is_an_error_as_in_ipython(agent: Agent) -> None:
    shown, named = await failed(agent, "%%bash\necho said\nfalse")
    assert named.startswith("CalledProcessError: ")
    assert shown.startswith("said\n")
    assert "loommux" not in shown


TAKEN_AWAY = {
    "closing stdout": ("sys.stdout.close()", "sys.stdout was closed"),
    "replacing both streams": (
        "sys.stdout, sys.stderr = io.StringIO(), None", "sys.stdout was replaced, sys.stderr was replaced"
    ),
    "closing every descriptor": (
        "[os.close(fd) for fd in (0, 1, 2)];", "fd 1 was closed, fd 2 was closed, fd 0 was closed"
    ),
    "redirecting a descriptor": ("os.dup2(os.open(os.devnull, os.O_WRONLY), 1);", "fd 1 was redirected"),
}  # fmt: skip


@pytest.mark.parametrize("kind", TAKEN_AWAY)
async def test_taking_the_streams_away_is_told_and_undone(agent: Agent, kind: str) -> None:
    await agent.run("kept = 'kept'")
    source, said = TAKEN_AWAY[kind]
    assert notices(await agent.run(f"import io, os, sys\n{source}")) == [f"{said}; put back for later cells"]
    await goes_on(agent)


ERRORS = {
    "endless recursion": (
        "def f(n): return g(n)\ndef g(n): return f(n + 1)\nf(0)", "RecursionError: maximum recursion"
    ),
    "400 chained exceptions": (
        "error = None\nfor i in range(400):\n    try: raise RuntimeError(f'chained {i}') from error\n"
        "    except RuntimeError as e: error = e\nraise error",
        "RuntimeError: chained 399",
    ),
    "a group": (
        "raise ExceptionGroup('group', [ValueError('a'), ExceptionGroup('inner', [KeyError('b')])])",
        "ExceptionGroup: group (2 sub-exceptions)",
    ),
    "a text that cannot be had": (
        "class Odd(Exception):\n    def __str__(self): raise ValueError\n    __repr__ = __str__\nraise Odd",
        "Odd: <exception str() failed>",
    ),
    "a syntax error": ("x = (", "SyntaxError: "),
    "an indentation error": ("  x = 1\n y = 2", "IndentationError: "),
    "a BaseException": ("class Odd(BaseException): pass\nraise Odd('base')", "Odd: base"),
    "a cancelled error": ("import asyncio\nraise asyncio.CancelledError('c')", "CancelledError: c"),
    "an error after an await": ("import asyncio\nawait asyncio.sleep(0)\n1/0", "ZeroDivisionError: division by zero"),
    "an error of a metaclass": (
        "class Meta(type):\n    @property\n    def __name__(cls): raise RuntimeError('no name')\n"
        "class Odd(Exception, metaclass=Meta): pass\nraise Odd",
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.case("M17")
async def test_every_error_is_complete_bounded_and_soon(agent: Agent, kind: str) -> None:
    await agent.run("kept = 'kept'")
    source, wanted = ERRORS[kind]
    began = time.monotonic()
    shown, named = await failed(agent, source)
    assert time.monotonic() - began < SOON
    assert named.startswith(wanted)
    assert named.split(":")[0] in shown
    assert re.search(r"Cell In\[\d+\], line \d+", shown)
    assert len(shown.split("\n")) <= 200
    assert "\x1b" not in shown
    await goes_on(agent)


@pytest.mark.case("M10")
async def test_members_of_a_group_are_named(agent: Agent) -> None:
    shown, _ = await failed(agent, ERRORS["a group"][0])
    assert ["ValueError: a" in shown, "KeyError: 'b'" in shown, "ExceptionGroup: inner" in shown] == [True] * 3


@pytest.mark.case("M17")
async def test_a_long_traceback_counts_the_frames_left_out_and_is_readable_in_full(agent: Agent) -> None:
    shown, _ = await failed(agent, ERRORS["endless recursion"][0])
    found = re.search(r"\n\[(\d+) frames left out \((\d+) lines\); the traceback stream has them\]\n", shown)
    assert found
    full = await lines_of(agent, stream="traceback")
    assert len(full) == len(shown.split("\n")) - 3 + int(found[2])
    assert sum("Cell In[" in line for line in full) == sum("Cell In[" in line for line in shown.split("\n")) + int(
        found[1]
    )


async def test_a_traceback_counts_lines_as_the_cell_was_sent(agent: Agent) -> None:
    shown, _ = await failed(agent, "\n%%loommux --wait 10\n# a comment\n\n1/0")
    assert "----> 5 1/0" in shown


async def test_an_object_whose_repr_raises_is_no_end_of_anything(agent: Agent) -> None:
    source = "class Odd:\n    def __repr__(self): raise ValueError('no repr')\nOdd()"
    shown = await printed(agent, source)
    assert shown.endswith("ValueError: no repr")
    assert await printed(agent, "print('on')") == "on"


async def test_an_object_whose_repr_never_returns_can_be_interrupted(agent: Agent) -> None:
    source = "%%loommux --silence 0.3\nclass Odd:\n    def __repr__(self):\n        while True: pass\nOdd()"
    assert "Running" in await agent.run(source)
    assert (await agent.text("interrupt")).startswith("interrupted: ")
    assert await printed(agent, "print('on')") == "on"


async def test_a_widget_that_never_says_what_it_shows_can_be_interrupted(agent: Agent) -> None:
    source = (
        "%%loommux --silence 1\nimport ipywidgets, time\nclass Odd(ipywidgets.IntProgress):\n    def __repr__(self):\n"
        "        if self.value == 1: time.sleep(0.1)\n        while self.value == 2: pass\n        return 'odd'\n"
        "odd = Odd(); display(odd)\nodd.value = 1; odd.value = 2"
    )
    assert "Running" in await agent.run(source)
    assert (await agent.text("interrupt")).startswith("interrupted: ")
    assert await printed(agent, "odd.value = 3; print('on')") == "on"


@pytest.mark.case("P03")
async def test_values_that_are_let_go_of_are_let_go_of_by_the_kernel(agent: Agent) -> None:
    rss = "import os, psutil; gone = print(psutil.Process().memory_info().rss)"
    before = int(await printed(agent, rss))
    for _ in range(10):
        await agent.run("big = b'x' * 50_000_000; big[:3]")
    await agent.run("del big")
    assert int(await printed(agent, rss)) - before < 60e6
