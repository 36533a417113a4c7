"""Open a kernel by name, for agents and Jupyter clients to work in.

A main kernel of the server, or a child when the name is a path like /main/child; one that is open already is left
as it is. Over HTTP it is kept for `named_activity_timeout_seconds` after the last use; over stdio it ends with the
server.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from loommux_host.command_line.reach import Place, places, server_argument
from loommux_host.command_line.reporting import DONE, Refused, json_argument, show, show_json

SECONDS = 30.0


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the kernel's name, or a path like /main/child")
    server_argument(parser)
    json_argument(parser)


def run(options: Namespace) -> int:
    place = _only(places(options.server), options.name)
    made = place.daemon.ask("POST", "/api/resources", None, {"path": options.name}, timeout=SECONDS)
    if options.json:
        show_json(made)
    else:
        how = "opened" if made["opened"] else "open already"
        show(f"{made['path']} (id {made['resource_id'][:8]}, server {place.server.pid}): {how}")
    return DONE


def _only(found: list[Place], name: str) -> Place:
    """The one server, or the only one that has the main kernel of a path. Raises `Refused`."""
    main, _, child = name.removeprefix("/").partition("/")
    if child:
        there = [one for one in found if any(k["home"] is None and k["name"] == main for k in one.kernels)]
        found = there or found
    if not found:
        raise Refused("server_not_found", "no server of yours runs; start one: loommux --server")
    if len(found) > 1:
        listed = ", ".join(f"{one.server.pid} ({one.server.transport}, in {one.server.workspace})" for one in found)
        raise Refused("server_ambiguous", f"you have several servers; say which with --server PID: {listed}")
    return found[0]
