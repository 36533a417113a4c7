"""Run a cell in a kernel that lives, and show its output as it arrives.

The agent that works there is told. Ctrl+C interrupts the cell; a second one leaves it running.
"""

from __future__ import annotations

import shlex
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import Any

from loommux_host.command_line.output_follower import Following
from loommux_host.command_line.reach import Found, complete_kernels, find, server_argument
from loommux_host.command_line.reporting import (
    DONE,
    FAILED,
    RUNNING,
    Refused,
    json_argument,
    say,
    show_json,
    show_output,
)
from loommux_host.facts.phrases import duration
from loommux_kernel.shared.api_client import DaemonError

#: How long, in seconds, the answer to a cell that has ended may take.
RESULT_SECONDS = 30.0
#: Where a refusal begins to name tools, and the commands that are named instead.
TOOLS_NAMED = {
    "busy": (" Use wait()", "See loommux logs {0} --follow, or loommux interrupt {0}."),
    "kernel_unresponsive": (" status() and", "loommux logs {0} works; loommux restart {0} always does."),
}


def arguments(parser: ArgumentParser) -> None:
    kernel = parser.add_argument(
        "--kernel", metavar="NAME", help="a name, a path like /main/child, or an id (default: the only main kernel)"
    )
    kernel.completer = complete_kernels  # pyright: ignore[reportAttributeAccessIssue]
    server_argument(parser)
    parser.add_argument("--wait", type=float, metavar="SECONDS", help="leave the cell running after so long")
    json_argument(parser)
    parser.add_argument("code", metavar="CODE", nargs="?", default="-", help="the cell; - or nothing: read from stdin")


def run(options: Namespace) -> int:
    if options.wait is not None and options.wait < 0:
        raise Refused("invalid_argument", f"--wait {options.wait:g} is not possible: seconds, 0 or more")
    found = find(options)
    source = sys.stdin.read() if options.code == "-" else options.code
    name = shlex.quote(options.kernel or found.snapshot["name"])
    began = _begun(found, source, name)
    end = None if options.wait is None else time.monotonic() + options.wait
    following = Following(found, began["execution"], began["process"], end=end)
    _followed(following, quiet=options.json)
    if following.state == "running" and not options.json:
        say(f"In [{following.execution}] goes on: loommux logs {name} {following.execution} --follow")
        return RUNNING
    result = found.handle.wait(following.execution, 0, process=following.process, timeout=RESULT_SECONDS)
    if options.json:
        show_json(result)
    else:
        _remarks(result)
    return RUNNING if result["status"] == "running" else DONE if result["status"] == "completed" else FAILED


def _begun(found: Found, source: str, name: str) -> dict[str, Any]:
    """Submit the cell; a refusal names commands, not tools."""
    try:
        return found.handle.run_cell(source, wait_seconds=0, silence_seconds=0)
    except DaemonError as error:
        if error.status not in TOOLS_NAMED:
            raise
        tools, commands = TOOLS_NAMED[error.status]
        what = error.message.partition(tools)[0].replace("restart() ends it", f"loommux restart {name} ends it")
        raise Refused(error.status, f"{what} {commands.format(name)}") from None


def _followed(following: Following, *, quiet: bool) -> None:
    """Show output until the cell ends, or the time is over; the first Ctrl+C is for the cell."""
    interrupted, at_line_start = False, True
    while True:
        try:
            for text in following:
                if not quiet:
                    show_output(text)
                    at_line_start = text.endswith("\n")
            if not at_line_start and sys.stdout.isatty():
                sys.stderr.write("\n")  # what is said of the cell has a line of its own
            return
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            following.found.handle.interrupt(following.execution)
            quiet = True


def _remarks(result: dict[str, Any]) -> None:
    """What is not in the output: which cell it was, how it ended, what the environment says."""
    ended = "" if result["status"] == "completed" else f" · {result['status']}"
    say(f"In [{result['execution']}]{ended} · {duration(result['elapsed_seconds'])}")
    for notice in result.get("notices") or ():
        say(notice["text"] if isinstance(notice, dict) else str(notice))
