"""What a cell of the server cannot have: each refused at once, with a reason and a way out."""

from __future__ import annotations

import pytest

from loommux_kernel.shared.protocol import State, Stream
from tests.kernel.kernel_process import Client, KernelProcess
from tests.kernel.reading import text

#: Code that waits for somebody to type: never hangs, never passes unnoticed.
PROMPTS = {
    "input": "input('name? ')",
    "getpass": "import getpass\ngetpass.getpass()",
    "breakpoint": "breakpoint()",
    "breakpoint at the end of a function": "def f():\n    breakpoint()\nf()",
    "pdb.set_trace": "import pdb\npdb.set_trace()",
    "IPython's set_trace": "from IPython.core.debugger import set_trace\nset_trace()",
    "pdb.run": "import pdb\npdb.run('1 + 1')",
    "pdb.post_mortem": (
        "import pdb\ntry:\n    1 / 0\nexcept ZeroDivisionError as e:\n    tb = e.__traceback__\npdb.post_mortem(tb)"
    ),
    "%debug": "%debug",
    "%run -d": "open('script.py', 'w').write('x = 1')\n%run -d script.py",
    "%%debug": "%%debug\n1 + 1",
}


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_prompt_that_nobody_can_answer_is_an_error_that_says_what_to_do(
    kernel: KernelProcess, server: Client, prompt: str
) -> None:
    server.run("1 / 0")  # something for %debug to look at
    reply = server.run(f"{PROMPTS[prompt]}\n")
    assert (reply.state, reply.ename) == (State.ERROR, "StdinNotImplementedError")
    assert reply.evalue is not None
    assert "this cell has no stdin" in reply.evalue
    assert ". Put the value into the code" in reply.evalue or ". Print what you want to see" in reply.evalue
    found = text(kernel, reply.serial, Stream.TRACEBACK)
    assert f"Cell In[{reply.number}], line " in found
    assert "loommux_kernel" not in found
    assert text(kernel, server.run("'kept'").serial).endswith("'kept'\n")


