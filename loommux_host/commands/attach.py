"""Attach a Jupyter client to a running kernel; closing it, or exit in it, leaves the kernel alone.

What ran there last is shown first. The kernels of all your servers are meant, those over
stdio included; the client is Jupyter's own and has to be installed.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from loommux_host.command_line.reporting import Refused, show
from loommux_host.facts.phrases import cell, clock, duration, one_line, sender
from loommux_host.jupyter.kernel_finder import Living, NotFound, find, living
from loommux_kernel.shared.protocol import Stream, now
from loommux_kernel.shared.record_types import ExecutionRecord
from loommux_kernel.shared.records.reader import RecordReader

#: What is shown of the past: cells, lines of each one's source and of its output.
CELLS, SOURCE_LINES, OUTPUT_LINES = 3, 4, 4
LINE_CHARACTERS = 120

#: Module and package of each client; `qtconsole` needs a Qt besides.
CLIENTS = {"console": ("jupyter_console", "jupyter-console"), "qtconsole": ("qtconsole", "qtconsole PySide6")}
QT = ("PySide6", "PyQt6", "PyQt5", "PySide2")


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="name or id of the kernel (default: the newest)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--console", dest="client", action="store_const", const="console", help="in this terminal")
    which.add_argument("--qtconsole", dest="client", action="store_const", const="qtconsole", help="in a window")


def run(options: Namespace) -> int:
    kernels = living()
    try:
        kernel = find(_unambiguous(options.name, kernels), kernels)
    except NotFound as error:
        raise Refused("kernel_not_found", str(error)) from None
    client = options.client or ("qtconsole" if missing("console") and not missing("qtconsole") else "console")
    show("\n".join(introduced(kernel, [k for k in kernels if k is not kernel])))
    package = missing(client)
    if package:
        raise Refused(
            "client_not_installed",
            f"{client} is not installed here; run: {sys.executable} -m pip install {package}\n"
            f"or, where Jupyter is: jupyter {client} --existing {kernel.connection_file}",
        )
    sys.stdout.flush()
    return become([sys.executable, "-m", "loommux_host.jupyter.console_clients", client, str(kernel.connection_file)])


def _unambiguous(name: str | None, kernels: Sequence[Living]) -> str | None:
    """The name, when only one has it: servers know nothing of each other. Raises `Refused`."""
    named = [kernel for kernel in kernels if name is not None and kernel.name == name.removeprefix("/")]
    if len(named) > 1:
        ids = ", ".join(f"{one.id[:8]} (opened {clock(one.opened_at)})" for one in named)
        raise Refused("kernel_ambiguous", f"{name!r} names several kernels; say which by its id: {ids}")
    return name


def missing(client: str) -> str | None:
    """What to install for that client; None when it is there."""
    module, package = CLIENTS[client]
    there = find_spec(module) and (client != "qtconsole" or any(find_spec(qt) for qt in QT))
    return None if there else package


def become(command: list[str]) -> int:
    """Become that program; where there is no such thing, wait for it."""
    if sys.platform == "win32":
        return subprocess.run(command).returncode
    return os.execv(command[0], command)


def introduced(kernel: Living, others: Sequence[Living]) -> Iterator[str]:
    """Which kernel it is, which others there are, and what ran in it last."""
    yield f"Kernel {one_line(kernel.name, 256)} · {kernel.connection_file}"
    if others:
        yield f"Others: {', '.join(dict.fromkeys(one_line(other.name, 256) for other in others))}"
    records = _latest_records(kernel)
    if records is None:
        return
    try:
        reader = RecordReader(records)
    except (OSError, sqlite3.Error):
        yield "What ran in it cannot be read."
        return
    try:
        for record in reversed(reader.executions(CELLS)):
            yield ""
            yield from _shown(record, reader.tail(record.serial, Stream.COMBINED, OUTPUT_LINES, nonblank=True))
        yield ""
    except (OSError, sqlite3.Error):
        yield "What ran in it cannot be read."
    finally:
        reader.close()


def _shown(record: ExecutionRecord, tail: list[str]) -> Iterator[str]:
    seconds = (record.completed_at or now()) - record.submitted_at
    yield f"{cell(record.number)} · {record.state} · {duration(seconds)} · sent by {sender(record.origin)}"
    source = [line for line in record.source.splitlines() if line.strip()]
    yield from (f"    {_cut(line)}" for line in source[:SOURCE_LINES])
    if len(source) > SOURCE_LINES:
        yield f"    … {len(source) - SOURCE_LINES} more lines"
    yield from (f"  {_cut(line)}" for line in tail)


def _cut(line: str) -> str:
    # the client's terminal must not take a cell's text for its own
    kept = "".join(c if c.isprintable() else " " for c in line[: LINE_CHARACTERS + 1])
    return kept if len(kept) <= LINE_CHARACTERS else kept[: LINE_CHARACTERS - 1] + "…"


def _latest_records(kernel: Living) -> Path | None:
    """The record store of the kernel's latest process; None for a server that keeps it elsewhere."""
    server = kernel.info.get("loommux_server")
    if not isinstance(server, str):
        return None
    short = kernel.connection_file.stem.rpartition("-")[2]
    stores = Path(server).glob(f"k-{short}/*/records.sqlite")
    return max(stores, key=lambda path: int(path.parent.name), default=None)
