"""Show the output of a cell: the running one, else the most recent, or the one with that number.

All of it, however long it is, goes to stdout; which cell it is goes to stderr.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import Any

from loommux_host.command_line.output_follower import Following
from loommux_host.command_line.output_pieces import Pieces
from loommux_host.command_line.reach import Found, find, kernel_argument
from loommux_host.command_line.reporting import DONE, Refused, json_argument, say, show_json, show_output
from loommux_host.facts.phrases import duration, one_line
from loommux_kernel.shared.api_client import DaemonError
from loommux_kernel.shared.protocol import Stream

STREAMS = tuple(map(str, Stream))
#: How often the next cell is looked for.
LOOK_SECONDS = 0.5


def arguments(parser: ArgumentParser) -> None:
    kernel_argument(parser)
    parser.add_argument("execution", metavar="N", nargs="?", type=int, help="7 for In [7]")
    parser.add_argument("--follow", action="store_true", help="go on as output arrives; without N also the next cells")
    parser.add_argument("--stream", choices=STREAMS, default="combined", help="one stream (default: all in order)")
    parser.add_argument("--process", type=int, metavar="P", help="the records of an earlier process of the kernel")
    parser.add_argument("--lines", metavar="RANGE", help="only these lines, like 1:200 or --lines=-20:-10")
    parser.add_argument("--tail", metavar="COUNT", type=int, help="only so many lines at the end")
    json_argument(parser)


def run(options: Namespace) -> int:
    if options.execution is not None and options.execution < 1:
        raise Refused("invalid_argument", f"N is {options.execution}: a cell's number, 7 for In [7]")
    if sum(map(bool, (options.lines is not None, options.tail is not None, options.follow))) > 1:
        raise Refused("invalid_argument", "--lines, --tail and --follow do not go together")
    if options.tail is not None:
        if options.tail < 1:
            raise Refused("invalid_argument", f"--tail is {options.tail}: a number of lines, 1 or more")
        options.lines = f"-{options.tail}:"
    found = find(options)
    if options.lines is not None:
        return _lines(options, found)
    facts = _facts(options, found)
    while True:
        facts = _one(options, found, facts)
        if not options.follow or options.execution is not None:
            return DONE
        facts = _next(found, facts)


def _lines(options: Namespace, found: Found) -> int:
    read = found.handle.read_output(
        options.execution, options.stream, options.lines, process=options.process, timeout=60
    )
    if options.json:
        show_json(read)
        return DONE
    say(_headed(found.handle.execution_status(read["execution"], read["process"])))
    if read["first_line"] is not None and read["text"] is not None:
        show_output(f"{read['text']}\n")
    elif read["first_line"] is not None:
        pieces = Pieces(found, read["execution"], read["process"], options.stream)
        for text in pieces.of_lines(read["first_line"], read["last_line"]):
            show_output(text)
    return DONE


def _one(options: Namespace, found: Found, facts: dict[str, Any]) -> dict[str, Any]:
    """Show one cell; returns how it is afterwards."""
    following = Following(found, facts["execution"], facts["process"], options.stream, onward=options.follow)
    if not options.json:
        say(_headed(facts))
    pieces: list[str] = []
    for text in following:
        if not options.json:
            show_output(text)
        elif options.follow:
            show_json({"event": "output", "execution": facts["execution"], "text": text})
        else:
            pieces.append(text)
    after = found.handle.execution_status(facts["execution"], facts["process"])
    if options.json and options.follow:
        show_json({"event": "end", **after})
    elif options.json:
        show_json({**after, "stream": options.stream, "text": "".join(pieces)})
    return after


def _facts(options: Namespace, found: Found) -> dict[str, Any]:
    """Of the cell that is meant; with --follow a kernel that has run nothing yet is waited for."""
    try:
        return found.handle.execution_status(options.execution, options.process)
    except DaemonError as error:
        if error.status != "execution_not_found" or options.execution is not None or not options.follow:
            raise
        return _next(found, {"execution": None, "process": None})


def _next(found: Found, before: dict[str, Any]) -> dict[str, Any]:
    """The next cell, once there is one."""
    known = (before["process"], before["execution"])
    while True:
        time.sleep(LOOK_SECONDS)
        try:
            latest = found.handle.execution_status()
        except DaemonError as error:
            if error.status == "execution_not_found":
                continue
            raise
        if (latest["process"], latest["execution"]) != known:
            return latest


def _headed(facts: dict[str, Any]) -> str:
    number = "[ ]" if facts["execution"] is None else f"[{facts['execution']}]"
    source = one_line((facts.get("source") or "").strip().partition("\n")[0], 100)
    return (
        f"In {number} of process {facts['process']}, {facts['status']}, {duration(facts['elapsed_seconds'])}: {source}"
    )
