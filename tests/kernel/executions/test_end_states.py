"""How an execution ended, told from what it raised and the interrupts it felt."""

from __future__ import annotations

from asyncio import CancelledError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loommux_kernel.executions.end_states import MESSAGE_CHARACTERS, End, end_of, message_of, safe_text
from loommux_kernel.shared.protocol import State


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Stubborn(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def test_nothing_raised_is_completed_even_after_an_interrupt_that_was_caught() -> None:
    assert end_of(None, 0) == end_of(None, 1) == End(State.COMPLETED)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), CancelledError(), BaseExceptionGroup("g", [ValueError(), KeyboardInterrupt()])]
)
def test_only_an_interrupt_that_was_felt_makes_an_interrupted_cell(error: BaseException) -> None:
    assert end_of(error, 1) == End(State.INTERRUPTED, "KeyboardInterrupt", "")
    assert end_of(error, 0).state is State.ERROR


def test_an_error_that_followed_an_interrupt_is_that_error() -> None:
    assert end_of(RuntimeError("stopped"), 1) == End(State.ERROR, "RuntimeError", "stopped")


@pytest.mark.parametrize("error", [Mute(), Stubborn()])
def test_an_exception_without_a_text_has_a_message_all_the_same(error: Exception) -> None:
    assert end_of(error, 0) == End(State.ERROR, type(error).__name__, "<exception str() failed>")


def test_a_long_message_keeps_both_its_ends() -> None:
    message = message_of(ValueError("a" * 100_000 + "z"))
    assert len(message) < MESSAGE_CHARACTERS + 50
    assert message.startswith("aaa")
    assert message.endswith("az")
    assert "[90001 chars omitted]" in message


@given(st.text(alphabet=st.characters(codec=None)))
def test_any_text_becomes_valid(text: str) -> None:
    safe_text(text).encode()
