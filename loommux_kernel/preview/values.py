"""What a value is, in a few words, read without running anybody's code.

Values of exact builtin types are shown; of others nothing is asked but their type, except
for the arrays and frames of `dataframes`. A subclass counts as other: its methods are its
author's. No method of a value is looked up on the value, no ``repr`` is made of anything
that holds foreign objects. Pure; `variables` calls it, on a thread of its own, while a cell
may change what is looked at.
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable
from itertools import islice
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

#: Characters of a preview, of a name, and of a type's name.
PREVIEW, NAMES = 200, 120
#: Items and depth of what a container's preview shows.
ITEMS, DEPTH = 10, 3
#: A longer int is not written out: that takes time, and Python refuses.
BITS = 512
#: How often a container is looked at again that changed meanwhile.
TRIES = 3

#: Types by their ids: a metaclass may have its say in their hashes, and in what equals them.
PLAIN = frozenset(map(id, (int, float, complex, bool, type(None), type(Ellipsis), type(NotImplemented), range)))
TEXTS = frozenset(map(id, (str, bytes, bytearray)))
MAPPINGS = frozenset(map(id, (dict, defaultdict)))
#: Brackets of containers.
CONTAINERS = {
    id(list): ("[", "]"),
    id(tuple): ("(", ")"),
    id(set): ("{", "}"),
    id(frozenset): ("frozenset({", "})"),
    id(deque): ("deque([", "])"),
    id(dict): ("{", "}"),
    id(defaultdict): ("defaultdict({", "})"),
}
IN_C = frozenset(map(id, (GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType)))
MISSING = object()
_CLASS_DICT: Callable[[type], Any] = type.__dict__["__dict__"].__get__
_MRO: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_QUALNAME: Callable[[type], str] = type.__dict__["__qualname__"].__get__
_MODULE: Callable[[type], object] = type.__dict__["__module__"].__get__


def type_parts(kind: type) -> tuple[str, str]:
    """Module and name of a type, whatever its metaclass says; the module is empty when it is not text."""
    try:
        module = _MODULE(kind)
    except AttributeError:
        module = ""
    return module if type(module) is str else "", str.__str__(_QUALNAME(kind))


def type_name(kind: type) -> str:
    """As people write it: ``int``, ``numpy.ndarray``."""
    module, name = type_parts(kind)
    return cut(name if module in ("builtins", "__main__", "") else f"{module}.{name}", NAMES)


def bases(value: object) -> tuple[type, ...]:
    """The types it is an instance of, whatever it says itself."""
    return _MRO(type(value))


def in_c(value: object, name: str) -> Any:
    """An attribute that C code of the value's type gives, a bound method of C included; else `MISSING`."""
    for kind in bases(value):
        found = _CLASS_DICT(kind).get(name, MISSING)
        if found is MISSING:
            continue
        if id(type(found)) in IN_C:
            try:
                return found.__get__(value)
            except AttributeError:
                return MISSING
        return MISSING
    return MISSING


def size(value: object) -> int | None:
    """How many items or characters it has."""
    kind = type(value)
    if kind is range:
        return length_of(value)  # pyright: ignore[reportArgumentType]
    sized = id(kind) in TEXTS or id(kind) in CONTAINERS
    return len(value) if sized else None  # pyright: ignore[reportArgumentType]


def length_of(numbers: range) -> int | None:
    """None when there are more than Python counts."""
    try:
        return len(numbers)
    except OverflowError:
        return None


def bytes_of(value: object) -> int | None:
    """Its own bytes, without those of what it holds."""
    return sys.getsizeof(value) if _is_builtin(value) else None


def preview(value: object) -> str | None:
    """At most `PREVIEW` characters; None for a value of which only the type is known."""
    kind = type(value)
    if _is_builtin(value):
        return cut(_shown(value, DEPTH), PREVIEW)
    if kind is FunctionType:
        return cut(_signature(value), PREVIEW)
    if kind is BuiltinFunctionType:
        return cut(str(in_c(value, "__name__")), PREVIEW)
    if kind is ModuleType:
        name = in_c(value, "__dict__").get("__name__")
        return cut(name, PREVIEW) if type(name) is str else None
    if issubclass(kind, type):
        return cut("class " + type_name(value), PREVIEW)  # pyright: ignore[reportArgumentType]
    return None


def items_shown(items: list[Any]) -> str:
    """A few items, as a list's inside."""
    return ", ".join(_shown(item, 1) for item in items)


def cut(text: str, limit: int) -> str:
    """At most so many characters, and none that UTF-8 cannot say."""
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _is_builtin(value: object) -> bool:
    kind = id(type(value))
    return kind in PLAIN or kind in TEXTS or kind in CONTAINERS


def _shown(value: Any, depth: int) -> str:
    kind = type(value)
    if kind is int and value.bit_length() > BITS:
        return f"int of {value.bit_length():,} bits"
    if kind is range:
        return f"range({', '.join(_shown(part, 0) for part in (value.start, value.stop, value.step))})"
    if id(kind) in PLAIN:
        return repr(value)
    if id(kind) in TEXTS:
        return repr(value[:PREVIEW]) + ("…" if len(value) > PREVIEW else "")
    if id(kind) not in CONTAINERS:
        return f"<{type_name(kind)}>"
    opening, closing = CONTAINERS[id(kind)]
    if kind in (set, frozenset) and not value:
        return f"{kind.__name__}()"
    if depth <= 0:
        return f"{opening}…{closing}" if value else opening + closing
    return opening + _inside(value, depth) + closing


def _inside(value: Any, depth: int) -> str:
    some = _some(value)
    if some is None:
        return "it is changing"
    if id(type(value)) in MAPPINGS:
        shown = [f"{_shown(key, depth - 1)}: {_shown(item, depth - 1)}" for key, item in some]
    else:
        shown = [_shown(item, depth - 1) for item in some]
    more = len(value) - len(shown)
    if more > 0:
        return ", ".join([*shown, f"… {more:,} more"])
    return ", ".join(shown) + ("," if type(value) is tuple and len(shown) == 1 else "")


def _some(value: Any) -> list[Any] | None:
    """The first items; None when the running cell never leaves it alone for so long."""
    for _ in range(TRIES):
        try:
            return list(islice(value.items() if id(type(value)) in MAPPINGS else value, ITEMS))
        except RuntimeError:
            continue
    return None


def _signature(function: Any) -> str:
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    names = list(code.co_varnames[: min(count, ITEMS)]) + ["…"] * (count > ITEMS)
    stars = code.co_varnames[count : count + bool(code.co_flags & 4) + bool(code.co_flags & 8)]
    if code.co_flags & 4:
        names.append(f"*{stars[0]}")
    if code.co_flags & 8:
        names.append(f"**{stars[-1]}")
    return f"{str.__str__(function.__name__)}({', '.join(names)})"
