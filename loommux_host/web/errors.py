"""The one shape of everything that did nothing over HTTP, whichever route it was asked of.

Owns that shape, and what is said of paths that are not there and of faults of the server.
Called by `api`, `console` and `server`.
"""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from loommux_host.web.json_answer import JsonAnswer

log = logging.getLogger(__name__)


def error(code: int, status: str, message: str) -> JsonAnswer:
    """The one shape of everything that did nothing."""
    body = {"ok": False, "status": status, "message": message}
    return JsonAnswer(body, status_code=code, headers={"cache-control": "no-store"})


async def http_error(request: Request, raised: Exception) -> Response:
    """What routing itself refuses: no such path, no such method."""
    assert isinstance(raised, HTTPException)
    status = {404: "not_found", 405: "method_not_allowed"}.get(raised.status_code, "invalid_request")
    words = {404: "There is no such path.", 405: "This path does not take that method."}
    answer = error(raised.status_code, status, words.get(raised.status_code, str(raised.detail)))
    answer.headers.update(raised.headers or {})
    return answer


async def server_error(request: Request, raised: Exception) -> Response:
    """A fault of this server: logged in full, told without its insides."""
    log.error("%s %.200r failed", request.method, request.url.path, exc_info=raised)
    return error(500, "internal_error", "The server failed to answer; its log says why.")
