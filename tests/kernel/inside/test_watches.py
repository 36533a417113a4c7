"""Watches: work beside the cells, whose end is told and whose output is its cell's."""

from __future__ import annotations

from pathlib import Path

from loommux_kernel.shared.protocol import NoticeGiven, Outcome, State, Stream, WatchEnded, WatchStarted
from loommux_kernel.shared.records.reader import RecordReader
from tests.kernel.kernel_process import Client, KernelProcess


def text_of(kernel: KernelProcess, serial: int, stream: Stream = Stream.COMBINED) -> str:
    reader = RecordReader(Path(kernel.launch.records))
    try:
        return reader.text(serial, stream)
    finally:
        reader.close()


def watch(server: Client, name: str, code: str) -> int:
    """Start it in a cell; the cell's serial."""
    reply = server.run(code)
    assert reply.state is State.COMPLETED, reply
    server.wait_event(WatchStarted, name=name, serial=reply.serial)
    return reply.serial


def test_an_awaitable_and_a_function_print_into_their_cells_record_and_tell_their_end(
    server: Client, kernel: KernelProcess
) -> None:
    server.run("import asyncio, threading\nasync def waits(): await gate.wait(); print('awaited'); return 5")
    on_loop = watch(server, "a", "gate = asyncio.Event(); a = loommux.watch('a', waits()); print(a)")
    in_thread = watch(server, "t", "go = threading.Event(); t = loommux.watch('t', lambda: (go.wait(), print('ran')))")
    pending = [(one["name"], one["serial"]) for one in server.ask("status")["watches"]]
    assert pending == [("a", on_loop), ("t", in_thread)]
    assert "pending" in (server.run("loommux.watches()").body or "")
    server.run("gate.set(); go.set()")
    for name, serial in (("a", on_loop), ("t", in_thread)):
        ended = server.wait_event(WatchEnded, name=name)
        assert (ended.serial, ended.outcome, ended.ename) == (serial, Outcome.COMPLETED, None)
        notice = server.wait_event(NoticeGiven, serial=serial)
        assert notice.text.startswith(f"watch {name} completed after ")
        assert notice.sequence < ended.sequence
    server.ask("flush")
    assert text_of(kernel, on_loop).endswith("awaited\n")
    assert text_of(kernel, in_thread).endswith("ran\n")
    assert server.run("assert a.result() == 5 and not a.pending and not loommux.watches()").state is State.COMPLETED
    assert server.ask("status")["watches"] == []


def test_a_failure_is_a_traceback_in_its_cells_record_and_a_notice(server: Client, kernel: KernelProcess) -> None:
    server.run("def fails(): 1 / 0\nasync def raises(): raise ValueError('bad')")
    for name, work, ename in (("f", "fails", "ZeroDivisionError"), ("r", "raises()", "ValueError")):
        serial = watch(server, name, f"w = loommux.watch({name!r}, {work})")
        ended = server.wait_event(WatchEnded, name=name)
        assert (ended.outcome, ended.ename) == (Outcome.ERROR, ename)
        assert f": {ename}: " in server.wait_event(NoticeGiven, serial=serial).text
        server.ask("flush")
        traceback = text_of(kernel, serial, Stream.TRACEBACK)
        assert f"{ename}: " in traceback
        assert "Cell In[" in traceback
        assert "watches.py" not in traceback
        reply = server.run("w.result()")
        assert reply.ename == ename


def test_an_awaitable_can_be_cancelled_also_before_it_began_and_a_function_cannot(server: Client) -> None:
    server.run("import asyncio, threading, time")
    both = "c = loommux.watch('c', asyncio.sleep(60)); {}; assert c.cancel()"
    for between in ("0", "await asyncio.sleep(0)"):
        watch(server, "c", both.format(between))
        assert server.wait_event(WatchEnded, name="c").outcome is Outcome.CANCELLED
        server.events.clear()
    assert server.run("assert not c.cancel() and c.outcome == 'cancelled'").state is State.COMPLETED
    watch(server, "t", "go = threading.Event(); t = loommux.watch('t', go.wait); assert not t.cancel(); go.set()")
    assert server.wait_event(WatchEnded, name="t").outcome is Outcome.COMPLETED


def test_a_function_makes_progress_while_a_blocking_cell_holds_the_kernel(server: Client) -> None:
    source = "import time\nw = loommux.watch('beside', lambda: 1)\nuntil = time.monotonic() + 20\n"
    source += "while w.pending and time.monotonic() < until: time.sleep(0.01)\nassert not w.pending"
    assert server.run(source, timeout=40).state is State.COMPLETED


def test_names_are_checked_and_taken_once_at_a_time_and_what_is_refused_starts_nothing(server: Client) -> None:
    server.run("import asyncio, threading; go = threading.Event(); loommux.watch('taken', go.wait)")
    for name, work, error in (
        ("'taken'", "asyncio.sleep(1)", "ValueError"),
        ("'next'", "print", "ValueError"),
        ("' '", "print", "ValueError"),
        ("'a\\nb'", "print", "ValueError"),
        ("'x' * 257", "print", "ValueError"),
        ("7", "print", "TypeError"),
        ("'number'", "7", "TypeError"),
    ):
        reply = server.run(f"import warnings; warnings.simplefilter('error')\nloommux.watch({name}, {work})")
        assert reply.ename == error, (name, reply)
        assert "never awaited" not in (reply.body or "")
    refused = server.run("loommux.watch('taken', print)")
    assert "is pending, started by In [" in (refused.evalue or "")
    assert [one["name"] for one in server.ask("status")["watches"]] == ["taken"]
    server.run("go.set()")
    server.wait_event(WatchEnded, name="taken")
    assert server.run("loommux.watch('taken', int)").state is State.COMPLETED


def test_ends_are_told_also_of_a_cell_that_has_given_all_its_notices(server: Client) -> None:
    serial = watch(server, "told", "for i in range(20): loommux.notify(i)\nloommux.watch('told', int)")
    server.wait_event(WatchEnded, name="told")
    texts = [e.text for e in server.events if isinstance(e, NoticeGiven) and e.serial == serial]
    assert any(text.startswith("watch told completed") for text in texts)


def test_neither_thread_nor_task_of_a_watch_is_left(server: Client) -> None:
    server.run("import asyncio, threading")
    watch(server, "gone", "loommux.watch('gone', int)")
    watch(server, "also", "loommux.watch('also', asyncio.sleep(0))")
    for name in ("gone", "also"):
        server.wait_event(WatchEnded, name=name)
    left = (
        "names = [t.get_name() for t in asyncio.all_tasks()] + [t.name for t in threading.enumerate()]\n"
        "assert not [n for n in names if n.startswith('watch ')], names"
    )
    assert server.run(f"await asyncio.sleep(0)\n{left}").state is State.COMPLETED


def test_the_notice_of_a_watchs_end_and_its_events_tell_one_duration(server: Client) -> None:
    server.run("import time; loommux.watch('w', lambda: time.sleep(0.05))")
    started, ended = server.wait_event(WatchStarted, name="w"), server.wait_event(WatchEnded, name="w")
    milliseconds = f"{(ended.at - started.at) * 1000:.0f} ms"
    assert server.wait_event(NoticeGiven).text == f"watch w completed after {milliseconds}"
