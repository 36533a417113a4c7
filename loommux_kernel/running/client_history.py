"""What a client's `history_request` finds: the cells of this process, of whoever sent them.

Owns the three ways of asking, as Jupyter defines them. IPython answers from a database
file, which a kernel of ours does not have (contract 8.3). Pure; called by `message_intake`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

#: A cell that was run: its number, and its source as sent.
Past = tuple[int, str]


def asked(inputs: Sequence[str], kind: str, request: dict[str, Any]) -> list[Past]:
    """The cells that a request of that kind wants, the oldest first; `inputs` are all, by number."""
    past = [(number, source) for number, source in enumerate(inputs) if number and source]
    if kind == "tail":
        return _last(past, request.get("n"))
    if kind == "search":
        pattern = request.get("pattern") or "*"
        found = [cell for cell in past if fnmatchcase(cell[1], pattern)]
        return _last(_latest_of_each(found) if request.get("unique") else found, request.get("n"))
    first, stop = request.get("start") or 0, request.get("stop")
    first = first if first >= 0 else len(inputs) + first
    return [cell for cell in past if first <= cell[0] and (stop is None or cell[0] < stop)]


def as_sent(session: int, past: Sequence[Past], *, output: bool) -> list[tuple[Any, ...]]:
    """As the reply's content has them; no outputs are kept for it."""
    return [(session, number, (source, None) if output else source) for number, source in past]


def _last(past: list[Past], n: int | None) -> list[Past]:
    return past if n is None else past[-n:] if n > 0 else []


def _latest_of_each(past: Sequence[Past]) -> list[Past]:
    latest = {source: number for number, source in past}
    return sorted((number, source) for source, number in latest.items())
