"""How an execution has ended, told truthfully and without trusting the exception.

Owns the rule which state an error stands for, and texts of exceptions that are safe to
send: an exception's `__str__` may raise, and its text may hold lone surrogates.
Called by `kernel` and `startup`.
"""

from __future__ import annotations

from asyncio import CancelledError
from dataclasses import dataclass

from loommux_kernel.shared.protocol import State

#: Longer messages are cut in the middle; the traceback stream has them whole.
MESSAGE_CHARACTERS = 10_000


@dataclass(frozen=True)
class End:
    """State, name of the error and its message."""

    state: State
    ename: str | None = None
    evalue: str | None = None


def end_of(error: BaseException | None, hits: int) -> End:
    """How code ended that raised `error` (None: nothing) and felt `hits` interrupts."""
    if error is None:
        return End(State.COMPLETED)
    if hits and is_interrupt(error):
        return End(State.INTERRUPTED, "KeyboardInterrupt", "")
    return End(State.ERROR, safe_text(type(error).__name__), message_of(error))


def is_interrupt(error: BaseException) -> bool:
    """Whether this is what an interrupt raises; a cell that raises it by itself was not interrupted."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup((KeyboardInterrupt, CancelledError)) is not None
    return isinstance(error, KeyboardInterrupt | CancelledError)


def message_of(error: BaseException) -> str:
    """The exception's text, or that it has none."""
    try:
        text = str(error)
    except BaseException:
        return "<exception str() failed>"
    if len(text) > MESSAGE_CHARACTERS:
        half = MESSAGE_CHARACTERS // 2
        text = f"{text[:half]}…[{len(text) - 2 * half} chars omitted]…{text[-half:]}"
    return safe_text(text)


def safe_text(text: str) -> str:
    r"""Valid Unicode: lone surrogates as visible escapes (``\udce9``)."""
    return text.encode("utf-8", "backslashreplace").decode()
