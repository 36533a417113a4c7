"""List every kernel of every server of yours, also of those that an MCP host started over stdio."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import Any

from loommux_host.command_line.reach import Place, places, server_argument, wait_for, waiting
from loommux_host.command_line.reporting import DONE, FAILED, json_argument, say, show, show_json
from loommux_host.facts.phrases import cell, one_line
from loommux_host.succession.takeover import Waiting

COLUMNS = ("KERNEL", "ID", "STATE", "CELL", "IDLE", "MEMORY", "CELLS", "HELD BY")


def arguments(parser: ArgumentParser) -> None:
    server_argument(parser)
    json_argument(parser)


def run(options: Namespace) -> int:
    found, left = places(options.server), waiting()
    if options.json:
        show_json({"ok": True, "servers": [_fields(place) for place in found], "waiting": [_left(one) for one in left]})
        return _code(found)
    if found:
        show("\n\n".join(_shown(place) for place in found))
    else:
        say("no server of yours runs; an MCP host starts one, or loommux --server")
    for one in left:
        say(wait_for(one))
    return _code(found)


def _code(found: list[Place]) -> int:
    return FAILED if any(place.trouble for place in found) else DONE


def _fields(place: Place) -> dict[str, Any]:
    of_the_system = {"uptime", "boot"}
    server = {name: value for name, value in asdict(place.server).items() if name not in of_the_system}
    return {**server, "kernels": list(place.kernels), "trouble": place.trouble}


def _left(one: Waiting) -> dict[str, Any]:
    server = one.server
    return {"pid": server.pid, "workspace": server.workspace, "endpoint": server.endpoint, "kernels": one.kernels}


def _shown(place: Place) -> str:
    server = place.server
    where = f" at {server.endpoint}" if server.endpoint else ""
    head = f"server {server.pid}, {server.transport}{where}, in {one_line(server.workspace, 1000)}"
    if place.trouble:
        return f"{head}\n  does not answer: {place.trouble}"
    if not place.kernels:
        return f"{head}\n  no kernels yet"
    # Children stand below their home.
    homes = {kernel["resource_id"]: kernel["path"] for kernel in place.kernels}
    ordered = sorted(place.kernels, key=lambda k: (homes.get(k["home"] or k["resource_id"], ""), bool(k["home"])))
    rows = [COLUMNS, *(tuple(map(one_line, _row(kernel))) for kernel in ordered)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join([head, *(f"  {line}" for line in lines)])


def _row(kernel: dict[str, Any]) -> tuple[str, ...]:
    name = f"  {kernel['name']}" if kernel["home"] else kernel["name"]
    running = kernel["current_execution"]
    return (
        name,
        kernel["resource_id"][:8],
        _state(kernel),
        _cell(running) if running else "-",
        "-" if kernel["busy"] or kernel["idle_since"] is None else _seconds(time.time() - kernel["idle_since"]),
        "-" if kernel["rss_bytes"] is None else f"{kernel['rss_bytes'] / (1 << 20):.0f} MiB",
        str(kernel["execution_count"]),
        ", ".join(lease.get("holder") or "a session" for lease in kernel["leases"]) + _alone(kernel) or "-",
    )


def _state(kernel: dict[str, Any]) -> str:
    if kernel["kernel_state"] != "running":
        return kernel["kernel_state"]
    return "busy" if kernel["busy"] else "held" if kernel.get("held_at") else "idle"


def _alone(kernel: dict[str, Any]) -> str:
    """Beside the holders: that one of them holds it alone."""
    held = kernel.get("held_alone")
    return f" ({held['holder']} alone)" if held else ""


def _cell(execution: dict[str, Any]) -> str:
    return f"{cell(execution.get('execution'))} {_seconds(execution.get('elapsed_seconds') or 0)}"


def _seconds(seconds: float) -> str:
    """In whole units of the largest two: ``40 s``, ``3 min 20 s``, ``2 d 4 h``."""
    whole = int(max(0.0, seconds))
    for unit, length, smaller, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // part} {smaller}"
    return f"{whole} s"
