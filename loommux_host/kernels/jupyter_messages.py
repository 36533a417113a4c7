"""Jupyter's message format: frames, signatures, JSON.

What `jupyter_client.session` does, in the form that a host needs it: reading a message
parses only the parts that are used, and importing it costs nothing (jupyter_client's import
takes half a second of a server's start, beside the start of its first kernel). Knows no
sockets; called by `channel`, and by what attaches people to a kernel.
"""

from __future__ import annotations

import hmac
import json
import os
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

DELIMITER = b"<IDS|MSG>"
VERSION = "5.4"
EMPTY = b"{}"


class BadMessage(Exception):
    """The frames are no message of the kernel: not signed with the key, or not of the format."""


class Message:
    """A message that was received; its parts are parsed when they are asked for."""

    def __init__(self, header: bytes, parent: bytes, metadata: bytes, content: bytes) -> None:
        self._header, self._parent, self._metadata, self._content = header, parent, metadata, content

    @cached_property
    def kind(self) -> str:
        return str(_parsed(self._header).get("msg_type"))

    @property
    def header(self) -> bytes:
        """Its header, as it came."""
        return self._header

    @cached_property
    def id(self) -> str:
        return str(_parsed(self._header).get("msg_id"))

    @cached_property
    def parent(self) -> str:
        """The id of the request that it answers."""
        return str(_parsed(self._parent).get("msg_id"))

    @cached_property
    def metadata(self) -> dict[str, Any]:
        return _parsed(self._metadata)

    @cached_property
    def content(self) -> dict[str, Any]:
        return _parsed(self._content)


class Wire:
    """Packs and reads the messages of one connection. `session` names this end of it."""

    def __init__(self, key: str, scheme: str, session: str) -> None:
        self.session = session
        self._signer = hmac.new(key.encode(), digestmod=scheme.removeprefix("hmac-")) if key else None
        self._sent = 0

    def packed(
        self, kind: str, content: dict[str, Any], metadata: dict[str, Any], parent: bytes = EMPTY
    ) -> tuple[str, list[bytes]]:
        """The id of a new message, and its frames; `parent` is the header of what it answers."""
        self._sent += 1
        id = f"{self.session}_{os.getpid()}_{self._sent}"
        header = {
            "msg_id": id,
            "msg_type": kind,
            "session": self.session,
            "username": "loommux",
            "date": datetime.now(UTC).isoformat(),
            "version": VERSION,
        }
        parts = [json.dumps(header).encode(), parent, _packed(metadata), _packed(content)]
        return id, [DELIMITER, self._signature(parts), *parts]

    def read(self, frames: list[bytes]) -> Message:
        """The message in `frames`, whose routing prefix does not matter. Raises `BadMessage`."""
        try:
            start = frames.index(DELIMITER)
        except ValueError:
            raise BadMessage(f"no delimiter in {len(frames)} frames") from None
        parts = frames[start + 2 : start + 6]
        if len(parts) < 4 or not hmac.compare_digest(frames[start + 1], self._signature(parts)):
            raise BadMessage("its signature is not by the connection's key")
        return Message(*parts)

    def resigned(self, frames: list[bytes], theirs: Wire) -> list[bytes]:
        """A message of their connection as one of this; only its signature differs. Raises `BadMessage`."""
        theirs.read(frames)
        start = frames.index(DELIMITER)
        return [*frames[: start + 1], self._signature(frames[start + 2 : start + 6]), *frames[start + 2 :]]

    def _signature(self, parts: list[bytes]) -> bytes:
        if self._signer is None:
            return b""
        signer = self._signer.copy()
        for part in parts:
            signer.update(part)
        return signer.hexdigest().encode()


def endpoint(info: dict[str, Any], channel: str) -> str:
    """Where a connection file's channel is bound."""
    port = info[f"{channel}_port"]
    return f"ipc://{info['ip']}-{port}" if info["transport"] == "ipc" else f"{info['transport']}://{info['ip']}:{port}"


def _packed(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() if value else EMPTY


def _parsed(part: bytes) -> dict[str, Any]:
    return json.loads(part.decode("utf-8", "replace"))
