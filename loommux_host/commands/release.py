"""Let others work again in a kernel that one session holds alone (`--alone`). Who works there is told."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from loommux_host.command_line.reach import find, kernel_argument
from loommux_host.command_line.reporting import DONE, json_argument, show, show_json


def arguments(parser: ArgumentParser) -> None:
    kernel_argument(parser)
    json_argument(parser)


def run(options: Namespace) -> int:
    found = find(options)
    answer = found.place.daemon.ask("POST", f"/api/resources/{found.handle.id}/release")
    if options.json:
        show_json(answer)
    elif answer["released"] is None:
        show(f"nobody holds {found.snapshot['path']} alone")
    else:
        show(f"{found.snapshot['path']} is free: {answer['released']} does not hold it alone any more")
    return DONE
