"""MCP's two protocol eras as a tool server on one connection speaks them: pure rules, no I/O.

*Handshake* (up to 2025-11-25): ``initialize`` opens, then requests. *Modern*
(2026-07-28): every request carries an envelope in ``params._meta``, nothing opens. Owns
the versions, the envelope, what each era's results carry, and the errors of the protocol;
knows no tool and no transport. `stdio` speaks by these rules; the HTTP face speaks
through the SDK, and a test holds both to the same answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from loommux_host.mcp.tools import INSTRUCTIONS, listing
from loommux_host.version import VERSION

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS = ("2026-07-28",)
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
CLIENT_KEY = "io.modelcontextprotocol/clientInfo"
SERVER_KEY = "io.modelcontextprotocol/serverInfo"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
UNSUPPORTED_VERSION = -32022

SERVER_INFO = {"name": "loommux", "title": "loommux", "version": VERSION}
CAPABILITIES = {"tools": {"listChanged": False}}
#: What a client may keep of the tools and of the server's self-description: both change with the version only.
CACHE_MILLISECONDS = 3_600_000
CACHEABLE = {"ttlMs": CACHE_MILLISECONDS, "cacheScope": "public"}
ALREADY_HANDSHAKE = (
    "this connection serves the handshake protocol era; "
    "requests carrying the 2026-07-28 envelope are not accepted on it"
)
ALREADY_MODERN = "connection is serving the 2026-07-28 protocol; the initialize handshake is not accepted"


class ProtocolError(Exception):
    """A JSON-RPC error. Nothing was done."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data

    def wire(self) -> dict[str, Any]:
        data = {} if self.data is None else {"data": self.data}
        return {"code": self.code, "message": self.message, **data}


def method_not_found(method: str) -> ProtocolError:
    return ProtocolError(METHOD_NOT_FOUND, "Method not found", method)


def invalid_params(why: str) -> ProtocolError:
    return ProtocolError(INVALID_PARAMS, f"Invalid request parameters: {why}")


def message_of(line: bytes) -> dict[str, Any]:
    """The message on a line. Raises `ProtocolError` for what is none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolError(PARSE_ERROR, "Parse error: the line is not JSON") from None
    if not isinstance(message, dict):
        raise ProtocolError(INVALID_REQUEST, "Invalid request: not a JSON-RPC 2.0 message")
    return message


def has_envelope(params: Mapping[str, Any]) -> bool:
    """Whether a request claims to be modern: only modern clients know the key."""
    meta = params.get("_meta")
    return isinstance(meta, dict) and VERSION_KEY in meta


def check_envelope(params: Mapping[str, Any]) -> None:
    """Raise what a modern request without a proper envelope is answered."""
    meta = params.get("_meta")
    if not isinstance(meta, dict):
        keys = f"{VERSION_KEY!r} and {CAPABILITIES_KEY!r}"
        message = f"params._meta must be an object carrying the required {keys} envelope keys"
        raise ProtocolError(INVALID_PARAMS, message)
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in meta]
    if missing:
        message = f"params._meta is missing the required envelope key(s): {', '.join(missing)}"
        raise ProtocolError(INVALID_PARAMS, message)
    version = meta[VERSION_KEY]
    if not isinstance(version, str):
        raise ProtocolError(INVALID_PARAMS, "the protocol-version envelope value must be a string")
    if version not in MODERN_VERSIONS:
        raise unsupported(version, "Unsupported protocol version")
    if not isinstance(meta[CAPABILITIES_KEY], dict):
        raise invalid_params(f"{CAPABILITIES_KEY} must be an object")


def unsupported(requested: object, message: str) -> ProtocolError:
    """The client asks for a version, or an era, that is not served here; it learns which are."""
    asked = {"requested": requested} if isinstance(requested, str) else {}
    return ProtocolError(UNSUPPORTED_VERSION, message, {"supported": list(MODERN_VERSIONS), **asked})


def client_name(info: object) -> str | None:
    """The name in a client's description of itself."""
    name = info.get("name") if isinstance(info, dict) else None
    return name if isinstance(name, str) and name else None


def initialize(params: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to ``initialize``: the client's version if it is served, else the newest of its era."""
    requested = params.get("protocolVersion")
    if not isinstance(requested, str):
        raise invalid_params("protocolVersion must be a string")
    if not isinstance(params.get("capabilities"), dict):
        raise invalid_params("capabilities must be an object")
    if client_name(params.get("clientInfo")) is None:
        raise invalid_params("clientInfo must be an object with a name")
    return {
        "protocolVersion": requested if requested in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1],
        "capabilities": CAPABILITIES,
        "serverInfo": SERVER_INFO,
        "instructions": INSTRUCTIONS,
    }


def discover() -> dict[str, Any]:
    """The answer to ``server/discover``."""
    return {
        "supportedVersions": list(MODERN_VERSIONS),
        "capabilities": CAPABILITIES,
        "instructions": INSTRUCTIONS,
        **CACHEABLE,
    }


def tool_list(modern: bool) -> dict[str, Any]:
    """The answer to ``tools/list``: all of them on one page."""
    return {"tools": listing(), **(CACHEABLE if modern else {})}


def complete(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with what every modern result carries."""
    meta = {**result.get("_meta", {}), SERVER_KEY: SERVER_INFO}
    return {**result, "resultType": "complete", "_meta": meta}
