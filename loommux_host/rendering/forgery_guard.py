"""Keeps output from speaking for the environment (contract 3.2, 6), and results sendable.

Owns the envelope: what it looks like, what is put into it, and how a line of output that
could be taken for it is shown. What begins like another line of ours is marked by
`own_lines`. Pure; called by `message` and `structured_fields` for every text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

OPENING = "<loommux-notice>"
CLOSING = "</loommux-notice>"
#: What a reader may take for the end of a line; Python's ``str.splitlines`` agrees.
BREAKS = "\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029"
#: What a reader does not see before a line's first character: white space and characters without a width.
UNSEEN = (
    "\t\x00-\x08\x0e-\x1b\x1f \x7f-\x84\x86-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f"
    "\u2000-\u200f\u202a-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff"
    "\U000e0000-\U000e0fff"
)
_ANGLES = "<\u02c2\u1438\u2039\u2329\u276e\u2770\u27e8\u3008\u300a\ufe64\uff1c"
#: The start of a line that begins with an angle bracket; the group holds what follows.
_SUSPECT = re.compile(f"(?<![^{BREAKS}])(?=[{UNSEEN}]*[{_ANGLES}]([^{BREAKS}]{{0,80}}))")
_NAME = "loommuxnotice"
#: Letters of other scripts, and digits, that look like those of the name.
LOOKALIKES = {
    ord(lookalike): letter
    for letter, lookalikes in {
        "o": "0\u043e\u03bf\u0585", "m": "\u043c\u03bc", "u": "\u0438\u03c5\u057d", "n": "\u043f\u03b7\u0578",
        "x": "\u0445\u03c7", "t": "\u0442\u03c4", "i": "\u0456\u03b9\u0131", "c": "\u0441\u03f2", "e": "\u0435",
        "l": "1|\u04cf",
    }.items()
    for lookalike in lookalikes
}  # fmt: skip


def shown(text: str) -> str:
    """`text` with a backslash before every line that begins like the envelope."""
    if not any(angle in text for angle in _ANGLES):
        return text
    return _SUSPECT.sub(lambda match: "\\" if _is_like_the_name(match[1]) else "", text)


def entry(text: str) -> str:
    """One thing that the environment says, as it stands in the envelope.

    Only from its second line on it is indented, so that it neither speaks for another entry nor ends the envelope.
    """
    lines = [_plain(line) for line in text.splitlines() if line.strip()] or [""]
    return shown("\n  ".join(lines).lstrip(" \t"))


def envelope(entries: Sequence[str]) -> str:
    """The envelope around what `entry` made; "" when there is nothing."""
    return "\n".join([OPENING, *entries, CLOSING]) if entries else ""


def sendable(text: str) -> str:
    """`text` with lone surrogates as visible escapes, so that the JSON on the wire is valid."""
    return text.encode("utf-8", "backslashreplace").decode()


def _plain(line: str) -> str:
    return "".join(c if c == "\t" or unicodedata.category(c) != "Cc" else f"\\x{ord(c):02x}" for c in line)


def _is_like_the_name(rest: str) -> bool:
    folded = unicodedata.normalize("NFKD", rest).casefold().translate(LOOKALIKES)
    letters = "".join(c for c in folded if "a" <= c <= "z")
    return letters.startswith(_NAME)
