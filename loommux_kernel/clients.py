"""Foreign Jupyter clients: who they are and when they were last heard.

Owns the labels by which people know them. Jupyter's messages carry no name of the
program, but jupyter_client puts the sender's pid into its message ids, and the program's
command line tells the rest. Labels are for reading, nothing is decided by them.
Called by `kernel` for every message and by `control`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from loommux_kernel.protocol import Origin, OriginKind

#: Clients remembered; every restart of a client is a new one.
REMEMBERED = 64
_NAMELESS = "jupyter client"
_INTERPRETER = re.compile(r"(python|pypy)[\d.w]*(\.exe)?$")


@dataclass
class Client:
    label: str
    heard_at: float


class Clients:
    """The foreign clients of this process, by their Jupyter session id."""

    def __init__(self, server_session: str) -> None:
        self._server_session = server_session
        self._known: dict[str, Client] = {}

    def is_server(self, header: dict[str, Any]) -> bool:
        return header.get("session") == self._server_session

    def heard(self, header: dict[str, Any], at: float) -> None:
        """A message has come from someone."""
        session = header.get("session")
        if not session or session == self._server_session:
            return
        client = self._known.pop(session, None) or Client(_label(header), at)
        client.heard_at = at
        self._known[session] = client
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]

    def origin(self, header: dict[str, Any]) -> Origin:
        """Where a foreign message comes from."""
        session = str(header.get("session", ""))
        client = self._known.get(session)
        return Origin(OriginKind.CLIENT, client.label if client else _label(header), session)

    def to_wire(self, at: float) -> list[dict[str, Any]]:
        """Label, id and silence in seconds of each, the latest last."""
        return [
            {"label": c.label, "client": session, "heard_seconds": max(0.0, at - c.heard_at)}
            for session, c in list(self._known.items())
        ]


def _label(header: dict[str, Any]) -> str:
    pid = re.fullmatch(r".*_(\d+)_\d+", str(header.get("msg_id", "")))
    program = program_name(_command(int(pid[1]))) if pid else None
    username = str(header.get("username") or "")
    return program or (username if username.isprintable() else "") or _NAMELESS


def program_name(command: list[str]) -> str | None:
    """What people call the program of a command line: the module or script of a Python, else the file."""
    if not command:
        return None
    name = PurePath(command[0]).name
    if _INTERPRETER.match(name):
        rest = command[1:]
        while rest and rest[0].startswith("-") and rest[0] != "-m":
            if rest[0] in ("-c", "-"):
                return name
            rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
        if rest[:1] == ["-m"]:
            rest = rest[1:]
        if not rest:
            return name
        name = PurePath(rest[0]).name.removesuffix(".py")
    return name.removeprefix("jupyter-") or None


def _command(pid: int) -> list[str]:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return _ask_psutil(pid)
    return [w.decode(errors="replace") for w in words if w]


def _ask_psutil(pid: int) -> list[str]:
    import psutil  # 30 ms, and not needed where there is a /proc

    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []
