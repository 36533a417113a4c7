"""The grammar of the `%%loommux` cell header (contract 3.4). Pure; imported by host and kernel.

Knows what a header may say and where it stands in a cell; not what any of it does. The
host asks before it allocates or runs anything, the kernel when it takes the header out.
"""

from __future__ import annotations

import math
import re
import shlex
import textwrap
from dataclasses import dataclass

NAME, SECONDS = "NAME", "SECONDS"
NAME_CHARACTERS = 256


@dataclass(frozen=True)
class Option:
    """One option: what it takes (`NAME`, `SECONDS`, or nothing), what it does, and what it stands beside.

    Of each group in `beside` one option has to be there; none of `excludes` may be.
    """

    name: str
    takes: str
    does: str
    beside: tuple[tuple[str, ...], ...] = ()
    excludes: tuple[str, ...] = ()


#: The whole grammar: the parser, the usage, the help and docs/reference.md are made from it.
OPTIONS = (
    Option(
        "--kernel", NAME,
        "run the cell in the child kernel NAME, opened if missing, or in the one at a path or with an id;"
        " its output, its end and an interrupt of it come here",
        excludes=("--attach",),
    ),
    Option(
        "--attach", NAME,
        "move the session to the main kernel NAME (or its id) from this cell on; a server over stdio has only one;"
        " a client without sessions stays there by passing kernel=NAME in each call",
    ),
    Option(
        "--create", "",
        "with --attach: open that kernel if there is none; with --kernel it says what happens anyway",
        beside=(("--kernel", "--attach"),),
    ),
    Option(
        "--autoclose", "",
        "with --attach NAME --create: the kernel that is opened ends when no session holds it any more, its cell is"
        " over and its result was told",
        beside=(("--attach",), ("--create",)), excludes=("--keep",),
    ),
    Option(
        "--keep", "",
        "with --attach NAME --create: the kernel that is opened is kept after its sessions have ended, as a named one"
        " is anyway",
        beside=(("--attach",), ("--create",)),
    ),
    Option(
        "--alone", "",
        "with --attach: other sessions may read there, but run, interrupt and restart nothing, as long as this one"
        " holds the kernel",
        beside=(("--attach",),),
    ),
    Option(
        "--wait", SECONDS,
        "how long the call waits for this cell to end (10 unless given); the cell itself goes on running",
    ),
    Option("--silence", SECONDS, "how long the call waits without new output (10 unless given)"),
    Option("--full-output", "", "the complete output when the cell ends, also above the usual limit"),
)  # fmt: skip


def _usage() -> str:
    """All options; what stands beside another is within its brackets, what excludes another behind a bar."""

    def shown(option: Option, path: tuple[str, ...]) -> str:
        return " ".join([option.name, *filter(None, [option.takes]), *brackets((*path, option.name))])

    def brackets(path: tuple[str, ...]) -> list[str]:
        groups: list[list[Option]] = []
        for one in (option for option in OPTIONS if _belongs(option, path)):
            rivals = next((group for group in groups if any(_rivals(one, other) for other in group)), None)
            if rivals is None:
                groups.append([one])
            else:
                rivals.append(one)
        return [f"[{' | '.join(shown(one, path) for one in group)}]" for group in groups]

    return " ".join(["%%loommux", *brackets(())])


def _belongs(option: Option, path: tuple[str, ...]) -> bool:
    """Whether it stands beside the last option of `path`, and all that it needs is there."""
    if not path:
        return not option.beside
    within = all(any(name in path for name in group) for group in option.beside)
    return bool(option.beside) and within and path[-1] in option.beside[-1]


def _rivals(one: Option, other: Option) -> bool:
    return other.name in one.excludes or one.name in other.excludes


def _help() -> str:
    """One block for each option, in columns of a terminal."""
    heads = [f"{one.name} {one.takes}".rstrip() for one in OPTIONS]
    width = max(map(len, heads)) + 2
    return "\n".join(
        textwrap.fill(one.does, 100, initial_indent=head.ljust(width), subsequent_indent=" " * width)
        for head, one in zip(heads, OPTIONS, strict=True)
    )


USAGE = _usage()

HELP = f"""The header of a cell: its first line that is not blank.

    {USAGE}

Another cell magic may follow on the next line.

{_help()}

Options are written out in full; names with spaces are quoted as in a shell.
"""

