"""Notices: what code or the environment tells the agent, apart from output (contract 6).

Owns their length, how many an execution keeps, and their labels. Giving them to the
record and to the host is `capture`'s. Called from any thread by `extension`, and by
`kernel` and `startup` for what the environment has to say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from loommux_kernel.ends import safe_text
from loommux_kernel.protocol import NOTICE_CHARACTERS, NOTICES_KEPT

#: Executions whose notices are counted; what older ones still say is counted anew.
REMEMBERED = 256
#: serial, number, label, text
Give = Callable[[int | None, int | None, str, str], None]


class Notices:
    """The notices of one kernel process."""

    def __init__(self, give: Give) -> None:
        self._give = give
        self._lock = threading.Lock()
        self._given: dict[int | None, int] = {}
        self._numbers: dict[int, int | None] = {}

    def begin(self, serial: int, number: int | None) -> None:
        """An execution starts; its notices are labelled with its number."""
        with self._lock:
            self._numbers[serial] = number
            for key in list(self._numbers)[:-REMEMBERED]:
                del self._numbers[key]
                self._given.pop(key, None)

    def give(self, serial: int | None, text: str, *, label: str | None = None) -> bool:
        """Tell the agent; False when the execution has given as many as are kept."""
        with self._lock:
            given = self._given[serial] = self._given.get(serial, 0) + 1
            number = None if serial is None else self._numbers.get(serial)
        if given > NOTICES_KEPT:
            return False
        self._give(serial, number, _label(number) if label is None else label, shorten(text))
        return True

    def end(self, serial: int) -> None:
        """The execution is over: say how many notices were left out."""
        with self._lock:
            left_out = self._given.get(serial, 0) - NOTICES_KEPT
            number = self._numbers.get(serial)
        if left_out > 0:
            words = "notice was" if left_out == 1 else "notices were"
            self._give(serial, number, _label(number), f"{left_out} more {words} left out")


def shorten(text: str) -> str:
    """At most `NOTICE_CHARACTERS`, valid Unicode."""
    text = safe_text(text)
    return text if len(text) <= NOTICE_CHARACTERS else text[: NOTICE_CHARACTERS - 1] + "…"


def _label(number: int | None) -> str:
    return "" if number is None else f"In [{number}]"
