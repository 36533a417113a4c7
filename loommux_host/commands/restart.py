"""Replace the process of a kernel: variables, and everything it started, are gone; records stay.

It always works, whatever the cell does. Who works there is told.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from loommux_host.command_line.reach import find, kernel_argument
from loommux_host.command_line.reporting import DONE, json_argument, say, show, show_json

SECONDS = 180.0


def arguments(parser: ArgumentParser) -> None:
    kernel_argument(parser)
    json_argument(parser)


def run(options: Namespace) -> int:
    found = find(options)
    say(f"restarting {found.shown}")
    result = found.handle.restart(timeout=SECONDS)
    if options.json:
        show_json(result)
    else:
        show(_said(result))
    return DONE


def _said(result: dict[str, Any]) -> str:
    said = [f"process {result['new_process']} (pid {result['new_pid']}) runs now"]
    if result["ended_execution"] is not None:
        said.append(f"ended In [{result['ended_execution']}]")
    if result["ended_processes"]:
        said.append(f"ended {result['ended_processes']} child processes")
    if result["ended_watches"]:
        said.append(f"ended watches: {', '.join(result['ended_watches'])}")
    said += [f"{cell} goes on, sent by its code" for cell in result["goes_on"]]
    said += [f"could not end {one['command']} (pid {one['pid']})" for one in result["left_processes"]]
    if result["attached_clients"]:
        said.append(f"still attached: {', '.join(result['attached_clients'])}")
    return "\n".join(said)
