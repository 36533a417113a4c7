"""The user's variables: name, type, size, a short preview; also while a cell runs.

Owns which names are the user's, and how many are told. What is said of a value is
`values`'s and `dataframes`'s, which run no code of anybody's. A value is held no longer than it
is looked at, since whoever lets go of it last runs its finalizer. Called by `running.control_requests`, on a
thread of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from loommux_kernel.preview.dataframes import facts
from loommux_kernel.preview.values import MISSING, NAMES, TRIES, bytes_of, cut, preview, size, type_name

#: So many are told of at most, those that were first given a value last.
MOST = 500
#: IPython's names for inputs and outputs, and Python's own.
ITS_OWN = re.compile(r"_{1,3}|_i{1,3}|_i?\d+|_[iod]h|__\w+__|In|Out")


def variables(namespace: dict[Any, Any], hidden: Mapping[str, Any]) -> dict[str, Any]:
    """``{"variables": [...], "total"}``; `hidden` are names with the values they had before the user's came."""
    names = _names(namespace, hidden)
    shown = [told for name in names[-MOST:] if (told := _told(name, namespace.get(name, MISSING))) is not None]
    return {"variables": shown, "total": len(names)}


def _names(namespace: dict[Any, Any], hidden: Mapping[str, Any]) -> list[str]:
    for _ in range(TRIES):
        try:
            keys = list(namespace)
        except RuntimeError:  # the cell gave a first value to a name meanwhile
            continue
        return [
            key
            for key in keys
            if type(key) is str
            and not ITS_OWN.fullmatch(key)
            and hidden.get(key, MISSING) is not namespace.get(key, MISSING)
        ]
    return []


def _told(name: str, value: object) -> dict[str, Any] | None:
    if value is MISSING:
        return None
    told: dict[str, Any] = {"name": cut(name, NAMES), "type": type_name(type(value))}
    try:
        known = facts(value)
        if known is not None:
            return {**told, "size": known.shape, "bytes": known.bytes, "preview": known.preview}
        return {**told, "size": size(value), "bytes": bytes_of(value), "preview": preview(value)}
    except Exception as error:  # the cell changed it half way; the others are told all the same
        return {**told, "size": None, "bytes": None, "preview": f"cannot be read: {type_name(type(error))}"}
