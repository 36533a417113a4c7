"""Threads and pools carry their execution, and nothing else of the context that started them."""

from __future__ import annotations

import _thread
import asyncio
import decimal
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from typing import Any

import pytest

from loommux_kernel.executions import contexts
from loommux_kernel.executions.contexts import current_execution


@pytest.fixture
def carried() -> Iterator[None]:
    undo = contexts.install()
    yield
    undo()


def _in_execution(serial: int, function: Any) -> Any:
    """Call `function` as a cell would."""

    def call() -> Any:
        current_execution.set(serial)
        return function()

    return copy_context().run(call)


def _seen_by_thread(start: Any) -> list[int | None]:
    seen: list[int | None] = []
    done = threading.Event()

    def look() -> None:
        seen.append(current_execution.get(None))
        done.set()

    start(look)
    assert done.wait(10)
    return seen


def _start_thread(function: Any) -> None:
    threading.Thread(target=function).start()


def _start_timer(function: Any) -> None:
    threading.Timer(0, function).start()


def _start_raw(function: Any) -> None:
    _thread.start_new_thread(function, ())


def _submit(function: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result()


@pytest.mark.usefixtures("carried")
@pytest.mark.parametrize("start", [_start_thread, _start_timer, _start_raw, _submit])
def test_what_a_cell_starts_belongs_to_it(start: Any) -> None:
    assert _in_execution(7, lambda: _seen_by_thread(start)) == [7]
    assert Context().run(_seen_by_thread, start) == [None]


@pytest.mark.usefixtures("carried")
def test_a_pools_worker_serves_one_cell_after_the_other() -> None:
    with ThreadPoolExecutor(1) as pool:
        ask = lambda: pool.submit(current_execution.get, None).result()  # noqa: E731
        assert [_in_execution(1, ask), _in_execution(2, ask), _in_execution(1, ask)] == [1, 2, 1]
        assert Context().run(ask) == 1  # nothing to carry: the worker's own, which the first cell started


@pytest.mark.usefixtures("carried")
def test_threads_of_threads_belong_to_the_same_cell() -> None:
    seen: list[int | None] = []

    def outer() -> None:
        inner = threading.Thread(target=lambda: seen.append(current_execution.get(None)))
        inner.start()
        inner.join()

    def start() -> None:
        thread = threading.Thread(target=outer)
        thread.start()
        thread.join()

    _in_execution(5, start)
    assert seen == [5]


@pytest.mark.usefixtures("carried")
def test_a_thread_keeps_a_decimal_context_of_its_own() -> None:
    def start() -> list[int]:
        seen: list[int] = []
        with decimal.localcontext() as context:
            context.prec = 3
            thread = threading.Thread(target=lambda: seen.append(decimal.getcontext().prec))
            thread.start()
            thread.join()
        return seen

    assert _in_execution(1, start) == [decimal.DefaultContext.prec]


@pytest.mark.usefixtures("carried")
def test_variables_that_are_named_are_carried_too() -> None:
    name: ContextVar[str] = ContextVar("name")
    contexts.carry(name)
    seen: list[str] = []

    def start() -> None:
        name.set("value")
        thread = threading.Thread(target=lambda: seen.append(name.get("none")))
        thread.start()
        thread.join()

    _in_execution(1, start)
    assert seen == ["value"]


@pytest.mark.usefixtures("carried")
def test_an_ended_thread_and_finished_work_leave_nothing_behind() -> None:
    class Work:
        def __call__(self) -> None: ...

    def start() -> list[weakref.ref[Work]]:
        first, second = Work(), Work()
        thread = threading.Thread(target=first)
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(second).result()
        return [weakref.ref(first), weakref.ref(second)]

    references = _in_execution(1, start)
    gc.collect()
    assert [r() for r in references] == [None, None]


@pytest.mark.anyio
@pytest.mark.usefixtures("carried")
async def test_tasks_and_helper_threads_of_a_loop_follow() -> None:
    current_execution.set(3)
    assert await asyncio.to_thread(current_execution.get, None) == 3
    assert await asyncio.get_running_loop().run_in_executor(None, current_execution.get, None) == 3


def test_uninstalling_puts_everything_back() -> None:
    before = [getattr(threading, n, None) for n in contexts.THREAD_STARTERS]
    before += [_thread.start_new_thread, ThreadPoolExecutor.submit]
    contexts.install()()
    after = [getattr(threading, n, None) for n in contexts.THREAD_STARTERS]
    assert [*after, _thread.start_new_thread, ThreadPoolExecutor.submit] == before