def test_reading_stdin_finds_its_end(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("import sys\nprint(repr(sys.stdin.readline()), sys.stdin.read() == '')")
    assert text(kernel, reply.serial) == "'' True\n"


def test_a_debugger_with_a_stdin_of_its_own_may_run(kernel: KernelProcess, server: Client) -> None:
    reply = server.run(
        "import io, pdb\n"
        "d = pdb.Pdb(stdin=io.StringIO('p 40 + 2\\nc\\n'), stdout=(said := io.StringIO()))\n"
        "d.set_trace()\nx = 1\nprint('42' in said.getvalue())"
    )
    assert text(kernel, reply.serial).endswith("True\n")


def test_a_foreign_client_answers_its_own_prompts(kernel: KernelProcess, server: Client) -> None:
    client = kernel.foreign()
    request = client.execute("name = input('name? ')\nprint('hello', name)", allow_stdin=True)
    asked = client.receive(client.stdin)
    assert asked["content"]["prompt"] == "name? "
    client.send(client.stdin, "input_reply", {"value": "you"})
    assert client.answer(client.shell, request)["content"]["status"] == "ok"
    assert text(kernel, server.ask("status")["last_serial"]) == "hello you\n"


@pytest.mark.parametrize("prompt", ["pdb.set_trace", "breakpoint", "pdb.run", "IPython's set_trace"])
def test_an_interrupt_ends_a_foreign_clients_debugger(kernel: KernelProcess, server: Client, prompt: str) -> None:
    """Python's own would ask again, for as long as nobody quits it: its client may be gone."""
    client = kernel.foreign()
    request = client.execute(PROMPTS[prompt] + "\n", allow_stdin=True)
    client.receive(client.stdin)
    server.ask("interrupt", serial=server.ask("status")["serial"])
    reply = client.answer(client.shell, request)["content"]
    assert (reply["status"], reply.get("ename")) == ("error", "KeyboardInterrupt")
    assert server.run("1 + 1").state is State.COMPLETED


@pytest.mark.parametrize("code", ["exit()", "quit()", "exit", "quit", "exit(3)", "for i in range(3):\n    exit()"])
def test_exit_ends_the_cell_and_not_the_kernel(kernel: KernelProcess, server: Client, code: str) -> None:
    server.run("kept = 'kept'")
    reply = server.run(code)
    assert (reply.state, reply.ename) == (State.ERROR, "SystemExit")
    assert reply.evalue is not None
    assert "use `restart`" in reply.evalue
    assert text(kernel, server.run("print(kept)").serial) == "kept\n"


def test_exit_without_a_call_says_what_it_does(kernel: KernelProcess, server: Client) -> None:
    assert "to replace the process, use `restart`" in text(kernel, server.run("1\nexit").serial)


def test_exit_in_a_foreign_cell_lets_the_client_close_and_the_kernel_live(
    kernel: KernelProcess, server: Client
) -> None:
    content = kernel.foreign().run_foreign("exit")
    assert content["status"] == "ok"
    assert [(p["source"], p["keepkernel"]) for p in content["payload"]] == [("ask_exit", True)]
    server.seen = server.ask("status")["last_serial"]
    assert text(kernel, server.run("print('alive')").serial) == "alive\n"


@pytest.mark.parametrize(("code", "evalue"), [("sys.exit(3)", "3"), ("sys.exit()", ""), ("raise SystemExit('x')", "x")])
def test_sys_exit_is_an_error_of_the_cell(kernel: KernelProcess, server: Client, code: str, evalue: str) -> None:
    reply = server.run(f"import sys\n{code}")
    assert (reply.state, reply.ename, reply.evalue) == (State.ERROR, "SystemExit", evalue)
    found = text(kernel, reply.serial)
    assert f"Cell In[{reply.number}], line 2" in found
    assert "To exit" not in found


def test_asyncio_run_is_one_short_error_that_says_what_to_write(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("import asyncio\nasync def fetch():\n    pass\nasyncio.run(fetch())")
    assert (reply.state, reply.ename) == (State.ERROR, "RuntimeError")
    assert reply.evalue is not None
    assert reply.evalue.endswith("Write `await fetch()` instead.")
    found = text(kernel, reply.serial)
    assert "never awaited" not in found
    assert len(found.splitlines()) < 15
    threaded = server.run(
        "import threading\nasync def say():\n    print('ran')\n"
        "t = threading.Thread(target=lambda: asyncio.run(say())); t.start(); t.join()"
    )
    assert text(kernel, threaded.serial) == "ran\n"


def test_what_ipython_pages_is_printed(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("def documented():\n    'What it does.'\ndocumented?")
    found = text(kernel, reply.serial, Stream.STDOUT)
    assert "What it does." in found
    assert "\x1b" not in found
    assert "What it does." in text(kernel, server.run("%pdoc documented").serial)


def test_a_foreign_client_pages_for_itself_and_the_record_has_it_too(kernel: KernelProcess, server: Client) -> None:
    server.run("def documented():\n    'What it does.'")
    content = kernel.foreign().run_foreign("documented?")
    assert [p["source"] for p in content["payload"]] == ["page"]
    server.seen = server.ask("status")["last_serial"]
    server.ask("flush")
    assert "What it does." in text(kernel, server.seen, Stream.STDOUT)


@pytest.mark.case("N22")
def test_input_reads_what_a_cell_has_put_in_place_of_stdin(kernel: KernelProcess, server: Client) -> None:
    source = "import io, sys\nsys.stdin = io.StringIO('5\\n3\\n7\\n')\nprint(int(input('a? ')) + int(input()))"
    assert server.run(source).body == "a? 8\n"
    assert server.run("print(input())").body == "7\n"  # it stays, as in Python
    assert server.run("input()").ename == "EOFError"
    assert kernel.foreign().run_foreign("input()", allow_stdin=True)["ename"] == "EOFError"
    server.seen = server.ask("status")["last_serial"]
    assert server.run("sys.stdin = None\ninput()").ename == "RuntimeError"
    assert server.run("sys.stdin = sys.__stdin__\ninput()").ename == "StdinNotImplementedError"


@pytest.mark.case("N22")
def test_what_a_cell_puts_in_place_of_input_and_its_like_stays(server: Client) -> None:
    replaced = (
        "import builtins, getpass, sys\nbefore = input, getpass.getpass, print, sys.breakpointhook\n"
        "builtins.input = lambda prompt='': 'yes'\ngetpass.getpass = lambda *given: 'secret'\n"
        "sys.breakpointhook = lambda *given: 'stopped'\n"
        "builtins.print = lambda *given, **more: before[2]('>', *given, **more)"
    )
    assert server.run(replaced).state is State.COMPLETED
    asked = "assert (input(), getpass.getpass(), breakpoint()) == ('yes', 'secret', 'stopped')\nprint('x')"
    for _ in range(2):
        assert server.run(asked).body == "> x\n"
    server.run("builtins.input, getpass.getpass, builtins.print, sys.breakpointhook = before")
    assert server.run("print('x')\ninput()").ename == "StdinNotImplementedError"


@pytest.mark.case("N22")
def test_a_patch_within_a_cell_ends_with_it(server: Client) -> None:
    source = "from unittest import mock\nwith mock.patch('builtins.input', return_value='4'):\n    print(input())"
    assert server.run(source).body == "4\n"
    assert server.run("input()").ename == "StdinNotImplementedError"
