"""The grammar of the `%%loommux` cell header (contract 3.4). Pure; imported by host and kernel.

Knows what a header may say and where it stands in a cell; not what any of it does. The
host asks before it allocates or runs anything, the kernel when it takes the header out.
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass

USAGE = "%%loommux [--kernel NAME | --attach NAME [--create]] [--wait SECONDS] [--silence SECONDS] [--full-output]"

HELP = f"""The header of a cell: its first line that is not blank.

    {USAGE}

Another cell magic may follow on the next line.

--wait SECONDS     how long the call waits for this cell to end (10 unless given);
                   the cell itself goes on running
--silence SECONDS  how long the call waits without new output (10 unless given)
--full-output      the complete output when the cell ends, also above the usual limit
--kernel NAME      run the cell in the child kernel NAME, opened if missing, or in the one
                   at a path or with an id; its output, its end and an interrupt of it come here
--attach NAME      move the session to the main kernel NAME (or its id) from this cell on;
                   a server over stdio has only one; a client without sessions stays there
                   by passing kernel=NAME in each call
--create           with --attach: open that kernel if there is none

Options are written out in full; names with spaces are quoted as in a shell.
"""

_MARK = re.compile(r"%%loommux(?![\w?])")
_NAMES = {"--kernel", "--attach"}
_SECONDS = {"--wait", "--silence"}
_FLAGS = {"--create", "--full-output"}
_OPTIONS = ["--kernel", "--attach", "--create", "--wait", "--silence", "--full-output"]
_NAME_CHARACTERS = 256
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
    if "--kernel" in values and "--attach" in values:
        raise InvalidHeader(f"--kernel and --attach exclude each other. Usage: {USAGE}")
    if "--create" in values and "--attach" not in values:
        raise InvalidHeader(f"--create goes only with --attach. Usage: {USAGE}")
    return Header(
        line=line,
        kernel=values.get("--kernel"),
        attach=values.get("--attach"),
        create="--create" in values,
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
        if option not in _OPTIONS:
            raise InvalidHeader(f"{word!r} is not an option; allowed are {', '.join(_OPTIONS)}. Usage: {USAGE}")
        if option in values:
            raise InvalidHeader(f"{option} is given twice. Usage: {USAGE}")
        if option in _FLAGS:
            if assigned:
                raise InvalidHeader(f"{option} takes no value, got {value!r}. Usage: {USAGE}")
        elif not assigned:
            value = next(rest, "--")
            if value.startswith("--"):
                raise InvalidHeader(f"{option} needs a value. Usage: {USAGE}")
        values[option] = _name(option, value) if option in _NAMES else value
    return values


def _name(option: str, value: str) -> str:
    if not value.strip() or not value.isprintable() or len(value) > _NAME_CHARACTERS:
        raise InvalidHeader(f"{option} needs a printable name of at most {_NAME_CHARACTERS} characters, got {value!r}.")
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
