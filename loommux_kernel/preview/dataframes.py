"""What arrays and frames of numpy, pandas and polars say of themselves, without running their Python.

Owns where those libraries keep shapes, types and names. It follows instance dictionaries
and what C code answers (`values.in_c`), and believes only exact types, so that a class that
only looks like one of theirs has nothing of its own called. The libraries are never
imported here. Pure; called by `variables`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from loommux_kernel.preview.values import (
    ITEMS,
    MISSING,
    NAMES,
    PREVIEW,
    bases,
    cut,
    in_c,
    items_shown,
    length_of,
    preview,
    type_name,
    type_parts,
)  # fmt: skip

#: Where pandas keeps what an index or a column holds.
INSIDE = ("_range", "_data", "_ndarray", "_codes", "_pa_array")
DEEPEST = 4
#: Those in which it is held as it is shown.
SIMPLE = frozenset({("pandas", "Index"), ("pandas", "RangeIndex"), ("pandas.arrays", "StringArray")})
#: Kinds of numpy's types whose values are plain numbers.
NUMBERS = "biufc"
#: And of those that name columns and rows.
NAMING = NUMBERS + "OT"


@dataclass(frozen=True)
class Facts:
    """`shape` is a list of sizes; `bytes` those of the values, where that is known at once."""

    shape: list[int] | None
    preview: str | None
    bytes: int | None = None


def facts(value: object) -> Facts | None:
    """What is known of the value; None when it is none of those types, or not made as they are."""
    module, name = type_parts(type(value))
    look = KNOWN.get((module.partition(".")[0], name))
    if look is not None:
        return look(value)
    return _scalar(value) if module == "numpy" else None


def _lacks(*found: object) -> bool:
    return any(one is MISSING for one in found)


# -- numpy ---------------------------------------------------------------------------


def _array(value: object) -> Facts | None:
    shape, kind, size = in_c(value, "shape"), in_c(value, "dtype"), in_c(value, "nbytes")
    if type(shape) is not tuple or _lacks(kind, size):
        return None
    text = _dtype(kind)
    if in_c(kind, "kind") in NUMBERS:
        text = f"{text} {_items(value)}".rstrip()
    return Facts(list(shape), cut(text, PREVIEW), size)


def _dtype(kind: object) -> str:
    scalar = in_c(kind, "type")
    return cut(type_parts(scalar)[1], NAMES) if issubclass(type(scalar), type) else "?"


def _items(array: object) -> str:
    """The first values, of an array whose memory is its own or another array's: what is mapped may be gone."""
    base = in_c(array, "base")
    if base is not None and (type(base) is not type(array) or in_c(base, "base") is not None):
        return ""
    some = _first(array)
    if some is None:
        return ""
    more = math.prod(in_c(array, "shape")) - len(some)
    return f"[{items_shown(some)}{f', … {more:,} more' if more > 0 else ''}]"


def _first(array: object) -> list[Any] | None:
    flat = in_c(array, "flat")
    if flat is MISSING or type_parts(type(flat)) != ("numpy", "flatiter"):
        return None
    some = in_c(flat[:ITEMS], "tolist")()
    return some if type(some) is list else None


def _scalar(value: object) -> Facts | None:
    item = in_c(value, "item")
    if item is MISSING or ("numpy", "generic") not in map(type_parts, bases(value)):
        return None
    if in_c(in_c(value, "dtype"), "kind") not in NUMBERS:
        return None
    return Facts(None, preview(item()), in_c(value, "nbytes"))


# -- pandas --------------------------------------------------------------------------


def _pandas_frame(value: object) -> Facts | None:
    axes = _axes(value)
    if len(axes) != 2:
        return None
    columns, rows = axes
    shape = (_length(rows), _length(columns))
    if shape[0] is None or shape[1] is None:
        return None
    return Facts([shape[0], shape[1]], _columns(_names(columns), shape[1]))


def _series(value: object) -> Facts | None:
    axes = _axes(value)
    length = _length(axes[0]) if len(axes) == 1 else None
    if length is None:
        return None
    name = _attribute(value, "_name")
    blocks = _attribute(_attribute(value, "_mgr"), "blocks")
    values = in_c(blocks[0], "values") if type(blocks) is tuple and len(blocks) == 1 else MISSING
    array = _array(values) if type_parts(type(values)) == ("numpy", "ndarray") else None
    shown = array.preview if array else None if values is MISSING else type_name(type(values))
    named = f"{items_shown([name])}: " if name is not None and name is not MISSING else ""
    return Facts([length], cut(f"{named}{shown or ''}", PREVIEW) or None, array.bytes if array else None)


def _index(value: object) -> Facts | None:
    length = _length(value)
    return (
        None
        if length is None
        else Facts([length], cut(f"[{items_shown(_names(value))}]", PREVIEW) if _names(value) else None)
    )


def _axes(value: object) -> list[Any]:
    axes = _attribute(_attribute(value, "_mgr"), "axes")
    return axes if type(axes) is list else []


def _attribute(value: object, name: str) -> Any:
    """From the instance's own dictionary, or from C."""
    own = in_c(value, "__dict__")
    found = own.get(name, MISSING) if type(own) is dict else MISSING
    return in_c(value, name) if found is MISSING else found


def _length(value: object, depth: int = DEEPEST) -> int | None:
    """How many entries an index, a column, or what is inside it has."""
    if type(value) is range:
        return length_of(value)
    module, name = type_parts(type(value))
    if (module, name) == ("numpy", "ndarray"):
        shape = in_c(value, "shape")
        return shape[0] if type(shape) is tuple and shape else None
    if module == "pyarrow.lib":
        length = in_c(value, "__len__")
        return length() if length is not MISSING else None
    if name == "FrozenList" and issubclass(type(value), list):
        codes: Any = value
        return _length(list.__getitem__(codes, 0), depth - 1) if list.__len__(codes) else None
    inside = _inside(value) if depth > 0 else MISSING
    return None if inside is MISSING else _length(inside, depth - 1)


def _inside(value: object) -> Any:
    return next((found for name in INSIDE if (found := _attribute(value, name)) is not MISSING), MISSING)


def _names(value: object, depth: int = DEEPEST) -> list[Any]:
    """The first entries of an index, as far as they are had without its Python."""
    if type(value) is range:
        return list(value[:ITEMS])
    if type_parts(type(value)) == ("numpy", "ndarray"):
        return (_first(value) or []) if in_c(in_c(value, "dtype"), "kind") in NAMING else []
    named = depth > 0 and type_parts(type(value)) in SIMPLE
    return _names(_inside(value), depth - 1) if named else []


def _columns(names: list[Any], count: int) -> str:
    more = count - len(names)
    shown = items_shown(names)
    if not names:
        return f"{count:,} columns"
    return cut(f"columns {shown}{f', … {more:,} more' if more > 0 else ''}", PREVIEW)


# -- polars --------------------------------------------------------------------------


def _polars_frame(value: object) -> Facts | None:
    inner = _attribute(value, "_df")
    height, width, columns = (in_c(inner, name) for name in ("height", "width", "columns"))
    if _lacks(height, width, columns):
        return None
    count = width()
    return Facts([height(), count], _columns(columns()[:ITEMS], count))


def _polars_series(value: object) -> Facts | None:
    inner = _attribute(value, "_s")
    length, name = in_c(inner, "len"), in_c(inner, "name")
    return None if _lacks(length, name) else Facts([length()], cut(items_shown([name()]), PREVIEW))


def _looks() -> dict[tuple[str, str], Any]:
    indexes = (
        "Index",
        "RangeIndex",
        "MultiIndex",
        "DatetimeIndex",
        "TimedeltaIndex",
        "PeriodIndex",
        "CategoricalIndex",
    )
    return {
        ("numpy", "ndarray"): _array,
        ("pandas", "DataFrame"): _pandas_frame,
        ("pandas", "Series"): _series,
        **{("pandas", name): _index for name in indexes},
        ("polars", "DataFrame"): _polars_frame,
        ("polars", "Series"): _polars_series,
    }


KNOWN = _looks()
