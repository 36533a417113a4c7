"""Threads of a server: some from the start, more while there are any, and those that exist when there are no more."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from loommux_host.processes import threads
from loommux_host.processes.threads import Threads

pytestmark = [pytest.mark.anyio, pytest.mark.case("X09")]


def none_left(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_work_waits_for_a_thread_that_exists_when_none_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    threads.serve(asyncio.get_running_loop())
    monkeypatch.setattr(threading.Thread, "start", none_left)
    done = await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.01) for _ in range(40)))
    assert done == [None] * 40
    monkeypatch.undo()


async def test_the_pool_grows_while_there_are_threads() -> None:
    threads.serve(asyncio.get_running_loop())
    together = threading.Barrier(threads.MOST)
    await asyncio.gather(*(asyncio.to_thread(together.wait, 20) for _ in range(threads.MOST)))


def test_as_many_as_can_be_started_at_the_start_have_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    start, left = threading.Thread.start, [None, None]

    def two(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", two)
    with Threads() as pool:
        assert list(pool.map(abs, range(-5, 0))) == [5, 4, 3, 2, 1]


def test_without_any_thread_there_is_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", none_left)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Threads()
