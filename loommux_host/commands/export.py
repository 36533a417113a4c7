"""Write a kernel's cells and their output, pictures included, as a Jupyter notebook."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from loommux_host.command_line.reach import find, kernel_argument
from loommux_host.command_line.reporting import (
    DONE,
    Refused,
    as_json,
    json_argument,
    say,
    show_json,
    show_output,
)

SECONDS = 300.0


def arguments(parser: ArgumentParser) -> None:
    kernel_argument(parser)
    parser.add_argument("file", metavar="FILE.ipynb", help="where to; - for stdout")
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    json_argument(parser)


def run(options: Namespace) -> int:
    found, path = find(options), Path(options.file)
    if options.file != "-" and path.exists() and not options.force:
        raise Refused("file_exists", f"{path} exists; --force overwrites it")
    where = f"/api/resources/{found.snapshot['resource_id']}/notebook"
    notebook = found.place.daemon.ask_raw("GET", where, timeout=SECONDS)
    if options.file == "-":
        show_output(as_json(json.loads(notebook), indent=1) + "\n")
        return DONE
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(notebook)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise Refused("file_not_writable", f"{path}: {error.strerror}") from error
    if options.json:
        show_json({"ok": True, "file": str(path.absolute()), "bytes": len(notebook), "kernel": found.snapshot["name"]})
    else:
        say(f"wrote {found.snapshot['name']} to {path}, {len(notebook):,} bytes")
    return DONE
