r"""One stream's line discipline: arriving text becomes settled lines and a screen.

Owns what text does to a screen (contract 3.5): ``\r``, backspace, cursor
movements and erasures act across message boundaries, as on a terminal without
width. Pure: no I/O, no clock; `controls` knows the sequences, `screen` the
rows. Used by `records.transcript` for each of the five streams of an execution, and by
the reader and the finisher to take up a screen that was stored.

A line ends with ``\n`` alone, which goes to the beginning of the next line. A tab
is one character in one column, and is overwritten like any other.
"""

from __future__ import annotations

import re
from typing import Any

from loommux_kernel.text.controls import ACTING, ControlFilter, controls_in, visible
from loommux_kernel.text.long_row import Fetch, no_parts
from loommux_kernel.text.screen import SCREEN_LINES, Screen

#: Text is worked through in slices of this many code points, to bound what is copied.
SLICE = 1 << 20

_TOKEN = re.compile(rf"\x1b\[([0-9;]*)([{ACTING}])|(\x08+)|[^\x1b\x08]+")


class Terminal(Screen):
    """The screen of one stream, fed with text."""

    def __init__(self, fetch: Fetch = no_parts) -> None:
        super().__init__(fetch)
        self._filter = ControlFilter()

    def feed(self, text: str) -> None:
        """Text as it was written; may begin and end in the middle of a sequence."""
        if len(text) <= SLICE:
            self._take(text)
            return
        for start in range(0, len(text), SLICE):
            self._take(text[start : start + SLICE])

    def block(self, key: int, text: str) -> int:
        """Append `text` in lines of its own, to be replaced by `key`; return the lines up to its end."""
        before = self.begin_block()
        self.feed(flatten(text))
        return self.end_block(key, before)

    def replace_block(self, key: int, text: str) -> bool:
        """Put `text` where the block is, if all of it is still on the screen."""
        return self._replace_block(key, flatten(text).removesuffix("\n").split("\n") if text else [])

    def state(self) -> dict[str, Any]:
        return super().state() | self._filter.state()

    @classmethod
    def from_state(cls, state: dict[str, Any], fetch: Fetch = no_parts) -> Terminal:
        """The terminal that `state()` described."""
        terminal = cls(fetch)
        terminal.restore(state)
        return terminal

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._filter.restore(state)

    def _take(self, text: str) -> None:
        text = self._filter.feed(text)
        acts = [at for at in (text.find("\x1b"), text.find("\b")) if at >= 0]
        if not acts:
            self._draw(text)
            return
        self._draw(text[: min(acts)])
        for token in _TOKEN.finditer(text, min(acts)):
            if token[2]:
                self._control(token[2], token[1])
            elif token[3]:
                self._x = max(0, self._x - len(token[3]))
            else:
                self._draw(token[0])

    def _draw(self, text: str) -> None:
        r"""Text whose only controls are ``\n \t \r``."""
        if "\r\n" in text:
            text = text.replace("\r\n", "\n")
        newline = True
        while newline:
            line, newline, text = text.partition("\n")
            self._draw_line(line)
            if newline and text and self._at_end():
                self._draw_rows(text)
                return
            if newline:
                self.line_feed()

    def _draw_line(self, text: str) -> None:
        r"""Text of one line: ``\r`` goes back to its beginning."""
        if "\r" not in text:
            self.write(text)
            return
        head, *redraws = text.split("\r")
        self.write(head)
        self._x = 0
        drawn, line = _overlay(redraws)
        self.write(line)
        if drawn:
            self._drawn[self._y] = True
        self._x = len(redraws[-1])

    def _draw_rows(self, text: str) -> None:
        """Text that goes to new rows below the last one."""
        if "\r" in text:
            overlays = [_overlay(line.split("\r")) for line in text.split("\n")]
            column = len(text) - 1 - max(text.rfind("\n"), text.rfind("\r"))
            self._extend([line for _, line in overlays], [drawn for drawn, _ in overlays], column)
            return
        cut = len(text)
        for _ in range(SCREEN_LINES):
            cut = text.rfind("\n", 0, cut)
            if cut < 0:
                break
        else:
            self._pass_through(text[: cut + 1])
            text = text[cut + 1 :]
        lines = text.split("\n")
        self._extend(lines, [False] * len(lines), len(lines[-1]))

    def _control(self, final: str, parameters: str) -> None:
        numbers = [min(int(p), 1 << 20) if p else 0 for p in parameters.split(";")]
        count = numbers[0] or 1
        x, y = self._x, self._y
        match final:
            case "A":
                self.go(y - count, x)
            case "F":
                self.go(y - count, 0)
            case "B" | "e":
                self.go(y + count, x)
            case "E":
                self.go(y + count, 0)
            case "C" | "a":
                self.go(y, x + count)
            case "D":
                self.go(y, x - count)
            case "G" | "`":
                self.go(y, count - 1)
            case "d":
                self.go(count - 1, x)
            case "H" | "f":
                self.go(count - 1, max(1, *numbers[1:2], 1) - 1)
            case "J":
                self.erase_screen(numbers[0])
            case "K":
                self.erase_line(numbers[0])
            case "X":
                self.erase_columns(x, x + count)


def _overlay(redraws: list[str]) -> tuple[bool, str]:
    """Whether texts drawn from column 0 were drawn over one another, and what is left of them."""
    line = redraws[-1]
    for text in reversed(redraws[:-1]):
        if len(text) > len(line):
            line += text[len(line) :]
    return len(redraws) - redraws.count("") > 1, line


def flatten(text: str) -> str:
    """The plain text that a terminal would hold after `text`."""
    text = visible(text)
    if not controls_in(text):
        return text
    terminal = Terminal()
    terminal.feed(text)
    settled = [row if isinstance(row, str) else row.text() + "\n" for row in terminal.take_settled()]
    return "".join(settled) + terminal.screen()
