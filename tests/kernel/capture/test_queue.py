"""The ordered queue: order, one run for adjacent text, and a bound on what waits."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from loommux_kernel.capture import queue as queue_module
from loommux_kernel.capture.queue import Channel, OrderedQueue, Said, Step
from loommux_kernel.shared.protocol import Stream

OUT, ERR = Channel(1, Stream.STDOUT), Channel(1, Stream.STDERR)
LATER = Channel(2, Stream.STDERR)


def _said(taken: tuple[list[Said | Step], int, int]) -> list[Any]:
    """What was taken: "step", or the execution, its text, and each stream's."""
    return [
        "step"
        if isinstance(item, Step)
        else (item.serial, "".join(item.combined), {str(s): "".join(texts) for s, texts in item.own.items() if texts})
        for item in taken[0]
        if isinstance(item, Step) or item.combined
    ]


def test_adjacent_text_is_one_run_and_everything_keeps_its_place() -> None:
    queue = OrderedQueue()
    for channel, text in [(OUT, "a"), (OUT, "b"), (ERR, "c"), (LATER, "d"), (OUT, "!")]:
        queue.text(channel, text)
    queue.put(lambda recorder: None)
    queue.text(LATER, "e")
    assert _said(queue.take(1 << 20)) == [
        (1, "abc!", {"stdout": "ab!", "stderr": "c"}),
        (2, "d", {"stderr": "d"}),
        "step",
        (2, "e", {"stderr": "e"}),
    ]
    queue.text(LATER, "f")
    assert _said(queue.take(1 << 20)) == [(2, "f", {"stderr": "f"})]
    assert _said(queue.take(1 << 20)) == []


def test_a_drain_takes_about_its_budget() -> None:
    queue = OrderedQueue()
    for i in range(40):
        queue.text(OUT, f"{i}" * 50_000)
    first, held, weight = queue.take(1 << 20)
    assert 1 << 20 <= held == weight < 2 << 20
    rest = queue.take(1 << 30)
    assert held + rest[1] == queue.pending
    texts = [text for taken in ((first, held, weight), rest) for _, text, _ in _said(taken)]
    assert "".join(texts) == "".join(f"{i}" * 50_000 for i in range(40))


def test_a_writer_that_is_too_fast_waits_until_the_drain_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "PENDING_BYTES", 1000)
    queue = OrderedQueue()
    queue.text(OUT, "x" * 500)
    written = threading.Event()

    def write() -> None:
        queue.text(OUT, "y" * 600)
        written.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not written.wait(0.2)
    queue.done(queue.take(1 << 20)[1])
    assert written.wait(10)
    thread.join()


def test_the_draining_thread_itself_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "PENDING_BYTES", 10)
    queue = OrderedQueue()
    queue.drainer = threading.get_ident()
    queue.text(OUT, "x" * 1000)


def test_a_store_that_stalls_stops_nobody_and_keeps_what_is_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "PENDING_BYTES", 1000)
    monkeypatch.setattr(queue_module, "STALLED_BYTES", 4000)
    monkeypatch.setattr(queue_module, "STALL_SECONDS", 0.1)
    queue = OrderedQueue()
    queue.put(lambda recorder: None)
    started = time.monotonic()
    for i in range(100):
        queue.text(OUT, f"{i:0200}")
    assert time.monotonic() - started < 20
    said = _said(queue.take(1 << 20))
    assert said[0] == "step"
    assert said[-1][1].endswith(f"{99:0200}")
    assert queue.given_up > 0
    assert queue.pending <= 5000


def test_writers_of_many_threads_lose_nothing() -> None:
    queue = OrderedQueue()
    channels = [Channel(n, Stream.STDOUT) for n in range(4)]

    def write(n: int) -> None:
        for i in range(2000):
            queue.text(channels[n], f"{i}\n")

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    taken: list[Any] = []
    while any(t.is_alive() for t in threads) or queue.items:
        taken += _said(queue.take(1000))
        queue.done(0)
    for thread in threads:
        thread.join()
    for n in range(4):
        own = "".join(text for serial, text, _ in taken if serial == n)
        assert own.splitlines() == [str(i) for i in range(2000)]
