"""Which text a display bundle gives (contract 3.5).

Owns what of a bundle is its text, when that says too little, and how a result's text begins.
Pure; `records.transcript` records with it, and whoever needs a bundle's text again asks here.
"""

from __future__ import annotations

import json
import re
from typing import Any

from loommux_kernel.text.terminal import flatten

#: What a library gives for models; where it is, it is the text.
MODELS = "text/llm+plain"
#: What `object.__repr__` and IPython's pretty printer say of an object that says nothing of itself.
_DEFAULT_REPR = re.compile(r"<[\w.<>\[\], ]+? (?:object(?: at 0x[0-9a-fA-F]+)?|at 0x[0-9a-fA-F]+)>")
#: A repr that leaves out all that it was made of, as that of Altair's charts.
_HOLLOW = re.compile(r"[\w.]+\((?:\.\.\.|…)\)")
_WORDED = ("text/markdown", "text/latex")
#: A text of one line is little beside a form so many times as large, and of so many bytes at least.
_LITTLE_CHARACTERS, _TIMES, _BYTES = 80, 100, 4_000
#: Forms that are shown, or that are the text: there is no more to them.
_NOT_BESIDE = re.compile(r"text/(?:plain|markdown|latex|llm\+plain)|image/.*|.*widget-view\+json", re.IGNORECASE)
_SHOWN_IMAGE = re.compile(r"image/(?:png|jpeg|webp|gif)", re.IGNORECASE)


def bundle_text(bundle: dict[str, Any]) -> str | None:
    """The bundle's text: what is for models, else its text/plain, or what says more than a default repr."""
    of_models = _text(bundle, MODELS)
    if of_models is not None:
        return of_models
    plain = _text(bundle, "text/plain")
    if plain is None or _is_default(plain):
        for kind in _WORDED:
            worded = _text(bundle, kind)
            if worded is not None:
                return worded
    return plain


def shown_text(bundle: dict[str, Any], ordinal: int) -> str:
    """The bundle's text, with a line about what it has beside a text that says too little."""
    text = bundle_text(bundle)
    if text is None:
        return f"[display {ordinal}: {_named(bundle) or 'empty'}; no text form]"
    beside = {} if MODELS in bundle else _beside(bundle, text)
    if not beside:
        return text
    line = f"[display {ordinal}: also {_named(beside)}; not shown]"
    above = text.removesuffix("\n")
    return f"{above}\n{line}" if above else line


def result_text(number: int, text: str) -> str:
    """A result as the combined stream has it; several lines begin below their label, so that columns stay aligned."""
    return f"Out[{number}]:\n{text}" if "\n" in text.removesuffix("\n") else f"Out[{number}]: {text}"


def shown_result(bundle: dict[str, Any], ordinal: int, number: int) -> str:
    """What the combined stream has of a result."""
    text = bundle_text(bundle)
    shown = shown_text(bundle, ordinal)
    return shown if text is None else result_text(number, text) + shown.removeprefix(text)


def _beside(bundle: dict[str, Any], text: str) -> dict[str, Any]:
    """The forms that are not shown, if the text says too little of what they hold."""
    forms = {kind: value for kind, value in bundle.items() if value is not None and not _NOT_BESIDE.fullmatch(kind)}
    if not forms or any(map(_SHOWN_IMAGE.fullmatch, bundle)):
        return {}
    plain = _plain(text)
    if _is_default(text) or _HOLLOW.fullmatch(plain):
        return forms
    if "\n" in plain or len(plain) > _LITTLE_CHARACTERS:
        return {}
    most = max(map(_bytes, forms.values()))
    return forms if most >= max(_BYTES, _TIMES * len(plain)) else {}


def _is_default(text: str) -> bool:
    """Whether a text is only an object's default repr, whatever a printer has made of it: colours, a break."""
    if "<" not in text[:200]:
        return False
    lines = _plain(text).split("\n")
    return any(_DEFAULT_REPR.fullmatch(joint.join(lines)) for joint in (" ", ""))


def _plain(text: str) -> str:
    """The beginning of a text as it is shown, without what surrounds it; longer than any that says too little."""
    return flatten(text[:2_000]).strip()


def _text(bundle: dict[str, Any], kind: str) -> str | None:
    value = bundle.get(kind)
    if value is None or isinstance(value, str):
        return value
    # nbformat stores texts as lists of lines, and some senders do so too
    return "".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _named(bundle: dict[str, Any]) -> str:
    return ", ".join(f"{kind} {_size(_bytes(value))}" for kind, value in bundle.items())


def _bytes(value: Any) -> int:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return len(text.encode("utf-8", "surrogatepass"))


def _size(count: int) -> str:
    size: float = count
    if size < 1000:
        return f"{count} B"
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} GB"
