"""JSON with comments, edited in place: one entry set, every other byte as it was.

Hosts' configuration files are people's own: with comments, trailing commas, an order and an
indentation that someone chose. Pure text in, text out; `configuration_file` calls this. It reads
what VS Code reads: comments of both kinds, trailing commas, a byte order mark.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

#: Blanks and comments, as far as they go.
_GAP = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\r\n]*|/\*.*?\*/)*", re.S)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_WORD = re.compile(r"[-+.\w]+")
DEFAULT_INDENT = "  "


class NotUnderstood(ValueError):
    """The text is not JSON with comments, or not of the shape that an entry can go into."""


@dataclass(frozen=True)
class _Member:
    name: str
    start: int
    value: _Node


@dataclass(frozen=True)
class _Node:
    """A value and where it stands: `text[start:end]`. `members` only of an object."""

    start: int
    end: int
    value: Any
    members: tuple[_Member, ...] | None = None
    trailing_comma: bool = False

    def member(self, name: str) -> _Member | None:
        """The last one of that name, which is the one that counts."""
        return next((m for m in reversed(self.members or ()) if m.name == name), None)


def loads(text: str) -> Any:
    """What the text says; an empty one is an empty object. Raises `NotUnderstood`."""
    node = _parse(text)
    return {} if node is None else node.value


def entry(text: str, container: str, name: str) -> Any | None:
    """The value at ``container.name``, None where there is none."""
    held = loads(text)
    inner = held.get(container) if isinstance(held, dict) else None
    return inner.get(name) if isinstance(inner, dict) else None


def put(text: str, container: str, name: str, value: Any) -> str:
    """The text with `value` at ``container.name``; objects that are missing are made."""
    root = _parse(text)
    if root is None:
        fresh = json.dumps({container: {name: value}}, indent=len(DEFAULT_INDENT), ensure_ascii=False)
        before = f"{text.rstrip()}\n" if text.strip() else ""
        return f"{before}{fresh}\n"
    if root.members is None:
        raise NotUnderstood("it does not hold an object")
    held = root.member(container)
    if held is None:
        return _insert(text, root, root, container, {name: value})
    if held.value.members is None:
        raise NotUnderstood(f"its {container!r} is not an object")
    there = held.value.member(name)
    if there is None:
        return _insert(text, root, held.value, name, value)
    shown = _shown(text, root, value, _indent_at(text, there.start))
    return text[: there.value.start] + shown + text[there.value.end :]


# -- writing -------------------------------------------------------------------------


def _insert(text: str, root: _Node, into: _Node, name: str, value: Any) -> str:
    """Add a member behind the last one."""
    newline, unit = _newline(text), _unit(text, root)
    close = into.end - 1
    inner = text[into.start + 1 : close]
    on_one_line = "\n" not in inner and (bool(into.members) or "\n" not in text.strip())
    if on_one_line:
        shown = f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"
        last = into.members[-1].value.end if into.members else None
        if last is None:
            return text[: into.start + 1] + shown + text[close:]
        comma = "" if into.trailing_comma else ","
        return f"{text[:last]}{comma}{text[last:close].rstrip()} {shown}{text[close:]}"
    outer = _indent_at(text, into.start)
    indent = _indent_at(text, into.members[-1].start) if into.members else outer + unit
    comma = "," if into.trailing_comma else ""
    shown = f"{newline}{indent}{json.dumps(name)}: {_shown(text, root, value, indent)}{comma}{newline}{outer}"
    head = text[:close].rstrip(" \t\r\n")
    if into.members and not into.trailing_comma:
        last = into.members[-1].value.end
        head = f"{head[:last]},{head[last:]}"
    return head + shown + text[close:]


def _shown(text: str, root: _Node, value: Any, indent: str) -> str:
    if "\n" not in text.strip():
        return json.dumps(value, ensure_ascii=False)
    lines = json.dumps(value, indent=_unit(text, root), ensure_ascii=False).split("\n")
    return f"{_newline(text)}{indent}".join(lines)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _unit(text: str, root: _Node) -> str:
    """How far the file indents."""
    first = root.members[0].start if root.members else root.start
    return _indent_at(text, first) or DEFAULT_INDENT


def _indent_at(text: str, position: int) -> str:
    """The blanks that begin the line of a position."""
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip(" \t"))]


# -- reading -------------------------------------------------------------------------


def _parse(text: str) -> _Node | None:
    """The value that the text holds, None for one of blanks and comments alone."""
    start = _skip(text, 0)
    if start == len(text):
        return None
    try:
        node = _node(text, start)
    except RecursionError:
        raise NotUnderstood("it is nested too deeply") from None
    end = _skip(text, node.end)
    if end != len(text):
        raise _bad(text, end)
    return node


def _skip(text: str, position: int) -> int:
    match = _GAP.match(text, position)
    return match.end() if match else position


def _bad(text: str, position: int) -> NotUnderstood:
    line = text.count("\n", 0, position) + 1
    found = "it ends too early" if position >= len(text) else f"unexpected {text[position : position + 20]!r}"
    return NotUnderstood(f"line {line} is not JSON: {found}")


def _node(text: str, at: int) -> _Node:
    if text.startswith("{", at):
        return _object(text, at)
    if text.startswith("[", at):
        return _array(text, at)
    match = _STRING.match(text, at) or _WORD.match(text, at)
    if match is None:
        raise _bad(text, at)
    try:
        return _Node(at, match.end(), json.loads(match[0]))
    except ValueError:
        raise _bad(text, at) from None


def _object(text: str, at: int) -> _Node:
    members: list[_Member] = []
    position, comma = _skip(text, at + 1), False
    while not text.startswith("}", position):
        key = _STRING.match(text, position)
        if key is None or (members and not comma):
            raise _bad(text, position)
        colon = _skip(text, key.end())
        if not text.startswith(":", colon):
            raise _bad(text, colon)
        value = _node(text, _skip(text, colon + 1))
        members.append(_Member(json.loads(key[0]), position, value))
        position, comma = _after(text, value.end)
    named = {member.name: member.value.value for member in members}
    return _Node(at, position + 1, named, tuple(members), comma)


def _array(text: str, at: int) -> _Node:
    values: list[Any] = []
    position, comma = _skip(text, at + 1), False
    while not text.startswith("]", position):
        if values and not comma:
            raise _bad(text, position)
        item = _node(text, position)
        values.append(item.value)
        position, comma = _after(text, item.end)
    return _Node(at, position + 1, values)


def _after(text: str, end: int) -> tuple[int, bool]:
    """Where the next item or the closing bracket is, and whether a comma came before it."""
    position = _skip(text, end)
    if text.startswith(",", position):
        return _skip(text, position + 1), True
    return position, False
