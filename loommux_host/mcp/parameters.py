"""What a tool is: parameters with their JSON schemas, and the check of arguments (contract 3).

Owns the kinds of values and the words of a refused argument. Knows no tool: `tools`
declares them with what is here, `tool_calls` has arguments checked. Plain tables and no
validation library, because a schema written out is shorter than one generated, a refusal
has to name the parameter, the value and what is allowed, and a server answers its first
request before such a library could be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: Hosts that cut results by default are asked to take this many characters.
RESULT_CHARACTERS = 200_000
#: Integers that every client's JSON holds exactly.
LARGEST_INTEGER = 2**53 - 1


class BadArgument(Exception):
    """An argument that a tool does not take. `allowed` goes on after "is not possible: "."""

    def __init__(self, parameter: str, value: object, allowed: str) -> None:
        super().__init__(f"{parameter}={value!r}: {allowed}")
        self.parameter, self.value, self.allowed = parameter, value, allowed


@dataclass(frozen=True)
class Kind:
    """What a value may be. `check` returns the value as the service takes it, or raises ValueError."""

    schema: Mapping[str, Any]
    allowed: str
    check: Callable[[object], Any]


@dataclass(frozen=True)
class Parameter:
    """One parameter. Without a default it may be left out all the same unless it is `required`."""

    name: str
    kind: Kind
    description: str
    default: Any = None
    required: bool = False

    def schema(self) -> dict[str, Any]:
        default = {} if self.default is None else {"default": self.default}
        return {**self.kind.schema, "description": self.description, **default}


@dataclass(frozen=True)
class Tool:
    """One tool. `hints` are MCP's annotations; `long` results may be larger than hosts expect."""

    name: str
    title: str
    description: str
    parameters: tuple[Parameter, ...]
    hints: Mapping[str, bool]
    long: bool = False

    def listing(self) -> dict[str, Any]:
        """This tool as ``tools/list`` gives it."""
        schema = {
            "type": "object",
            "properties": {p.name: p.schema() for p in self.parameters},
            "required": [p.name for p in self.parameters if p.required],
            "additionalProperties": False,
        }
        if not schema["required"]:
            del schema["required"]
        meta = {"_meta": {"anthropic/maxResultSizeChars": RESULT_CHARACTERS}} if self.long else {}
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": schema,
            "annotations": {"title": self.title, **self.hints},
            **meta,
        }

    def arguments(self, given: Mapping[str, object]) -> dict[str, Any]:
        """The arguments as the service takes them, defaults filled in; null is the same as left out.

        Raises `BadArgument`.
        """
        known = {p.name for p in self.parameters}
        for name, value in given.items():
            if name not in known:
                raise BadArgument(name, value, f"{self.name} takes {', '.join(p.name for p in self.parameters)}")
        return {p.name: self._argument(p, given.get(p.name)) for p in self.parameters}

    def _argument(self, parameter: Parameter, value: object) -> Any:
        if value is None and not parameter.required:
            if parameter.default is None:
                return None
            value = parameter.default
        try:
            return parameter.kind.check(value)
        except ValueError:
            raise BadArgument(parameter.name, value, f"it has to be {parameter.kind.allowed}") from None


# -- kinds -------------------------------------------------------------------------


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    value.encode()  # a lone surrogate is a ValueError
    return value


def _cell(value: object) -> str:
    return "" if value == "" else _text(value)


def _integer(minimum: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        # JSON has one type of number: 7.0 is 7 to many clients.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= LARGEST_INTEGER:
            raise ValueError
        return value

    return check


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST_INTEGER:
        raise ValueError
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def one_of(*words: str, make: Callable[[str], Any] = str) -> Kind:
    """A kind with a fixed set of words; `make` turns a word into what the service takes."""

    def check(value: object) -> Any:
        if value not in words:
            raise ValueError
        return make(str(value))

    return Kind({"type": "string", "enum": list(words)}, "one of " + ", ".join(words), check)


CELL = Kind({"type": "string"}, "a string (Unicode without lone surrogates)", _cell)
TEXT = Kind({"type": "string", "minLength": 1}, "a string that is not empty", _text)
POSITIVE = Kind({"type": "integer", "minimum": 1}, "a positive integer", _integer(1))
COUNT = Kind({"type": "integer", "minimum": 0}, "an integer, 0 or more", _integer(0))
SECONDS = Kind({"type": "number", "exclusiveMinimum": 0}, "a positive, finite number of seconds", _seconds)
FLAG = Kind({"type": "boolean"}, "true or false", _flag)