_MARK = re.compile(r"%%loommux(?![\w?])")
BY_NAME = {one.name: one for one in OPTIONS}
#: A byte order mark, which Python passes over at the beginning of a file.
MARK_OF_ORDER = "\ufeff"


class InvalidHeader(Exception):
    """The header cannot be read; the message names what was wrong and what is allowed."""


@dataclass(frozen=True)
class Header:
    """What a header says. `line` is the index of its line in the cell, from 0. Times are seconds."""

    line: int
    kernel: str | None = None
    attach: str | None = None
    create: bool = False
    autoclose: bool = False
    keep: bool = False
    alone: bool = False
    wait: float | None = None
    silence: float | None = None
    full_output: bool = False

    def body(self, source: str) -> str:
        """The cell without its header and the blank lines before it."""
        return without_order_mark("".join(split_lines(source)[self.line + 1 :]))


def parse(source: str) -> Header | None:
    """The header of a cell, or None; raises `InvalidHeader`. `%%loommux?` asks for help and is none."""
    lines = split_lines(source)
    line = find(lines)
    if line is None:
        return None
    return _read(line, lines[line].strip().removeprefix("%%loommux"))


def without_order_mark(source: str) -> str:
    """The text without a byte order mark before its first character that is not blank."""
    code = source.lstrip()
    return source[: len(source) - len(code)] + code[1:] if code.startswith(MARK_OF_ORDER) else source


def find(lines: list[str]) -> int | None:
    """The index of the header's line: of the first one that is not blank, if it is a header."""
    for index, line in enumerate(lines):
        if line.strip():
            return index if _MARK.match(line.lstrip()) else None
    return None


def split_lines(source: str) -> list[str]:
    """Lines as IPython splits a cell, each with its end."""
    return without_order_mark(source).splitlines(keepends=True)


def _read(line: int, text: str) -> Header:
    values = _options(_words(text))
    for option in map(BY_NAME.__getitem__, values):
        if rival := next((name for name in option.excludes if name in values), None):
            raise InvalidHeader(f"{option.name} and {rival} exclude each other. Usage: {USAGE}")
        if missing := next((group for group in option.beside if not values.keys() & set(group)), None):
            raise InvalidHeader(f"{option.name} goes only with {' or '.join(missing)}. Usage: {USAGE}")
    return Header(
        line=line,
        kernel=values.get("--kernel"),
        attach=values.get("--attach"),
        create="--create" in values,
        autoclose="--autoclose" in values,
        keep="--keep" in values,
        alone="--alone" in values,
        wait=_seconds("--wait", values.get("--wait")),
        silence=_seconds("--silence", values.get("--silence")),
        full_output="--full-output" in values,
    )


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, posix=True)
    except ValueError as error:
        raise InvalidHeader(f"{str(error).rstrip('.').lower()} in {text.strip()!r}. Usage: {USAGE}") from None


def _options(words: list[str]) -> dict[str, str]:
    """Each option with its value; flags have an empty one."""
    values: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        option, assigned, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if option not in BY_NAME:
            raise InvalidHeader(f"{word!r} is not an option; allowed are {', '.join(BY_NAME)}. Usage: {USAGE}")
        if option in values:
            raise InvalidHeader(f"{option} is given twice. Usage: {USAGE}")
        if not BY_NAME[option].takes:
            if assigned:
                raise InvalidHeader(f"{option} takes no value, got {value!r}. Usage: {USAGE}")
        elif not assigned:
            value = next(rest, "--")
            if value.startswith("--"):
                raise InvalidHeader(f"{option} needs a value. Usage: {USAGE}")
        values[option] = _name(option, value) if BY_NAME[option].takes == NAME else value
    return values


def _name(option: str, value: str) -> str:
    """A name or an id; for --kernel a path as well."""
    parts = value.removeprefix("/").split("/") if option == "--kernel" and value.startswith("/") else [value]
    if len(parts) > 2 or not all(part.strip() and "/" not in part and part.isprintable() for part in parts):
        path = ", or a path like /main/child" if option == "--kernel" else ""
        raise InvalidHeader(f"{option} needs a printable name without /, or an id{path}, got {value!r}.")
    if any(len(part) > NAME_CHARACTERS for part in parts):
        raise InvalidHeader(f"{option} needs a name of at most {NAME_CHARACTERS} characters, got {len(value)}.")
    return value


def _seconds(option: str, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidHeader(f"{option} must be a positive, finite number of seconds, got {value!r}.")
    return seconds
