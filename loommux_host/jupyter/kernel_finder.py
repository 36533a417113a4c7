"""Which kernels of this user are there, of whichever server: found by their connection files and asked.

A file in Jupyter's runtime directory is only a claim: a kernel is there when it answers,
and its answer says what it is called now. Knows no server. Called by the commands that
attach people (`commands.attach`) and by the JupyterLab proxy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import zmq
from jupyter_core.paths import jupyter_runtime_dir

from loommux_host.kernels.encryption import as_client
from loommux_host.kernels.jupyter_messages import BadMessage, Wire, endpoint
from loommux_kernel.shared.protocol import LOOKING, METADATA_KEY

PATTERN = "kernel-loommux-*.json"
#: How long kernels have to answer, all together. One that native code holds answers by its heartbeat alone.
ANSWER_SECONDS = 1.5

HOW_TO_START = (
    "An agent's MCP host starts one: `loommux install` sets that up, and the agent's first cell opens a kernel."
    " A server by itself (`loommux --server`) has none before a client sends a cell."
)


@dataclass(frozen=True)
class Living:
    """A kernel that answers. When only its heartbeat does, `name` and `id` are those of its file's name."""

    connection_file: Path
    info: dict[str, Any]
    name: str
    id: str
    opened_at: float


class NotFound(Exception):
    """No kernel answers to that name, or none at all; the message says what there is, and how to start one."""


def find(name: str | None, kernels: Sequence[Living]) -> Living:
    """The kernel of that name, id or beginning of an id; the newest without a name. Raises `NotFound`."""
    if not kernels:
        wanted = f"no kernel {name!r}: " if name else ""
        raise NotFound(f"{wanted}no loommux kernel is running for this user. {HOW_TO_START}")
    if not name:
        return kernels[0]
    name = name.removeprefix("/")
    named = [k for k in kernels if k.name == name] or [k for k in kernels if len(name) >= 4 and k.id.startswith(name)]
    if not named:
        there = ", ".join(dict.fromkeys(k.name for k in kernels))
        raise NotFound(f"no loommux kernel is called {name!r}; there {'is' if len(kernels) == 1 else 'are'} {there}.")
    return named[0]


def living(directories: Iterable[Path] = ()) -> list[Living]:
    """All that answer, the newest first; `directories` are looked into besides Jupyter's own."""
    claims = _claims([Path(jupyter_runtime_dir()), *directories])
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        return _answering(context, claims)
    finally:
        context.destroy(linger=0)


@dataclass
class _Claim:
    """A connection file, and what has been heard of its kernel."""

    path: Path
    info: dict[str, Any]
    opened_at: float
    beats: bool = False
    said: dict[str, Any] | None = None

    def kernel(self) -> Living | None:
        slug, _, short = self.path.stem.removeprefix("kernel-loommux-").rpartition("-")
        if self.said is not None:
            slug, short = str(self.said.get("name", slug)), str(self.said.get("id", short))
        return Living(self.path, self.info, slug, short, self.opened_at) if self.beats or self.said else None


def _claims(directories: Iterable[Path]) -> list[_Claim]:
    found = {}
    for directory in directories:
        for path in directory.glob(PATTERN):
            with suppress(OSError, ValueError):  # gone meanwhile, or being written
                found[path.name] = _Claim(path, json.loads(path.read_text()), path.stat().st_mtime)
    return sorted(found.values(), key=lambda claim: claim.opened_at, reverse=True)


def _answering(context: zmq.Context[zmq.Socket[bytes]], claims: list[_Claim]) -> list[Living]:
    poller, asked = zmq.Poller(), {}
    for claim in claims:
        control, heart = context.socket(zmq.DEALER), context.socket(zmq.REQ)
        wire = Wire(claim.info["key"], claim.info["signature_scheme"], LOOKING + os.urandom(8).hex())
        for socket in (control, heart):
            as_client(socket, claim.info)
        control.connect(endpoint(claim.info, "control"))
        heart.connect(endpoint(claim.info, "hb"))
        control.send_multipart(wire.packed("kernel_info_request", {}, {})[1])
        heart.send(b"there?")
        asked[control], asked[heart] = (claim, wire), (claim, None)
        poller.register(control, zmq.POLLIN)
        poller.register(heart, zmq.POLLIN)
    until = monotonic() + ANSWER_SECONDS
    while any(claim.said is None for claim in claims) and (left := until - monotonic()) > 0:
        for socket, _ in poller.poll(int(left * 1000) + 1):
            claim, wire = asked[socket]  # pyright: ignore[reportArgumentType]
            _hear(claim, wire, socket.recv_multipart())  # pyright: ignore[reportAttributeAccessIssue]
    return [kernel for claim in claims if (kernel := claim.kernel()) is not None]


def _hear(claim: _Claim, wire: Wire | None, frames: list[bytes]) -> None:
    if wire is None:
        claim.beats = True
        return
    with suppress(BadMessage):
        claim.said = wire.read(frames).content.get(METADATA_KEY) or {}
