"""Which text a display bundle gives (contract 3.5). Pure; `records.transcript` is its only caller."""

from __future__ import annotations

import json
import re
from typing import Any

#: What `object.__repr__` and IPython's pretty printer say of an object that says nothing of itself.
_DEFAULT_REPR = re.compile(r"<[\w.<>\[\], ]+? (?:object(?: at 0x[0-9a-fA-F]+)?|at 0x[0-9a-fA-F]+)>")
_WORDED = ("text/markdown", "text/latex")


def bundle_text(bundle: dict[str, Any]) -> str | None:
    """The bundle's text: its text/plain, or what says more than a default repr; None without any."""
    plain = _text(bundle, "text/plain")
    if plain is None or _DEFAULT_REPR.fullmatch(plain.strip()):
        for kind in _WORDED:
            worded = _text(bundle, kind)
            if worded is not None:
                return worded
    return plain


def no_text_line(bundle: dict[str, Any], ordinal: int) -> str:
    """The one line that stands for a bundle without text."""
    kinds = ", ".join(f"{kind} {_size(value)}" for kind, value in bundle.items()) or "empty"
    return f"[display {ordinal}: {kinds}; no text form]"


def _text(bundle: dict[str, Any], kind: str) -> str | None:
    value = bundle.get(kind)
    if value is None or isinstance(value, str):
        return value
    # nbformat stores texts as lists of lines, and some senders do so too
    return "".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _size(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    size = len(text.encode("utf-8", "surrogatepass"))
    if size < 1000:
        return f"{size} B"
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} GB"
