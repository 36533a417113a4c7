"""A cell's way through a real kernel process: number, state, end, reply and events."""

from __future__ import annotations

from pathlib import Path

import pytest

from loommux_kernel.shared.protocol import ExecutionEnded, ExecutionStarted, NoticeGiven, OutputArrived, Reply, State
from tests.kernel.kernel_process import Client, KernelProcess, Launch


def test_a_cell_runs_and_its_reply_tells_how_it_ended(server: Client) -> None:
    reply = server.run("print('hello')\n6 * 7")
    assert reply.state is State.COMPLETED
    assert reply.refused is None
    assert reply.ename is None
    assert reply.body == "hello\nOut[1]: 42\n"
    assert reply.started_at <= reply.completed_at


def test_variables_are_kept_between_cells(server: Client) -> None:
    server.run("kept = 41")
    assert server.run("assert kept + 1 == 42").state is State.COMPLETED


def test_the_number_is_ipythons(server: Client) -> None:
    number = server.run("'mark'").number
    assert number is not None
    reply = server.run(f"assert In[{number}] == _i{number} == \"'mark'\"; assert _ == 'mark'")
    assert (reply.state, reply.number) == (State.COMPLETED, number + 1)


@pytest.mark.parametrize("code", ["# only a comment", "syntax error here", "%no_such_magic", "1/0"])
def test_what_ipython_counts_takes_a_number(server: Client, code: str) -> None:
    first = server.run("1").number
    second = server.run(code).number
    assert first is not None
    assert second == first + 1
    assert server.run("1").number == first + 2


def test_events_tell_of_start_and_end_in_order_and_without_gaps(server: Client) -> None:
    code = "import time; print('told', flush=True); time.sleep(0.2)"
    reply = server.run(code)
    ended = server.wait_event(ExecutionEnded, serial=reply.serial)
    started = server.wait_event(ExecutionStarted, serial=reply.serial)
    assert (started.number, started.source) == (reply.number, code)
    assert (ended.state, ended.counts, ended.displays) == (reply.state, reply.counts, reply.displays)
    sequences = [e.sequence for e in server.events]
    assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))
    arrived = server.wait_event(OutputArrived, serial=reply.serial)
    assert started.sequence < arrived.sequence < ended.sequence


