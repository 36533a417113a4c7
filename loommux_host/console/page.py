"""The console's page: its files as they are, under a policy that lets nothing else in (contract 10).

Owns which files there are, how they are sent, and the login. The page is written by hand and
needs no build: what lies in ``console/`` is what a browser gets. Files are read when a browser
first asks for them, so a server nobody looks at holds none. Built by `server.http_app` and `gateway`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from loommux_host.config import Config
from loommux_host.version import VERSION
from loommux_host.web.auth import matches, set_cookie
from loommux_host.web.errors import error
from loommux_host.web.json_answer import JsonAnswer
from loommux_kernel.shared.protocol import now

HERE = Path(__file__).parent
INDEX, PREFIX, LOGIN = "index.html", "/console/", "/api/login"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
#: A browser asks each time whether a file is still the same: a new version is never half an old one.
HEADERS = {"content-security-policy": POLICY, "cache-control": "no-cache"}


def files() -> dict[str, Path]:
    """Every path of the page with its file."""
    found = {f"{PREFIX}{p.relative_to(HERE).as_posix()}": p for p in HERE.rglob("*") if p.suffix in TYPES}
    return {"/": HERE / INDEX, **found}


def open_paths() -> frozenset[str]:
    """What is given without a token: the page, which has nothing of anybody in it, and the login."""
    return frozenset({*files(), LOGIN})


def page_routes() -> list[Route]:
    return [Route(path, partial(_file, file)) for path, file in files().items()]


def about(config: Config, transport: str) -> dict[str, Any]:
    """What the page has to know of its server."""
    return {
        "version": VERSION,
        "pid": os.getpid(),
        "program": _program(),
        "transport": transport,
        "workspace": str(config.workspace),
        "mcp_path": config.path if transport == "http" else None,
        "activity_feed": config.activity_feed,
        "started_at": now(),
    }


def _program() -> str:
    """The loommux that a host on this machine can start, wherever it does."""
    script = Path(sys.executable).with_name("loommux.exe" if sys.platform == "win32" else "loommux")
    return str(script) if script.is_file() else "loommux"


def login(wanted: str | None, token: object, origin: str | None) -> Response:
    """The answer to a token: the cookie of a browser that may come in from now on."""
    answer = JsonAnswer({"ok": True, "token_needed": wanted is not None}, headers={"cache-control": "no-store"})
    if wanted is None:
        return answer
    if not matches(str(token), wanted):
        return error(401, "unauthorized", "That is not this server's token.")
    answer.headers["set-cookie"] = set_cookie(wanted, secure=(origin or "").startswith("https:"))
    return answer


def _content(file: Path) -> tuple[bytes, str]:
    return _read(file, file.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _read(file: Path, changed_at: int) -> tuple[bytes, str]:
    content = file.read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:16]}"'


async def _file(file: Path, request: Request) -> Response:
    content, tag = _content(file)
    headers = {**HEADERS, "etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers={**headers, "content-type": TYPES[file.suffix]})
