"""End a kernel with its children and all that they started; its records go with it.

A busy one only with --force. Who worked there is told.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from loommux_host.command_line.reach import find, kernel_argument
from loommux_host.command_line.reporting import DONE, json_argument, say, show, show_json

SECONDS = 60.0


def arguments(parser: ArgumentParser) -> None:
    kernel_argument(parser)
    parser.add_argument("--force", action="store_true", help="also when a cell runs")
    json_argument(parser)


def run(options: Namespace) -> int:
    found = find(options)
    say(f"recycling {found.shown}")
    recycled = found.place.daemon.recycle(found.handle, options.force, timeout=SECONDS)
    if options.json:
        show_json({"ok": True, "recycled": recycled})
    else:
        show(f"recycled: {', '.join(recycled)}")
    return DONE
