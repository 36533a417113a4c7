"""How a command ends: exit codes, a refusal with its status word, text for people or JSON for programs.

Every command speaks through here, so that all do it the same way: what was asked for goes to
stdout, everything else to stderr; with ``--json`` stdout carries JSON alone.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from typing import Any

#: What was asked for was done.
DONE = 0
#: It was done, and what came out is a failure: a cell that raised, a check that found something.
FAILED = 1
#: The command line cannot be used.
USAGE = 2
#: Nothing was done; the status word says why.
REFUSED = 3
#: The time to wait is over, and the cell still runs.
RUNNING = 4
#: Ended by Ctrl+C, as shells count it.
INTERRUPTED = 130


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
    except Refused as refused:
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
    sys.stdout.write(f"{text}\n")


def show_json(value: Mapping[str, Any] | list[Any]) -> None:
    """The answer for a program: one JSON value on a line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A line beside the answer."""
    sys.stderr.write(f"loommux: {text}\n")
    sys.stderr.flush()
