"""Who calls over the private socket: a kernel of this server, or one of its user's programs (contract 8).

Owns the headers that say so and puts the caller into the request, where `api` finds it.
What a caller may do is decided in `usecases.rights`. Used by `server.private_app` and
`api`.
"""

from __future__ import annotations

from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from loommux_host.api.endpoint import error
from loommux_host.kernels.registry import Registry
from loommux_host.processes.private_socket import ControlSocket
from loommux_host.sessions.callers import LABEL_CHARACTERS, Caller
from loommux_kernel.shared.protocol import OriginKind

#: The id of the kernel that calls.
KERNEL_HEADER = "x-loommux-kernel"
#: What one of the user's programs wants to be called.
CLIENT_HEADER = "x-loommux-client"
STATE = "loommux_caller"

#: Whoever calls over a port is a person, as far as anybody can tell.
PERSON = Caller("person", "", OriginKind.CONSOLE)


def caller_of(request: Request) -> Caller:
    """Who a request of the API comes from."""
    return request.scope.get(STATE, PERSON)


class Identified:
    """ASGI around what is served on the private socket."""

    def __init__(self, app: ASGIApp, registry: Registry, control: ControlSocket) -> None:
        self._app, self._registry, self._control = app, registry, control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        id = headers.get(KERNEL_HEADER)
        kernel = self._registry.by_id(id) if id is not None else None
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        if not self._control.admits(id, secret if scheme.lower() == "bearer" else None):
            await error(401, "unauthorized", "The secret of the caller is missing or wrong.")(scope, receive, send)
        elif id is not None and kernel is None:
            text = "The calling kernel is not known here, or was recycled."
            await error(404, "kernel_not_found", text)(scope, receive, send)
        else:
            caller = Caller.of_kernel(kernel, self._registry) if kernel else _person(headers.get(CLIENT_HEADER))
            await self._app({**scope, STATE: caller}, receive, send)


def _person(label: str | None) -> Caller:
    if not label:
        return PERSON
    return Caller("person", unquote(label)[:LABEL_CHARACTERS], OriginKind.CONSOLE)
