"""The ordered queue: order, one run for adjacent text, and a bound on what waits."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from loommux_kernel import ordered
from loommux_kernel.ordered import OrderedQueue, Run, Step
from loommux_kernel.protocol import Stream

OUT, ERR = Stream.STDOUT, Stream.STDERR


def _said(items: list[Run | Step]) -> list[Any]:
    return [(i.serial, i.stream, "".join(i.texts)) if isinstance(i, Run) else "step" for i in items]


def test_adjacent_text_is_one_run_and_everything_keeps_its_place() -> None:
    queue = OrderedQueue()
    for serial, stream, text in [(1, OUT, "a"), (1, OUT, "b"), (1, ERR, "c"), (2, ERR, "d")]:
        queue.text(serial, stream, text)
    queue.put(lambda recorder: None)
    queue.text(2, ERR, "e")
    assert _said(queue.take(1 << 20)) == [(1, OUT, "ab"), (1, ERR, "c"), (2, ERR, "d"), "step", (2, ERR, "e")]
    queue.text(2, ERR, "f")
    assert _said(queue.take(1 << 20)) == [(2, ERR, "f")]
    assert queue.take(1 << 20) == []


def test_a_drain_takes_about_its_budget() -> None:
    queue = OrderedQueue()
    for _ in range(40):
        queue.text(1, OUT, "x" * 100_000)
        queue.done(0)
    first = queue.take(1 << 20)
    assert 1 << 20 <= sum(i.size for i in first) < 3 << 20
    assert sum(i.size for i in first + queue.take(1 << 30)) == queue.pending


def test_a_writer_that_is_too_fast_waits_until_the_drain_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "PENDING_BYTES", 1000)
    queue = OrderedQueue()
    queue.text(1, OUT, "x" * 500)
    written = threading.Event()

    def write() -> None:
        queue.text(1, OUT, "y" * 600)
        written.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not written.wait(0.2)
    (run,) = queue.take(1 << 20)
    queue.done(run.size)
    assert written.wait(10)
    thread.join()


def test_the_draining_thread_itself_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "PENDING_BYTES", 10)
    queue = OrderedQueue()
    queue.drainer = threading.get_ident()
    queue.text(1, OUT, "x" * 1000)


def test_a_store_that_stalls_stops_nobody_and_keeps_what_is_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "PENDING_BYTES", 1000)
    monkeypatch.setattr(ordered, "STALLED_BYTES", 4000)
    monkeypatch.setattr(ordered, "STALL_SECONDS", 0.1)
    monkeypatch.setattr(ordered, "RUN_BYTES", 100)
    queue = OrderedQueue()
    queue.put(lambda recorder: None)
    started = time.monotonic()
    for i in range(100):
        queue.text(1, OUT, f"{i:0200}")
    assert time.monotonic() - started < 20
    said = _said(queue.take(1 << 20))
    assert said[0] == "step"
    assert said[-1] == (1, OUT, f"{99:0200}")
    assert queue.given_up > 0
    assert queue.pending <= 5000


def test_writers_of_many_threads_lose_nothing() -> None:
    queue = OrderedQueue()

    def write(n: int) -> None:
        for i in range(2000):
            queue.text(n, OUT, f"{i}\n")

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    taken: list[Run | Step] = []
    while any(t.is_alive() for t in threads) or queue.items:
        taken += queue.take(1000)
        queue.done(0)
    for thread in threads:
        thread.join()
    for n in range(4):
        own = "".join("".join(r.texts) for r in taken if isinstance(r, Run) and r.serial == n)
        assert own.splitlines() == [str(i) for i in range(2000)]
