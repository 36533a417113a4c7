"""Whatever people put around their cells: a cell ends as its own code did, and the cells after it run."""

from __future__ import annotations

import pytest

from loommux_kernel.shared.protocol import ExecutionStarted, NoticeGiven, State
from tests.kernel.kernel_process import Client, KernelProcess, Launch

#: What a hook can raise.
RAISED = {
    "SystemExit": "raise SystemExit(3)",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "ValueError": "raise ValueError('no')",
    "BaseException": "raise BaseException('no')",
}
AROUND = """
def hook(*given):
    {raises}
shell = get_ipython()
shell.events.register({event!r}, hook)"""
#: A cell of each kind, and how it ends.
CELLS = {
    "6 * 7": (State.COMPLETED, None),
    "import asyncio\nawait asyncio.sleep(0)\n6 * 7": (State.COMPLETED, None),
    "1 / 0": (State.ERROR, "ZeroDivisionError"),
    "import asyncio\nawait asyncio.sleep(0)\n1 / 0": (State.ERROR, "ZeroDivisionError"),
    "1 +": (State.ERROR, "SyntaxError"),
    "raise SystemExit(1)": (State.ERROR, "SystemExit"),
}


def notices(server: Client, serial: int) -> list[str]:
    """What the agent is told beside an execution's output."""
    server.take_published(0.05)
    return [event.text for event in server.events if isinstance(event, NoticeGiven) and event.serial == serial]


@pytest.mark.parametrize("event", ["pre_execute", "pre_run_cell", "post_execute", "post_run_cell"])
@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.case("X21")
def test_a_hook_that_fails_is_one_notice_and_its_cell_ends_as_its_code_did(
    server: Client, event: str, raised: str
) -> None:
    put = server.run(AROUND.format(raises=RAISED[raised], event=event))
    assert put.state is State.COMPLETED
    try:
        for source, (state, ename) in CELLS.items():
            reply = server.run(source)
            assert (reply.state, reply.ename) == (state, ename)
            assert "hook" not in (reply.body or "") and "callback" not in (reply.body or "")
            if state is State.COMPLETED:
                assert reply.body == f"Out[{reply.number}]: 42\n"
            said = notices(server, reply.serial)
            assert len(said) == 1, said
            assert said[0].startswith(f"the {event} hook hook (In [{put.number}], line 3) ")
            assert ("was interrupted" if raised == "KeyboardInterrupt" else f"failed: {raised}") in said[0]
    finally:
        assert server.run(f"shell.events.unregister({event!r}, hook)").state is State.COMPLETED
    last = server.run("'kept'")
    assert (last.state, notices(server, last.serial)) == (State.COMPLETED, [])


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("place", ["input_transformers_cleanup", "input_transformers_post"])
@pytest.mark.case("X21")
def test_a_transformer_of_input_that_fails_is_left_out_and_told(server: Client, place: str, raised: str) -> None:
    put = server.run(
        f"def fails(lines):\n    {RAISED[raised]}\n"
        "def works(lines):\n    return [line.replace('six', '6') for line in lines]\n"
        f"transformers = get_ipython().{place}\nbefore = list(transformers)\ntransformers += [fails, works]"
    )
    assert put.state is State.COMPLETED
    reply = server.run("six * 7")
    assert reply.body == f"Out[{reply.number}]: 42\n"
    [said] = notices(server, reply.serial)
    assert said.startswith(f"the input transformer fails (In [{put.number}], line 2) ")
    assert server.run("assert transformers[-2:] == [fails, works]\ntransformers[:] = before").state is State.COMPLETED
    last = server.run("'kept'")
    assert (last.state, notices(server, last.serial)) == (State.COMPLETED, [])


