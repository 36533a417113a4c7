"""Control characters and escape sequences of arriving text.

Owns which controls mean something (contract 3.5) and what a sequence looks like
when it is split over two writes. Knows no screen: what acts is left in the
text for `terminal`, its only caller, everything else is taken out.

Every ESC begins a new sequence whatever came before it, and a string sequence
(OSC, DCS, a title) ends at its terminator or, so that a stray one cannot
swallow what follows, at the end of the line. So text can be cut anywhere: the
result is the same.

The C1 controls that begin or end a sequence are taken for the ESC that means the same,
but not in UTF-8 that somebody has read as Latin-1: there they are bytes of quotes and
dashes, and the line behind them must not be swallowed.
"""

from __future__ import annotations

import re
from typing import Any

#: Final bytes of the CSI sequences that act: cursor movements, erasures.
ACTING = "A-HJKXadef`"

_CONTROLS = [chr(c) for c in range(0x20) if chr(c) not in "\n\t"] + ["\x7f"]
_C1 = [chr(c) for c in range(0x80, 0xA0)]
_ANY_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: C1 controls and what means the same: CSI, OSC, DCS, SOS, PM, APC, and ST, which ends the last five.
_AS_ESCAPES = {
    "\x9b": "\x1b[", "\x9d": "\x1b]", "\x90": "\x1bP", "\x98": "\x1bX", "\x9e": "\x1b^", "\x9f": "\x1b_",
    "\x9c": "\x1b\\",
}  # fmt: skip
_INTRODUCER = re.compile("[\x90\x98\x9b-\x9f]")
#: A character of UTF-8 whose bytes were read as Latin-1; or else a control that stands for itself.
_MISREAD = re.compile(
    "[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}|([\x90\x98\x9b-\x9f])"
)
#: What the next characters may make a misread one of.
_HALF_MISREAD = re.compile(r"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z")
_DROPPED = re.compile(
    rf"\x1b(?!\[[0-9;]{{0,128}}[{ACTING}])"
    r"(?:\[[0-?]{0,128}[ -/]{0,16}[@-~]?"
    r"|[\]PX^_k][^\x07\x18\x1a\x1b\n]*[\x07\x18\x1a]?"
    r"|[ -/]{0,4}[0-~]?)"
    "|[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]{0,128}[ -/]{0,16}|[ -/]{0,4})?")
_OPEN_STRING = re.compile(r"\x1b[\]PX^_k][^\x07\x18\x1a\x1b\n]*")
_STRING_END = re.compile("[\x07\x18\x1a\x1b\n]")


def visible(text: str) -> str:
    """`text` with lone surrogates as visible escapes; valid UTF-8 can be made of it."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def controls_in(text: str) -> set[str]:
    """The control characters of `text` other than newline and tab."""
    if len(text) < 256:
        return set(_ANY_CONTROL.findall(text))
    # One memchr per character is ten times as fast as a search for the class.
    found = {c for c in _CONTROLS if c in text}
    if not text.isascii():
        found.update(c for c in _C1 if c in text)
    return found


class ControlFilter:
    r"""Lets through text, ``\n \t \r \b`` and the CSI sequences that act."""

    __slots__ = ("_half", "_inside", "_unfinished")

    def __init__(self) -> None:
        #: The beginning of a sequence whose end has not arrived.
        self._unfinished = ""
        #: The beginning of what may be a misread character; up to its first C1 control it was let through.
        self._half = ""
        #: Within a string sequence whose terminator has not arrived.
        self._inside = False

    def feed(self, text: str) -> str:
        text = visible(text)
        if self._half or not text.isascii():
            text = self._with_escapes(text)
        if self._unfinished:
            text = self._unfinished + text
            self._unfinished = ""
        if self._inside:
            end = _STRING_END.search(text)
            if end is None:
                return ""
            self._inside = False
            text = text[end.start() if end[0] in "\x1b\n" else end.end() :]
        found = controls_in(text)
        if found <= {"\r", "\b"}:
            return text
        if "\x1b" in found:
            text = self._without_open_end(text)
        return _DROPPED.sub("", text)

    def _with_escapes(self, text: str) -> str:
        """`text` with ESC in place of C1 controls that begin or end a sequence."""
        given = _up_to_introducer(self._half)
        whole = self._half + text
        half = _HALF_MISREAD.search(whole, max(0, len(whole) - 3))
        end = half.start() if half else len(whole)
        self._half = whole[end:]
        done = whole[:end]
        if any(control in done for control in _AS_ESCAPES):
            done = _MISREAD.sub(lambda found: _AS_ESCAPES[found[1]] if found[1] else found[0], done)
        return (done + self._half[: _up_to_introducer(self._half)])[given:]

    def _without_open_end(self, text: str) -> str:
        last = text.rindex("\x1b")
        if _UNFINISHED.fullmatch(text, last):
            self._unfinished = text[last:]
        elif _OPEN_STRING.fullmatch(text, last):
            self._inside = True
        else:
            return text
        return text[:last]

    def state(self) -> dict[str, Any]:
        """What `restore` needs; empty between sequences."""
        state: dict[str, Any] = {}
        if self._unfinished:
            state["unfinished"] = self._unfinished
        if self._inside:
            state["inside"] = True
        if self._half:
            state["half"] = self._half
        return state

    def restore(self, state: dict[str, Any]) -> None:
        self._unfinished = state.get("unfinished", "")
        self._inside = state.get("inside", False)
        self._half = state.get("half", "")


def _up_to_introducer(half: str) -> int:
    found = _INTRODUCER.search(half)
    return found.start() if found else len(half)