@pytest.mark.parametrize(
    ("code", "ename", "evalue"),
    [
        ("1/0", "ZeroDivisionError", "division by zero"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("import asyncio\nraise asyncio.CancelledError", "CancelledError", ""),
        ("await __import__('asyncio').sleep(0)\nraise ValueError('late')", "ValueError", "late"),
        ("raise ExceptionGroup('two', [ValueError('a'), TypeError('b')])", "ExceptionGroup", "two (2 sub-exceptions)"),
        ("class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E", "E", "<exception str() failed>"),
        (r"raise ValueError('\udce9')", "ValueError", r"\udce9"),
        ("class Bad:\n    def __repr__(self): raise OSError('no repr')\nBad()", "OSError", "no repr"),
        ("def f(:", "SyntaxError", None),
        ("  x = 1\n y = 2", "IndentationError", None),
        ("%no_such_magic", "UsageError", None),
        ("raise BaseException('base')", "BaseException", "base"),
        ("import sys; sys.exit(3)", "SystemExit", "3"),
    ],
)
def test_a_python_error_is_a_complete_error_record(server: Client, code: str, ename: str, evalue: str | None) -> None:
    reply = server.run(code)
    assert (reply.state, reply.ename) == (State.ERROR, ename)
    assert evalue is None or reply.evalue == evalue
    assert server.run("'next'").state is State.COMPLETED


def test_no_failure_of_an_earlier_cell_is_reported_again(server: Client) -> None:
    server.run("1/0")
    assert server.run("await __import__('asyncio').sleep(0)").state is State.COMPLETED
    server.run("class Bad:\n    def __repr__(self): raise OSError\nBad()")
    reply = server.run("await __import__('asyncio').sleep(0)\n1")
    assert (reply.state, reply.ename) == (State.COMPLETED, None)


def test_an_error_does_not_stop_the_servers_next_cell(server: Client) -> None:
    first = server.submit("raise ValueError")
    second = server.submit("'ran'", seen=server.seen + 1)
    assert server.reply(first).state is State.ERROR
    assert server.reply(second).state is State.COMPLETED


def test_two_submissions_that_saw_the_same_run_once(server: Client) -> None:
    seen = server.seen
    first, second = server.submit("1", seen=seen), server.submit("2", seen=seen)
    assert server.reply(first).refused is None
    assert server.reply(second) == Reply(refused="busy")


def test_a_withdrawn_submission_never_runs(server: Client) -> None:
    running = server.submit("import time; time.sleep(0.3); ran = 'first'")
    server.wait_event(ExecutionStarted, serial=server.seen + 1)
    waiting = server.submit("ran = 'second'", seen=server.seen + 1, name="mine")
    assert server.ask("withdraw", submission="mine")["result"] == "withdrawn"
    assert server.reply(running).refused is None
    assert server.reply(waiting) == Reply(refused="withdrawn")
    assert server.run("assert ran == 'first'").state is State.COMPLETED


def test_the_counter_goes_on_above_the_highest_number_and_says_so(server: Client) -> None:
    before = server.run("get_ipython().execution_count = 1").number
    assert before is not None
    reply = server.run("'after'")
    assert reply.number == before + 1
    notice = server.wait_event(NoticeGiven, serial=reply.serial)
    assert f"goes on at In [{before + 1}]" in notice.text
    assert server.run(f"assert In[{reply.number}] == \"'after'\"").state is State.COMPLETED


def test_reset_keeps_numbers_rising_and_gives_loommux_back(server: Client) -> None:
    before = server.run("%reset -f").number
    assert before is not None
    reply = server.run("loommux.self.name")
    assert (reply.state, reply.number) == (State.COMPLETED, before + 1)


def test_cells_that_run_cells_use_up_numbers(server: Client) -> None:
    first = server.run("get_ipython().run_cell('1', store_history=True)").number
    assert first is not None
    assert server.run("1").number == first + 2


def test_out_stays_empty_and_only_the_last_value_is_kept(server: Client) -> None:
    setup = "import gc, weakref\nclass Thing: pass\nthing = Thing()\nwatched = weakref.ref(thing)"
    assert server.run(setup).state is State.COMPLETED
    assert server.run("thing").counts.lines == 1
    assert server.run("assert _ is thing; assert Out == {}; del thing").state is State.COMPLETED
    assert server.run("'another value'").state is State.COMPLETED
    assert server.run("gc.collect(); assert watched() is None, gc.get_referrers(watched())").state is State.COMPLETED


def test_an_underscore_of_the_users_own_is_left_alone(server: Client) -> None:
    server.run("_ = 'mine'")
    server.run("5")
    assert server.run("assert _ == 'mine'; del _").state is State.COMPLETED
    server.run("6")
    assert server.run("assert _ == 6").state is State.COMPLETED


def test_context_variables_live_on_from_cell_to_cell(server: Client) -> None:
    server.run("from contextvars import ContextVar\nv = ContextVar('v')\nv.set(1)")
    server.run("await __import__('asyncio').sleep(0); v.set(2)")
    assert server.run("assert v.get() == 2").state is State.COMPLETED


def test_what_looks_like_a_prompt_reaches_the_interpreter_as_written(server: Client, kernel: KernelProcess) -> None:
    server.run("%%writefile doc.txt\n>>> 1 + 1\n2\nIn [1]: x")
    assert (kernel.workspace / "doc.txt").read_text() == ">>> 1 + 1\n2\nIn [1]: x\n"


def test_nothing_of_the_users_ipython_is_read_or_written(launch: Launch, tmp_path: Path) -> None:
    profile = tmp_path / "ipython" / "profile_default"
    (profile / "startup").mkdir(parents=True)
    (profile / "startup" / "00.py").write_text("from_profile = True")
    (profile / "ipython_config.py").write_text("c.InteractiveShell.ast_node_interactivity = 'all'")
    (tmp_path / "startup.py").write_text("from_pythonstartup = True")
    files = sorted(p for p in tmp_path.rglob("*"))
    kernel = launch(
        environment={"IPYTHONDIR": str(tmp_path / "ipython"), "PYTHONSTARTUP": str(tmp_path / "startup.py")}
    )
    server = kernel.server()
    code = (
        "assert 'from_profile' not in globals() and 'from_pythonstartup' not in globals()\n"
        "assert get_ipython().ast_node_interactivity == 'last_expr'\n"
        "assert get_ipython().colors == 'nocolor'"
    )
    assert server.run(code).state is State.COMPLETED
    assert sorted(p for p in tmp_path.rglob("*")) == files


def test_the_kernel_runs_without_a_debugger_or_threads_it_does_not_need(server: Client) -> None:
    code = (
        "import sys, threading\n"
        "assert 'debugpy' not in sys.modules and 'pydevd' not in sys.modules\n"
        "names = {t.name for t in threading.enumerate()}\n"
        "assert not {n for n in names if 'hell channel' in n or 'Poller' in n}, names"
    )
    assert server.run(code).state is State.COMPLETED


def test_a_replaced_or_closed_stdout_harms_no_later_cell(server: Client) -> None:
    server.run("import sys; sys.stdout = None")
    server.run("import sys; sys.stdout = object()")
    server.run("import sys; sys.stdout.close()")
    reply = server.run("print('still here')")
    assert reply.body == "still here\n"


def test_a_fault_of_the_kernel_itself_is_told_and_later_cells_run(launch: Launch) -> None:
    kernel = launch()
    server = kernel.server()
    code = "kernel = get_ipython().kernel\ndef broken(*_):\n    del kernel._finish\n    raise OSError('out of order')\n"
    reply = server.run(f"{code}kernel._finish = broken")
    assert (reply.state, reply.ename) == (State.ERROR, "KernelFault")
    assert "out of order" in (reply.evalue or "")
    assert "out of order" in kernel.log()
    assert server.run("'next'").state is State.COMPLETED


#: Our own work around a cell, by what it is and how it is reached from a cell.
BESIDE = {
    "its beginning": ("kernel", "_begin"),
    "the descriptors at its beginning": ("kernel.capture._descriptors", "begin"),
    "the note of its start": ("kernel.capture._starting", "note"),
    "the end of interrupts": ("kernel.interrupts", "disarm"),
    "the descriptors at its end": ("kernel.capture._descriptors", "end"),
    "the end of its record": ("kernel.capture", "finish"),
}
BREAK = """\
kernel = get_ipython().kernel
def broken(*_):
    del {0}.{1}
    raise {2}('out of order')
{0}.{1} = broken"""


@pytest.mark.case("N01", "N02")
@pytest.mark.parametrize("error", ["OSError", "MemoryError"])
@pytest.mark.parametrize("what", BESIDE)
def test_what_goes_wrong_beside_a_cell_decides_nothing_about_it(server: Client, what: str, error: str) -> None:
    at_end = what in ("the end of interrupts", "the descriptors at its end", "the end of its record")
    body = "ran = 'before'; raise ValueError('of the cell')"
    replies = [server.run(f"{BREAK.format(*BESIDE[what], error)}\n{body if at_end else ''}")]
    replies.append(server.run(body))
    meant = replies[0] if at_end else replies[1]
    assert (meant.state, meant.ename, meant.evalue) == (State.ERROR, "ValueError", "of the cell")
    assert (server.run("ran").body or "").endswith(" 'before'\n")
    assert server.ask("status")["serial"] is None


@pytest.mark.case("N01")
def test_an_interrupt_acts_though_the_process_table_cannot_be_read(server: Client) -> None:
    server.run(
        "offspring = get_ipython().kernel.interrupts.offspring\ntable = offspring._table\n"
        "def unreadable(): raise OSError(24, 'Too many open files')\noffspring._table = unreadable"
    )
    for n in range(2):
        request = server.submit(f"import time\nprint('asleep {n}', flush=True)\ntime.sleep(60)")
        server.wait_event(OutputArrived, last_line=f"asleep {n}")
        assert server.ask("interrupt")["result"] == "sent"
        assert server.reply(request).state is State.INTERRUPTED
        assert server.ask("interrupt")["result"] == "idle"
    assert server.run("offspring._table = table").state is State.COMPLETED


def test_a_reply_that_is_no_json_is_sent_without_what_is_none(server: Client) -> None:
    reply = server.run("get_ipython().payload_manager.write_payload({'source': 'x', 'data': object()})")
    assert reply.state is State.COMPLETED