@pytest.mark.case("X21")
def test_a_transformer_may_refuse_a_cell_and_may_not_return_anything_else(server: Client) -> None:
    server.run(
        "def refuses(lines):\n    if 'forbidden' in lines[0]:\n        raise SyntaxError('no')\n    return lines\n"
        "transformers = get_ipython().input_transformers_post\ntransformers.append(refuses)"
    )
    assert server.run("forbidden = 1").ename == "SyntaxError"
    assert server.run("forbidden").ename == "SyntaxError"
    assert server.run("x = 1").state is State.COMPLETED
    server.run("transformers[:] = [lambda lines: None]")
    reply = server.run("%time 1")
    assert reply.state is State.COMPLETED
    [said] = notices(server, reply.serial)
    assert said == "the input transformer <lambda> failed: TypeError: it must return a list of lines, not NoneType"
    assert server.run("transformers.clear()").state is State.COMPLETED


@pytest.mark.case("X21")
def test_a_transformer_of_the_syntax_tree_that_fails_is_taken_out_and_told(server: Client) -> None:
    put = server.run(
        "import ast\nclass Bad(ast.NodeTransformer):\n    def visit_Constant(self, n):\n        raise SystemExit(3)\n"
        "get_ipython().ast_transformers.append(Bad())"
    )
    reply = server.run("5")
    assert reply.body == f"Out[{reply.number}]: 5\n"
    assert notices(server, reply.serial) == [
        f"the AST transformer, taken out now, Bad (In [{put.number}], line 4) failed: SystemExit: 3"
    ]
    last = server.run("assert get_ipython().ast_transformers == []")
    assert (last.state, notices(server, last.serial)) == (State.COMPLETED, [])


@pytest.mark.case("X21")
def test_an_interrupt_ends_a_hook_that_hangs_and_the_cell_that_waits_behind_it(server: Client) -> None:
    server.run(
        "import threading\nhung = [True]\n"
        "def hook(info):\n    if hung and hung.pop():\n        threading.Event().wait()\n"
        "get_ipython().events.register('pre_run_cell', hook)"
    )
    request = server.submit("ran = True")
    serial = server.wait_event(ExecutionStarted, source="ran = True").serial
    server.ask("interrupt", serial=serial)
    assert server.reply(request).state is State.INTERRUPTED
    assert server.run("get_ipython().events.unregister('pre_run_cell', hook)\nran").ename == "NameError"


