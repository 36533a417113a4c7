"""Foreign Jupyter clients: who they are and when they were last heard.

Owns the labels by which people know them. Jupyter's messages carry no name of the
program, but jupyter_client puts the sender's pid into its message ids, and the program's
command line tells the rest. What comes through the proxy kernel carries, in its routing
identity, the pid of the program that started the proxy and what it calls the notebook.
Labels are for reading, nothing is decided by them.
Called by `kernel` for every message and by `control_requests`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from loommux_kernel.shared.protocol import LOOKING, Origin, OriginKind

#: Clients remembered; every restart of a client is a new one.
REMEMBERED = 64
_NAMELESS = "jupyter client"
#: What people call programs whose command is called otherwise.
KNOWN_AS = {
    "console": "jupyter console",
    "jupyter_console": "jupyter console",
    "lab": "JupyterLab",
    "jupyterlab": "JupyterLab",
    "notebook": "Jupyter Notebook",
    "server": "Jupyter Server",
    "jupyter_server": "Jupyter Server",
    "execute": "jupyter execute",
}
#: Runs Jupyter's own clients for `loommux attach`; its first argument says which.
ATTACHED = "loommux_host.jupyter.console_clients"
#: ``loommux-proxy/<pid>/<pid of what started it>/<random>/<what that calls the notebook>``
_PROXY = re.compile(rb"loommux-proxy/(\d+)/(\d+)/[^/]*/(.*)", re.DOTALL)
_INTERPRETER = re.compile(r"(python|pypy)[\d.w]*(\.exe)?$")


@dataclass
class Client:
    label: str
    #: The process that it is, where that could be told.
    pid: int | None
    heard_at: float


class Clients:
    """The foreign clients of this process, by their Jupyter session id."""

    def __init__(self, server_session: str) -> None:
        self._server_session = server_session
        self._known: dict[str, Client] = {}

    def is_server(self, header: dict[str, Any]) -> bool:
        return header.get("session") == self._server_session

    def heard(self, header: dict[str, Any], at: float, idents: Any = ()) -> None:
        """A message has come from someone; `idents` are its routing identities."""
        session = header.get("session")
        if not session or session == self._server_session or session.startswith(LOOKING):
            return
        client = self._known.pop(session, None) or Client(*_who(header, idents), at)
        client.heard_at = at
        self._known[session] = client
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]

    def origin(self, header: dict[str, Any]) -> Origin:
        """Where a foreign message comes from."""
        session = str(header.get("session", ""))
        client = self._known.get(session)
        return Origin(OriginKind.CLIENT, client.label if client else _who(header)[0], session)

    def to_wire(self, at: float) -> list[dict[str, Any]]:
        """Label, id and silence in seconds of each that is not known to have ended, the latest last."""
        return [
            {"label": c.label, "client": session, "heard_seconds": max(0.0, at - c.heard_at)}
            for session, c in list(self._known.items())
            if c.pid is None or _command(c.pid)
        ]


def _who(header: dict[str, Any], idents: Any = ()) -> tuple[str, int | None]:
    """What people call the sender, and its process; of a pid that is none here, neither is known."""
    through = _PROXY.fullmatch(bytes(idents[0])) if idents else None
    sent = re.fullmatch(r".*_(\d+)_\d+", str(header.get("msg_id", "")))
    pid = int(through[1] if through else sent[1] if sent else 0)
    command = _command(int(through[2]) if through else pid) if pid else []
    program = program_name(command)
    username = str(header.get("username") or "")
    label = KNOWN_AS.get(program or "", program) or (username if username.isprintable() else "") or _NAMELESS
    notebook = through[3].decode(errors="replace") if through else ""
    return f"{label} ({notebook})" if notebook.isprintable() and notebook else label, pid if command else None


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
        name = rest[1] if rest[0] == ATTACHED and rest[1:] else PurePath(rest[0]).name.removesuffix(".py")
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
