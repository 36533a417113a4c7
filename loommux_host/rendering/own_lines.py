"""Marks lines of output that begin like a line of the environment's own (contract 3.2).

Owns how a sentence of the tables begins, and how a line is compared with it. The tables are
`facts.status_words` and `facts.refusals`: a sentence that comes to them is known here by
itself. Pure; called by `message` for output on its way into a text block. Fields of structured mode
are not marked: there the state has a field of its own.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from string import Formatter

from loommux_host.facts.refusals import REFUSALS
from loommux_host.facts.status_words import BESIDE_OUTPUT, INTERRUPTS, OMISSIONS, RESTARTS, STATES, WATCHES
from loommux_host.rendering.forgery_guard import BREAKS, LOOKALIKES, UNSEEN

#: So many characters of a sentence are enough to take a line for it; fewer only when they are all of it.
ENOUGH = 14
#: What is looked at of a line, behind what nobody sees.
_LOOKED_AT = 400
#: What stands in place of a field, for those that have a form; and how many characters it has at least.
_FORMS = {
    "cell": (r"In ?\[[\d ]{1,12}\]", 8),
    "duration": (r"[\d.,]+ ?m?s\b", 3),
    "lines": (r"(?:line|[\d,]+ lines)", 4),
    "matching": (r"[\d,]+ matching lines?", 15),
    "first": (r"[\d,]+", 1),
    "last": (r"[\d,]+", 1),
    "total": (r"[\d,]+", 1),
}
#: The same for those that a sentence begins with.
_BEGINNINGS = {"cell": _FORMS["cell"], "what": ("(?:Output|Lines|Rows)", 4)}
_ANY = r"[^\n]{0,200}?"
_OPTIONAL = {"silence": ", silent for "}
#: Signs that look like those of the sentences.
_SIGNS = str.maketrans(
    dict.fromkeys("\u2022\u2219\u22c5\u30fb\u2027\u0387", "·")
    | dict.fromkeys("-\u2010\u2011\u2012\u2014\u2015\u2212", "–")
    | dict.fromkeys("\ua789\u2236\u02d0\u05c3", ":")
)
#: Letters of other scripts that look like capitals; the small ones are `forgery_guard`'s, but for those it lacks.
_CAPITALS = str.maketrans(
    "\u0391\u0392\u0395\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a7"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0406"
    "\u0430\u0440\u0443\u03c1\u0455",
    "ABEHIKMNOPTX" "ABEKMHOPCTXI" "apyps",
)  # fmt: skip
_LETTERS = {sign: letter for sign, letter in LOOKALIKES.items() if sign > 127} | _CAPITALS
_HIDDEN = re.compile(f"[{UNSEEN}]")
_LEADING = re.compile(f"[{UNSEEN}]*")
_SPLIT = re.compile(f"([{BREAKS}])")


def marked(text: str) -> str:
    """`text`, which is output, with a backslash before every line that begins like one of the environment's."""
    lines = _SPLIT.split(text)  # and what ends them, in between
    lines[::2] = ["\\" + line if line and _is_like_own(line) else line for line in lines[::2]]
    return "".join(lines)


def openings() -> Iterator[str]:
    """The patterns of how the environment's lines begin."""
    for template in templates():
        for field, words in _OPTIONAL.items():
            if f"{{{field}}}" in template:
                yield _opening(template.replace(f"{{{field}}}", words + "{duration}"))
                template = template.replace(f"{{{field}}}", "")
        yield _opening(template)


def templates() -> Iterator[str]:
    """The environment's lines, with fields in braces; whoever words one takes it from these tables."""
    yield from BESIDE_OUTPUT.values()
    for table in (STATES, OMISSIONS, INTERRUPTS, RESTARTS, WATCHES):
        yield from (word.text for word in table.values() if word.text)
    yield from (f"{name}: {word.text}" for name, word in REFUSALS.items())


def _opening(template: str) -> str:
    """How a line begins that is worded by `template`: as much of it as makes it plain."""
    pattern, known = "", 0
    for words, field, _, _ in Formatter().parse(template):
        if known + len(words) >= ENOUGH:
            return pattern + _literal(_whole_words(words, ENOUGH - known))
        pattern, known = pattern + _literal(words), known + len(words)
        if field is not None:
            forms = _FORMS if pattern else _BEGINNINGS
            form, least = forms.get(field, (_ANY, -known))  # behind anything at all, it begins again to be plain
            pattern, known = pattern + form, known + least
            if known >= ENOUGH:
                return pattern
    return rf"{pattern}\s*$"


def _whole_words(words: str, least: int) -> str:
    """The beginning of `words`, of at least so many characters, up to the end of a word."""
    end = words.find(" ", least)
    return words if end < 0 else words[:end]


def _literal(words: str) -> str:
    return re.escape(words.translate(_SIGNS)).replace(r"\ ", r"\s+").replace("·", "[·–]")


@cache
def _own() -> tuple[re.Pattern[str], frozenset[str]]:
    """The pattern of all openings, and the characters that they begin with."""
    patterns = sorted(set(openings()))
    firsts = frozenset(first for template in templates() for first in _firsts(template))
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns)), firsts


def _firsts(template: str) -> str:
    words, field, _, _ = next(iter(Formatter().parse(template)))
    return words[0] if words else {"cell": "I", "what": "OLR"}.get(field or "", "")


def _is_like_own(line: str) -> bool:
    pattern, firsts = _own()
    hidden = _LEADING.match(line)
    begin = hidden.end() if hidden else 0
    if _folded_one(line[begin : begin + 1]) not in firsts:  # most lines
        return False
    head = line[begin : begin + _LOOKED_AT]
    if not head.isascii():
        head = _folded(head)
    return pattern.match(head.translate(_SIGNS)) is not None


@lru_cache(4096)
def _folded_one(character: str) -> str:
    return character if character.isascii() else _folded(character)[:1]


def _folded(text: str) -> str:
    """The letters that `text` looks like, without what nobody sees."""
    seen = "".join(c for c in text if c.isspace() or not _HIDDEN.match(c))
    plain = "".join(c for c in unicodedata.normalize("NFKD", seen) if not unicodedata.combining(c))
    return plain.translate(_LETTERS)
