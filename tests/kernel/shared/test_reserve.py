"""Descriptors held back: there when no others are, and never somebody else's."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator

import pytest

from loommux_kernel.shared.reserve import COUNT, Reserve

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is none")


@pytest.fixture
def reserve() -> Iterator[Reserve]:
    made = Reserve()
    made.fill()
    yield made
    for fd in made._held:
        os.close(fd)


@pytest.fixture
def exhausted(reserve: Reserve) -> Iterator[list[int]]:
    """This process has opened all that it may."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = os.dup(0)
    os.close(top)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(top, *reserve._held) + 20, limits[1]))
    opened: list[int] = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                opened.append(os.dup(0))
        yield opened
    finally:
        for fd in opened:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_work_gets_descriptors_when_there_are_no_others(reserve: Reserve, exhausted: list[int]) -> None:
    def opened() -> bool:
        with open(os.devnull) as file:  # noqa: PTH123
            return file.readable()

    with pytest.raises(OSError, match="Too many open files"):
        opened()
    for _ in range(3):
        assert reserve.spend(opened)
        assert len(reserve._held) == COUNT


def test_what_fails_for_another_reason_is_not_done_again(reserve: Reserve) -> None:
    tried: list[int] = []

    def absent() -> None:
        tried.append(1)
        raise FileNotFoundError(errno.ENOENT, "absent")

    with pytest.raises(FileNotFoundError):
        reserve.spend(absent)
    assert len(tried) == 1


def test_those_that_work_keeps_come_back_when_they_are_closed(reserve: Reserve, exhausted: list[int]) -> None:
    kept = [reserve.spend(os.dup, 0) for _ in range(COUNT)]
    assert reserve._held == []
    with pytest.raises(OSError, match="Too many open files"):
        reserve.spend(os.dup, 0)
    for fd in kept:
        os.close(fd)
    reserve.fill()
    assert len(reserve._held) == COUNT


def test_a_number_that_has_become_somebody_elses_is_not_closed(reserve: Reserve) -> None:
    stolen = reserve._held[0]
    os.close(stolen)
    assert os.dup(0) == stolen
    with reserve.lent():
        os.fstat(stolen)
    os.fstat(stolen)
    assert stolen not in reserve._held
    os.close(stolen)


def test_while_one_has_them_another_ones_end_takes_none_away(reserve: Reserve) -> None:
    with reserve.lent():
        with reserve.lent():
            assert reserve._held == []
        assert reserve._held == []
    assert len(reserve._held) == COUNT
