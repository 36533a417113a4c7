"""What a server serves on its private socket: the API, with callers told apart (contract 8, 10).

Owns the assembly of that app, for a server over stdio with all that an HTTP server has
anyway. `private_server` serves it; `api` is what is in it.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from loommux_host.api.activity import News
from loommux_host.api.endpoint import routes
from loommux_host.api.endpoint_table import endpoints
from loommux_host.api.feed import Feed
from loommux_host.api.handlers import Api
from loommux_host.api.history import History
from loommux_host.api.identity import Identified
from loommux_host.config import Config
from loommux_host.console.page import about
from loommux_host.facts.result_limits import Limits
from loommux_host.kernels.registry import Registry
from loommux_host.leases.policy import Policies, Policy
from loommux_host.processes.private_socket import ControlSocket
from loommux_host.sessions.lease_enforcement import LeaseEnforcement
from loommux_host.usecases.fleet import Fleet, Holder
from loommux_host.usecases.resource_usage import ResourceUsage
from loommux_host.usecases.service import Service
from loommux_host.web.errors import http_error, server_error


class PrivateApi:
    """The app of one private socket."""

    def __init__(self, api: Api, registry: Registry, control: ControlSocket) -> None:
        self._api, self.feed = api, api.feed
        handlers = {HTTPException: http_error, Exception: server_error}
        starlette = Starlette(routes=routes(endpoints(api)), exception_handlers=handlers)
        self.asgi: ASGIApp = Identified(starlette, registry, control)

    def close(self) -> None:
        """Let everybody go who waits for something to happen."""
        self._api.feed.close()
        self._api.history.news.close()


def stdio_api(config: Config, service: Service, holder: Holder, control: ControlSocket) -> PrivateApi:
    """That of a server over stdio, where no lease is kept: its client's connection is what holds its kernel."""
    registry, feed = service.registry, Feed()
    leasing = LeaseEnforcement(Policies(Policy.of(config)), feed.publish)
    fleet = Fleet(registry, service.sessions, leasing, holder, ResourceUsage(), lasting=True)
    limits = Limits(config.max_result_bytes, config.omission_tail_lines, ascii_wire=True)
    history = History(News(registry, feed))
    return PrivateApi(Api(service, fleet, history, feed, limits, about(config, "stdio")), registry, control)
