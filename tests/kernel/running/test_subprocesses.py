"""`!cmd`, `x = !cmd`, `%%bash` and their like: no terminal, no stdin, exit codes told."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from loommux_kernel.running import subprocesses
from loommux_kernel.shared.protocol import State, Stream
from tests.kernel.kernel_process import Client, KernelProcess
from tests.kernel.reading import text


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("!exit 3", "[exit code 3: exit 3]\n"),
        ("!sh -c 'exit 4'", "[exit code 4: sh -c 'exit 4']\n"),
        ("!kill -9 $$", "[ended by SIGKILL: kill -9 $$]\n"),
        ("!!exit 5", "[exit code 5: exit 5]\n"),
        ("x = !exit 6", "[exit code 6: exit 6]\n"),
        ("%sx exit 7", "[exit code 7: exit 7]\n"),
        ("get_ipython().system_raw('exit 8')", "[exit code 8: exit 8]\n"),
        ("!true", ""),
    ],
)
def test_a_command_that_fails_says_so_on_stderr_and_leaves_the_cell_alone(
    kernel: KernelProcess, server: Client, code: str, told: str
) -> None:
    reply = server.run(code)
    assert reply.state is State.COMPLETED
    assert text(kernel, reply.serial, Stream.STDERR) == told


@pytest.mark.parametrize("command", ["printf unfinished; exit 1", "printf unfinished; sleep 0.2; exit 1"])
def test_what_is_said_of_a_failure_begins_a_line_of_its_own(
    kernel: KernelProcess, server: Client, command: str
) -> None:
    reply = server.run(f"!{command}")
    assert text(kernel, reply.serial) == f"unfinished\n[exit code 1: {command}]\n"


def test_the_exit_code_is_kept_as_ipython_keeps_it(kernel: KernelProcess, server: Client) -> None:
    server.run("!exit 3")
    first = server.run("_exit_code")
    server.run("!kill -9 $$")
    second = server.run("_exit_code")
    server.run("!sh -c 'kill -15 $$'; exit 143")
    third = server.run("_exit_code")
    assert [text(kernel, r.serial).split(": ")[1] for r in (first, second, third)] == ["3\n", "-9\n", "-15\n"]


def test_commands_have_no_stdin_and_no_terminal(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("!cat; test -t 0 || test -t 1 || test -t 2 || echo no terminal")
    assert text(kernel, reply.serial) == "no terminal\n"


def test_variables_are_expanded_in_commands(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("word = 'hello'\n!echo {word} $word\nlines = !echo {word}; echo two\nprint(lines, lines.s)")
    assert text(kernel, reply.serial) == "hello hello\n['hello', 'two'] hello two\n"


@pytest.mark.parametrize(
    "code", ["!sleep 60 & echo $!", "x = !sleep 60 & echo $!\nprint(*x)", "%%bash\nsleep 60 &\necho $!"]
)
def test_a_process_in_the_background_does_not_hold_its_cell(kernel: KernelProcess, server: Client, code: str) -> None:
    started = time.monotonic()
    reply = server.run(code)
    assert time.monotonic() - started < 20
    os.kill(int(text(kernel, reply.serial)), signal.SIGKILL)


def test_a_scripts_commands_have_no_stdin(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("%%bash\ncat\nread line || echo nothing to read\necho end")
    assert text(kernel, reply.serial) == "nothing to read\nend\n"


def test_a_script_that_fails_raises_as_ipython_does(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("%%bash\necho before\nexit 3")
    assert (reply.state, reply.ename) == (State.ERROR, "CalledProcessError")
    assert reply.evalue == "Command 'b'echo before\\nexit 3\\n'' returned non-zero exit status 3."
    assert text(kernel, reply.serial).startswith("before\n")
    assert server.run("%%bash --no-raise-error\nexit 3").state is State.COMPLETED


def test_scripts_take_options_variables_and_other_programs(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("%%bash --out out --err err\necho to out\necho to err >&2")
    assert text(kernel, reply.serial) == ""
    assert text(kernel, server.run("print(repr(out), repr(err))").serial) == "'to out\\n' 'to err\\n'\n"
    assert text(kernel, server.run("%%script python3 -u -\nprint('from a program')").serial) == "from a program\n"
    assert text(kernel, server.run("%%bash -s one two\necho $2").serial) == "two\n"
    assert text(kernel, server.run("%%sh -e\nfalse\necho never", timeout=60).serial).startswith("----")
    assert text(kernel, server.run("%%script nosuchprogram\nx").serial) == "Couldn't find program: 'nosuchprogram'\n"


def test_scripts_in_the_background_stay_ipythons(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("%%bash --bg --out pipe\necho hidden")
    assert text(kernel, reply.serial) == ""
    assert text(kernel, server.run("print(await pipe.read())").serial) == "b'hidden\\n'\n"


def test_a_long_script_is_read_from_stdin(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("%%bash\n" + "# padding padding padding\n" * 6000 + "echo the end")
    assert text(kernel, reply.serial) == "the end\n"


def test_output_of_a_command_is_readable_while_it_runs(kernel: KernelProcess, server: Client) -> None:
    request = server.submit("!echo first; sleep 60")
    until = time.monotonic() + 20
    while text(kernel, server.seen + 1) != "first\n":
        assert time.monotonic() < until
        time.sleep(0.02)
    server.ask("interrupt")
    assert server.reply(request).state is State.INTERRUPTED


def test_an_interrupted_command_has_ended_before_its_cell(kernel: KernelProcess, server: Client) -> None:
    request = server.submit("!trap '' INT; echo $$; sleep 61; sleep 62")
    until = time.monotonic() + 20
    while not (found := text(kernel, server.seen + 1)):
        assert time.monotonic() < until
        time.sleep(0.02)
    server.ask("interrupt")
    assert server.reply(request, 30).state is State.INTERRUPTED
    with pytest.raises(ProcessLookupError):
        os.kill(int(found), 0)


def test_an_exit_code_is_worded_with_its_signal() -> None:
    assert subprocesses.words(0, "true") is None
    assert subprocesses.words(3, "pytest  -q\n") == "[exit code 3: pytest -q]"
    assert subprocesses.words(-11, "crash") == "[ended by SIGSEGV: crash]"
    assert subprocesses.words(137, "oom") == "[exit code 137 (SIGKILL): oom]"
    assert subprocesses.words(-99, "odd") == "[exit code -99: odd]"
    assert subprocesses.words(1, "x" * 300) == f"[exit code 1: {'x' * 200}…]"


def test_an_interrupt_ends_what_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocesses, "GRACE", (0.05, 0.05, 10.0))
    real = subprocess.Popen.wait
    calls: list[int] = []

    def wait(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        calls.append(self.pid)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return real(self, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        subprocesses.run(["sh", "-c", "trap '' INT TERM; while :; do sleep 0.01; done"])
    with pytest.raises(ProcessLookupError):
        os.kill(calls[0], 0)
