"""How a command ends: exit codes, a refusal with its status word, text for people or JSON for programs.

Every command speaks through here, so that all do it the same way: what was asked for goes to
stdout, everything else to stderr; with ``--json`` stdout carries JSON alone. Nobody else writes
there, since every character that others have chosen (names, output, paths, what clients call
themselves) passes here on its way to a terminal: what would act on that is shown, not done.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from typing import Any

from loommux_host.facts.phrases import visible
from loommux_kernel.shared.transport import DaemonError

DONE, FAILED, USAGE, REFUSED, RUNNING, INTERRUPTED = 0, 1, 2, 3, 4, 130
#: What each exit code means, for the reference.
EXITS: Mapping[int, str] = {
    DONE: "what was asked for was done",
    FAILED: "it was done, and what came out is a failure: a cell that raised, a check that found something",
    USAGE: "the command line cannot be used, or a server cannot start",
    REFUSED: "nothing was done; the status word on stderr says why",
    RUNNING: "the time to wait is over, and the cell still runs",
    INTERRUPTED: "ended by Ctrl+C; for `run` by the second, as the first interrupts the cell",
}
#: The status words that commands add to those of the server.
WORDS: Mapping[str, str] = {
    "invalid_argument": "an argument's value is not allowed",
    "host_not_found": "install: no MCP host was found on this machine",
    "entry_differs": "install: the file has another entry of that name",
    "file_unreadable": "a file cannot be read, or is not UTF-8",
    "file_not_understood": "install: the file is not what the host writes, so it was left alone",
    "file_changed": "install: another program changed the file meanwhile",
    "file_not_writable": "a file cannot be written",
    "file_exists": "export: the file is there already",
    "server_not_found": "no server of yours has that process id, or none runs",
    "server_ambiguous": "create: several servers could be meant; the text lists them",
    "kernel_not_found": "no kernel is called that",
    "kernel_ambiguous": "several kernels could be meant; the text lists their ids",
    "directory_refused": "the directory of your servers cannot be trusted",
    "cannot_listen": "console: the port cannot be bound",
    "no_standard_streams": "connect: there is no standard input or output",
    "client_not_installed": "attach: Jupyter's client is not installed",
    "kernelspec_not_found": "kernelspec remove: there is none of loommux",
    "busy": "run: another cell runs in that kernel",
    "unreachable": "the server cannot be reached",
    "timeout": "the server did not answer in time",
    "bad_response": "what answered is no loommux server",
}


class Refused(Exception):
    """Nothing was done. `status` is a word for programs, the message says what to do instead."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def json_argument(parser: ArgumentParser) -> None:
    """``--json``, worded alike everywhere."""
    parser.add_argument("--json", action="store_true", help="JSON on stdout, for programs")


def guarded(run: Callable[[Namespace], int], options: Namespace) -> int:
    """Run a command; whatever ends it early becomes an exit code and a line that says why."""
    try:
        code = run(options)
        sys.stdout.flush()
        return code
    except (Refused, DaemonError) as refused:
        if getattr(options, "json", False):
            show_json({"ok": False, "status": refused.status, "message": refused.message})
        say(f"{refused.status}: {refused.message}")
        return USAGE if refused.status == "invalid_argument" else REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # `loommux logs … | head`: the reader has enough. Python would complain again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


def show(text: str) -> None:
    """A line of what was asked for."""
    show_output(f"{text}\n")


def show_output(text: str) -> None:
    """A piece of what was asked for, at once: lines that may go on."""
    sys.stdout.write(visible(text))
    sys.stdout.flush()


def show_json(value: Mapping[str, Any] | list[Any]) -> None:
    """The answer for a program: one JSON value on a line."""
    show_output(as_json(value) + "\n")


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON in which what would act on a terminal is escaped as JSON does it, so that no character is lost."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return "".join(c if visible(c) == c else f"\\u{ord(c):04x}" for c in text) if visible(text) != text else text


def say(text: str) -> None:
    """A line beside the answer."""
    sys.stderr.write(visible(f"loommux: {text}\n"))
    sys.stderr.flush()


class LogFormatter(logging.Formatter):
    """For a server's log: no record looks like another, and none acts on a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).replace("\n", "\n  ")

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


class Parser(ArgumentParser):
    """A command line's parser; what it says of words that it was given is shown as everything else is."""

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(visible(message) if message else message, file)
