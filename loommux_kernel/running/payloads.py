"""Payloads: what a cell asks of the program that shows it, as text for its next input.

Owns what becomes of them when nobody is there who could do it: the text is shown, or it
is said that nothing was done. A foreign client gets its payloads as ever. The pager and
`exit` are `shell`'s. Called by `cell_runner` at a cell's end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NOT_RUN = "the text above was not run: there is no next input here that it could be put into; send it as a cell"
NO_EDITOR = "no editor can be opened here: {file} was not changed; write to the file in a cell"
UNKNOWN = "a payload {source!r} was left out: only Jupyter clients can do what it asks"
#: What the shell has dealt with already.
DEALT_WITH = {"page", "ask_exit"}


def tell(payloads: list[dict[str, Any]], show: Callable[[str], object], say: Callable[[str], object]) -> None:
    """Show the text of those that have one, and say of each what was not done."""
    for payload in payloads:
        source = payload.get("source")
        if source == "set_next_input":
            text = str(payload.get("text", ""))
            show(text if text.endswith("\n") else f"{text}\n")
            say(NOT_RUN)
        elif source in ("edit", "edit_magic"):
            say(NO_EDITOR.format(file=payload.get("filename")))
        elif source not in DEALT_WITH:
            say(UNKNOWN.format(source=source))
