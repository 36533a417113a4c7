"""How much text there is. Standard library only; `shared.protocol` carries it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """The size of one stream: lines, code points, UTF-8 bytes.

    A last line without a newline counts as a line; an empty stream has none.
    """

    lines: int = 0
    characters: int = 0
    utf8_bytes: int = 0


def utf8_size(text: str) -> int:
    """The size of a text in UTF-8; of ASCII, as nearly all is, without a copy."""
    return len(text) if text.isascii() else len(text.encode())
