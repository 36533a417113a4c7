r"""Rewriting a pattern so that it cannot leave the line it matches in.

Owns the one rule: over many lines at once, with ``^`` and ``$`` at each line's ends,
the rewritten pattern finds exactly what the given one finds in each line alone.
So whatever could match a newline may not, and whatever means the ends of the
text means the ends of the line. Constructs that are not understood here give
None; `shared.search`, the only caller, then goes line by line.
"""

from __future__ import annotations

import re

#: Escapes that match no newline or none at all, and stay.
_SAFE_ESCAPES = frozenset("SwdbBmMtrfa")
_REWRITTEN_ESCAPES = {"s": r"[^\S\n]", "W": r"[^\w\n]", "D": r"[^\d\n]", "A": "^", "Z": "$"}
_HEX = {"x": 2, "u": 4, "U": 8}
_GROUP = re.compile(r"\((?:\?(?::|=|!|<=|<!|>|\||P?<[A-Za-z_]\w*>|P=[A-Za-z_]\w*\))|(?![?*]))")
_FLAGS = re.compile(r"\(\?([imsau]+)([:)])")
_COUNT = re.compile(r"\{[0-9]*(?:,[0-9]*)?\}|\{(?![\w<,])")
_PROPERTY = re.compile(r"\\[pP]\{[\w:=^ -]+\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]")
#: In a character class: escapes that hold a newline, and what a range with one in it can begin with.
_MAY_MATCH_NEWLINE = re.compile(r"\\(?![wdSrfb]|[^\w])|[\x00-\x09]")


def within_lines(pattern: str) -> str | None:
    """`pattern` with the newline taken out of everything, or None."""
    out: list[str] = []
    at = 0
    while at < len(pattern):
        step = _step(pattern, at)
        if step is None:
            return None
        text, at = step
        out.append(text)
    return "".join(out)


def _step(pattern: str, at: int) -> tuple[str, int] | None:
    """The rewritten piece at `at` and where the next one begins."""
    match pattern[at]:
        case "\\":
            return _escape(pattern, at)
        case "[":
            return _character_class(pattern, at)
        case "(":
            return _group(pattern, at)
        case "{":
            found = _COUNT.match(pattern, at)
            return (found[0], found.end()) if found else None
        case character:
            return character, at + 1


def _escape(pattern: str, at: int) -> tuple[str, int] | None:
    character = pattern[at + 1 : at + 2]
    if character in _REWRITTEN_ESCAPES:
        return _REWRITTEN_ESCAPES[character], at + 2
    if character in _SAFE_ESCAPES or (character and not character.isalnum()):
        return pattern[at : at + 2], at + 2
    if "1" <= character <= "9" and not pattern[at + 2 : at + 3].isdigit():
        return pattern[at : at + 2], at + 2
    if character in _HEX:
        end = at + 2 + _HEX[character]
        return None if int(pattern[at + 2 : end], 16) == 10 else (pattern[at:end], end)
    if found := _PROPERTY.match(pattern, at):
        return rf"(?:(?!\n){found[0]})", found.end()
    return None


def _character_class(pattern: str, at: int) -> tuple[str, int] | None:
    found = _CLASS.match(pattern, at)
    if found is None or "[:" in found[0]:
        return None
    if found[0].startswith("[^"):
        return found[0][:-1] + r"\n]", found.end()
    if _MAY_MATCH_NEWLINE.search(found[0]):
        return rf"(?:(?!\n){found[0]})", found.end()
    return found[0], found.end()


def _group(pattern: str, at: int) -> tuple[str, int] | None:
    if found := _GROUP.match(pattern, at):
        return found[0], found.end()
    if found := _FLAGS.match(pattern, at):
        flags = found[1].replace("s", "")
        if found[2] == ":":
            return f"(?{flags}:", found.end()
        return f"(?{flags})" if flags else "", found.end()
    return None