#: What a cell does to the process, and how the cell itself ends: then three ordinary cells must be as ever.
ACTS = {
    "sys.displayhook": ("sys.displayhook = lambda value: None", State.COMPLETED),
    "sys.excepthook": ("sys.excepthook = sys.unraisablehook = None", State.COMPLETED),
    "threading.excepthook": ("import threading; threading.excepthook = None", State.COMPLETED),
    "a low recursion limit": ("sys.setrecursionlimit(50)", State.COMPLETED),
    "a tracer that raises": ("sys.settrace(lambda *given: 1 / 0)", State.ERROR),
    "a profiler that raises": ("sys.setprofile(lambda *given: 1 / 0)", State.ERROR),
    "a tracer that stays": ("sys.settrace(lambda *given: None)", State.COMPLETED),
    "threads with a profiler": ("import threading; threading.setprofile(lambda *given: 1 / 0)", State.COMPLETED),
    "warnings as errors": ("import warnings; warnings.simplefilter('error')", State.COMPLETED),
    "a directory that is gone": (
        "import os, tempfile; place = tempfile.mkdtemp(); os.chdir(place); os.rmdir(place)",
        State.COMPLETED,
    ),
    "another locale": ("import locale; locale.setlocale(locale.LC_ALL, 'C')", State.COMPLETED),
    "a collector's callback that raises": (
        "import gc; gc.callbacks.append(lambda *given: 1 / 0); gc.collect(); gc.callbacks.pop()",
        State.COMPLETED,
    ),
    "no open": ("import builtins; builtins.open = None", State.COMPLETED),
    "names over ours": ("get_ipython = exit = loommux = In = Out = _ = None; from os import *", State.COMPLETED),
    "no builtins": ("del __builtins__", State.COMPLETED),
    "no path": ("sys.path[:] = []; sys.meta_path.clear()", State.COMPLETED),
    "no environment": ("import os; os.environ.clear()", State.COMPLETED),
    "streams and descriptors": ("import os; sys.stdout = sys.stderr = None; os.close(1); os.close(2)", State.COMPLETED),
    "few descriptors": (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 1024))",
        State.COMPLETED,
    ),
    "a rare switch of threads": ("sys.setswitchinterval(100)", State.COMPLETED),
    "no event loop": ("import asyncio; asyncio.set_event_loop(None)", State.COMPLETED),
    "a stopped loop": ("import asyncio; asyncio.get_running_loop().stop()", State.COMPLETED),
    "a task factory that raises": (
        "import asyncio; asyncio.get_running_loop().set_task_factory(lambda *given, **more: 1 / 0)",
        State.COMPLETED,
    ),
    "a callback that exits": ("import asyncio; asyncio.get_running_loop().call_soon(sys.exit)", State.COMPLETED),
    "a task that exits": (
        "import asyncio\nasync def leave():\n    sys.exit(3)\ntask = asyncio.ensure_future(leave())",
        State.COMPLETED,
    ),
    "no logging": ("import logging; logging.shutdown(); logging.root.handlers.clear()", State.COMPLETED),
    "no exit handlers": ("import atexit; atexit._clear()", State.COMPLETED),
    "no clocks": ("import time; time.time = time.monotonic = time.sleep = None", State.COMPLETED),
    "a repr that exits": ("class A:\n    def __repr__(self): raise SystemExit(4)\nA()", State.ERROR),
    "a repr that interrupts": ("class A:\n    def _repr_html_(self): raise KeyboardInterrupt\nA()", State.ERROR),
    "a finaliser that exits": ("class A:\n    def __del__(self): raise SystemExit(4)\nA(); None", State.COMPLETED),
    "a handler of exceptions that exits": (
        "def handler(*given, **more):\n    raise SystemExit(4)\n"
        "get_ipython().set_custom_exc((ZeroDivisionError,), handler)\n1 / 0",
        State.ERROR,
    ),
    "a child that exits": (
        "import os\nchild = os.fork()\nif child == 0:\n    raise SystemExit(3)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3",
        State.COMPLETED,
    ),
    "a child that exits after an await": (
        "import asyncio, os\nawait asyncio.sleep(0)\nchild = os.fork()\nif child == 0:\n    raise SystemExit(3)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3",
        State.COMPLETED,
    ),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.case("X21")
def test_whatever_a_cell_does_to_the_process_it_ends_as_it_did_and_later_cells_are_as_ever(
    launch: Launch, act: str
) -> None:
    source, state = ACTS[act]
    server = launch().server()
    server.run("import sys, asyncio")
    assert server.run(source).state is state
    shown = server.run("6 * 7")
    assert (shown.state, shown.body) == (State.COMPLETED, f"Out[{shown.number}]: 42\n")
    assert server.run("import asyncio\nawait asyncio.sleep(0.001)").state is State.COMPLETED
    failed = server.run("1 / 0")
    assert (failed.state, failed.ename) == (State.ERROR, "ZeroDivisionError")
    assert server.run("import sys\nsys.stdout.write('kept\\n'); None").body == "kept\n"


@pytest.mark.case("X21")
def test_what_was_put_back_for_later_cells_is_told(server: Client, kernel: KernelProcess) -> None:
    reply = server.run("import sys\nsys.setrecursionlimit(60)")
    assert notices(server, reply.serial) == ["the recursion limit of 60 is too low here; 200 for later cells"]
    reply = server.run("sys.displayhook = print\n5")
    assert reply.body == "5\n"
    assert notices(server, reply.serial) == ["sys.displayhook was replaced; put back for later cells"]
    reply = server.run("sys.setrecursionlimit(1000)\n5")
    assert (reply.body, notices(server, reply.serial)) == (f"Out[{reply.number}]: 5\n", [])
