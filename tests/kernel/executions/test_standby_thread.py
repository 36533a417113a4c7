"""A thread that is there already does the work when no other can be started."""

from __future__ import annotations

import threading

import pytest

from loommux_kernel.executions import native_threads
from loommux_kernel.executions.standby_thread import StandbyThread

pytestmark = pytest.mark.case("X09")


def none_left(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_work_is_done_when_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    standby = StandbyThread()
    standby.start()
    assert standby._busy.acquire(timeout=10)  # it waits
    standby._busy.release()
    monkeypatch.setattr(native_threads, "_start", none_left)
    release, done = threading.Event(), threading.Event()
    assert standby.run(release.wait)
    assert not standby.run(done.set)  # it is at work
    release.set()
    while not standby.run(done.set):
        pass
    assert done.wait(10)


def test_a_piece_of_work_that_fails_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    standby = StandbyThread()
    standby.start()
    monkeypatch.setattr(native_threads, "_start", none_left)
    done = threading.Event()
    for work in (lambda: 1 / 0, done.set):
        while not standby.run(work):
            pass
    assert done.wait(10)


def test_as_long_as_there_are_threads_each_piece_has_its_own() -> None:
    standby, release = StandbyThread(), threading.Event()
    started = [threading.Event() for _ in range(3)]

    def work(mine: threading.Event) -> None:
        mine.set()
        release.wait()

    for mine in started:
        assert standby.run(lambda mine=mine: work(mine))
        assert mine.wait(10)
    release.set()
