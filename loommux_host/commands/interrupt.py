"""Interrupt the running cell of a kernel, or only the one with that number, and what it started.

You are never refused, whoever sent the cell; who sent it is told.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from loommux_host.command_line.reach import find, kernel_argument
from loommux_host.command_line.reporting import DONE, RUNNING, json_argument, show, show_json

SECONDS = 30.0


def arguments(parser: ArgumentParser) -> None:
    kernel_argument(parser)
    parser.add_argument("--execution", type=int, metavar="N", help="only this cell, 7 for In [7]")
    json_argument(parser)


def run(options: Namespace) -> int:
    result = find(options).handle.interrupt(options.execution, timeout=SECONDS)
    if options.json:
        show_json(result)
    else:
        show(_said(result))
    return RUNNING if result["status"] == "interrupt_sent" else DONE


def _said(result: dict[str, Any]) -> str:
    cell = f"In [{result['execution']}]"
    lines: dict[str, str] = {
        "interrupted": f"{cell} was interrupted; the kernel keeps its variables",
        "ended": f"{cell} ended before the interrupt reached it, as {result['execution_status']}",
        "interrupt_sent": f"{cell} still runs; loommux restart always works",
    }
    said = [lines.get(str(result["status"]), str(result["status"]))]
    if result["ended_processes"]:
        said.append(f"ended {result['ended_processes']} processes that it had started")
    for text, left in (("still alive", result["still_alive"]), ("left alone", result["survivors"])):
        said += [f"{text}: {program}" for program in left]
    return "\n".join(said)
