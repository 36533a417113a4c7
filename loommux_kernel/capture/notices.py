"""Notices: what code or the environment tells the agent, apart from output (contract 6).

Owns their length, how many an execution keeps, and their labels. Giving them to the
record and to the host is `capture`'s. Called from any thread by `inside.loommux_object`, and by
`kernel` and `startup` for what the environment has to say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from loommux_kernel.executions.end_states import safe_text
from loommux_kernel.shared.protocol import NOTICE_CHARACTERS, NOTICES_KEPT

#: Executions whose notices are counted; what older ones still say is counted anew.
REMEMBERED = 256
#: serial, number, label, text
Give = Callable[[int | None, int | None, str, str], None]


class Notices:
    """The notices of one kernel process.

    Those left out in an execution are told at its end. Once it has ended, and outside executions, the
    first left out is told of at once and the others when the next execution begins; what was said
    outside executions before that one is then counted anew.
    """

    def __init__(self, give: Give) -> None:
        self._give = give
        self._lock = threading.Lock()
        self._given: dict[int | None, int] = {}
        #: Left out and not told of yet.
        self._left_out: dict[int | None, int] = {}
        #: Told of one left out since the last execution began.
        self._hinted: set[int | None] = set()
        self._numbers: dict[int, int | None] = {}
        self._running: set[int] = set()

    def begin(self, serial: int, number: int | None) -> None:
        """An execution starts; its notices are labelled with its number."""
        with self._lock:
            tell = [(key, *self._take(key)) for key in list(self._left_out) if key not in self._running]
            self._hinted.clear()
            self._numbers[serial] = number
            self._running.add(serial)
            for key in list(self._numbers)[:-REMEMBERED]:
                del self._numbers[key]
            for key in [k for k in self._given if k not in self._numbers]:
                del self._given[key]
        for key, of, count in tell:
            self._tell_left_out(key, of, count)

    def give(self, serial: int | None, text: str, *, label: str | None = None) -> bool:
        """Tell the agent; False when the execution has given as many as are kept."""
        with self._lock:
            given = self._given[serial] = self._given.get(serial, 0) + 1
            number = None if serial is None else self._numbers.get(serial)
            kept = given <= NOTICES_KEPT
            hint = not kept and serial not in self._running and serial not in self._hinted
            if hint:
                self._hinted.add(serial)
            elif not kept:
                self._left_out[serial] = self._left_out.get(serial, 0) + 1
        if kept:
            self._give(serial, number, _label(number) if label is None else label, shorten(text))
        elif hint:
            self._tell_left_out(serial, number, 1)
        return kept

    def number_of(self, serial: int | None) -> int | None:
        """The number of one of the last executions."""
        with self._lock:
            return None if serial is None else self._numbers.get(serial)

    def end(self, serial: int) -> None:
        """The execution is over: say how many notices were left out."""
        with self._lock:
            self._running.discard(serial)
            number, count = self._take(serial)
        self._tell_left_out(serial, number, count)

    def _take(self, serial: int | None) -> tuple[int | None, int]:
        """The execution's number and how many were left out, which are told of now; under the lock."""
        number = None if serial is None else self._numbers.get(serial)
        return number, self._left_out.pop(serial, 0)

    def _tell_left_out(self, serial: int | None, number: int | None, count: int) -> None:
        if count:
            words = "notice was" if count == 1 else "notices were"
            self._give(serial, number, _label(number), f"{count:,} more {words} left out")


def shorten(text: str) -> str:
    """At most `NOTICE_CHARACTERS`, valid Unicode."""
    text = safe_text(text)
    return text if len(text) <= NOTICE_CHARACTERS else text[: NOTICE_CHARACTERS - 1] + "…"


def _label(number: int | None) -> str:
    return "" if number is None else f"In [{number}]"
