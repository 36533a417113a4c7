"""Which execution a piece of running code belongs to, and how threads keep it.

Owns `current_execution`, the serial of the execution whose code is running. It
is a context variable: asyncio tasks and callbacks carry it by themselves.
Threads and work submitted to thread pools do not, so `install` makes each start
of a thread and each submission carry the variables named with `carry` (and no
other: a thread that inherited the whole context would share decimal contexts,
numpy error states and the like with the code that started it).

It does not know what an execution is. `capture` installs it and names ipykernel's
variables; streams and notices read `current_execution`.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, Token
from functools import wraps
from typing import Any

#: Serial of the execution that the running code belongs to; unset in threads
#: that nobody's cell started.
current_execution: ContextVar[int] = ContextVar("current_execution")

_MISSING: Any = object()
_carried: tuple[ContextVar[Any], ...] = (current_execution,)

#: How `threading` starts its threads, by version of Python (3.11 and 3.12; 3.13).
THREAD_STARTERS = ("_start_new_thread", "_start_joinable_thread")


def carry(*variables: ContextVar[Any]) -> None:
    """Make threads carry these variables too."""
    global _carried
    _carried += tuple(v for v in variables if v not in _carried)


def carrying(function: Callable[..., Any], *, restore: bool) -> Callable[..., Any]:
    """`function`, run with the carried variables as they are now.

    Returned as it is when there is nothing to carry. `restore` puts the
    variables back afterwards, for a thread that goes on to do other work.
    """
    if current_execution.get(_MISSING) is _MISSING:
        return function
    values = [(v, value) for v in _carried if (value := v.get(_MISSING)) is not _MISSING]

    def run(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        tokens: list[tuple[ContextVar[Any], Token[Any]]] = [(v, v.set(value)) for v, value in values]
        if not restore:
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            for variable, token in tokens:
                variable.reset(token)

    return run


def install() -> Callable[[], None]:
    """Let threads and executor submissions carry their execution; returns the undoing."""
    undo: list[Callable[[], None]] = []

    def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, make(original))
            undo.append(lambda: setattr(owner, name, original))

    for name in THREAD_STARTERS:
        replace(threading, name, _carrying_starter)
    replace(_thread, "start_new_thread", _carrying_starter)
    replace(ThreadPoolExecutor, "submit", _carrying_submit)

    def uninstall() -> None:
        for step in reversed(undo):
            step()

    return uninstall


def _carrying_starter(start: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(start)
    def starter(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return start(carrying(function, restore=False), *args, **kwargs)

    return starter


def _carrying_submit(submit: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(submit)
    def carrying_submit(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return submit(self, carrying(fn, restore=True), *args, **kwargs)

    return carrying_submit
