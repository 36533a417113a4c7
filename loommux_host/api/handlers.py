"""The JSON API under ``/api``: the twin of every page of the console (contract 10).

Owns what each endpoint of `endpoint_table` does with the use-cases of `usecases.service`, `usecases.fleet`
and `history`; how arguments are read and errors shaped is in `endpoint`. Whoever calls is
a person: holds no lease, is told nothing in place of an agent, and is never refused for
ownership. Only on the private socket kernels call too (`identity`), with the rights of
`usecases.rights`. Built by `server.http_app` and `server.private_app`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from loommux_host.api.console_views import POWERLESS, ConsoleViews, Which, Window
from loommux_host.api.endpoint import CODES, NDJSON, NOTEBOOK, Arguments
from loommux_host.api.feed import Feed
from loommux_host.api.history import History
from loommux_host.api.identity import caller_of
from loommux_host.api.relay_stream import RelayStream
from loommux_host.console.page import login
from loommux_host.facts.phrases import one_line
from loommux_host.facts.refusals import Refused
from loommux_host.facts.result_limits import Limits
from loommux_host.facts.results import Answer
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.wait_timers import Patience
from loommux_host.leases.policy import InvalidPolicy
from loommux_host.mcp.tool_calls import is_large
from loommux_host.sessions.callers import Caller
from loommux_host.usecases.fleet import Fleet
from loommux_host.usecases.rights import Rights
from loommux_host.usecases.service import Service
from loommux_host.web.errors import error
from loommux_host.web.json_answer import JsonAnswer
from loommux_kernel.shared.protocol import Stream


@dataclass
class Api:
    """The handlers of the API."""

    service: Service
    fleet: Fleet
    history: History
    feed: Feed
    limits: Limits
    #: What the console has to know of the server, beside its health.
    about: Mapping[str, Any]
    #: The token that a browser shows to come in; on a private socket there is none.
    token: str | None = None

    def __post_init__(self) -> None:
        self.viewing = ConsoleViews(self.history.news)
        self.relaying = RelayStream(self.history.news, self.service.sessions)
        self.rights = Rights(self.service.registry, self.service.sessions, self.fleet.leasing)

    # -- kernels ------------------------------------------------------------------

    async def resources(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        return {"resources": await self.fleet.snapshots()}

    async def open(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        who = caller_of(request)
        kernel, new = self.fleet.open(arguments["path"], arguments["context"] or who.kernel, who)
        return {**await self.fleet.snapshot(kernel), "opened": new}

    async def lookup(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        context = arguments["context"] or caller_of(request).kernel
        return await self.fleet.snapshot(self.fleet.lookup(arguments["path"], context))

    async def resource(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        return await self.fleet.snapshot(self._kernel(request))

    async def status(self, request: Request, arguments: Arguments) -> Response:
        return await self._answered(
            request, await self.service.status(caller_of(request), kernel=self._kernel(request).id)
        )

    async def rename(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        who, kernel = self._changing(request)
        return {"ok": True, "name": await self.fleet.rename(kernel, arguments["name"], who)}

    async def release(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        who, kernel = self._changing(request)
        return {"ok": True, "released": self.fleet.release(kernel, who)}

    async def recycle(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        who, kernel = self._changing(request)
        await self.fleet.recycle(kernel, who, force=arguments["force"])
        return {"ok": True, "recycled": [kernel.name]}

    async def recycle_idle(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        return {"ok": True, "recycled": await self.fleet.recycle_all(caller_of(request), idle_only=True)}

    async def recycle_all(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        return {"ok": True, "recycled": await self.fleet.recycle_all(caller_of(request), idle_only=False)}

    async def kernel_health(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        return await self.fleet.health(self._kernel(request))

    # -- cells --------------------------------------------------------------------

    async def executions(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        a = arguments
        kernel = self._kernel(request)
        return await self.history.executions(kernel, a["limit"], a["before"], a["process"], a["max_chars"])

    async def execution(self, request: Request, arguments: Arguments) -> Response:
        kernel = self._kernel(request).id
        answer = self.service.execution_status(
            caller_of(request), execution=arguments["n"], process=arguments["process"], kernel=kernel
        )
        return await self._answered(request, await answer)

    async def run(self, request: Request, arguments: Arguments) -> Response:
        patience = Patience(arguments["wait_seconds"], arguments["silence_seconds"])
        who, kernel = self._running(request)
        answer = self.service.run_cell(
            who, arguments["source"], kernel=kernel.id, patience=patience, relay=bool(arguments["relay"] and who.kernel)
        )
        return await self._answered(request, await answer)

    async def wait(self, request: Request, arguments: Arguments) -> Response:
        arguments["timeout_seconds"] = arguments.pop("wait_seconds")
        return await self._answered(
            request, await self.service.wait(caller_of(request), **arguments, kernel=self._kernel(request).id)
        )

    async def output(self, request: Request, arguments: Arguments) -> Response:
        kernel = self._kernel(request).id
        return await self._answered(
            request, await self.service.read_output(caller_of(request), **arguments, kernel=kernel)
        )

    async def search(self, request: Request, arguments: Arguments) -> Response:
        kernel = self._kernel(request).id
        return await self._answered(
            request, await self.service.search_output(caller_of(request), **arguments, kernel=kernel)
        )

    async def combined(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        a = arguments
        return await self.history.follow(
            self._kernel(request), a["execution"], a["process"], a["stream"], a["since"], a["wait"], a["mark"]
        )

    async def relay(self, request: Request, arguments: Arguments) -> Response:
        a = arguments
        lines = await self.relaying.lines(
            caller_of(request), self._kernel(request), a["execution"], a["process"], a["after"], a["wait"]
        )
        return Response(lines, media_type=NDJSON, headers={"cache-control": "no-store"})

    async def lines(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        a = arguments
        window = Window(a["first"], a["count"], a["max_chars"])
        return await self.viewing.lines(
            self._kernel(request), _which(a), a["stream"] or Stream.COMBINED, window, a["after"], a["wait"]
        )

    async def displays(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        return await self.viewing.displays(self._kernel(request), _which(arguments))

    async def display(self, request: Request, arguments: Arguments) -> Response:
        ordinal, kind = arguments["ordinal"], arguments["type"]
        shown = await self.viewing.display(self._kernel(request), _which(arguments), ordinal, kind)
        if shown is None:
            return error(404, "not_found", f"Display {ordinal} has no {one_line(kind)} that can be shown.")
        headers = {"content-security-policy": POWERLESS, "cache-control": "no-store"}
        return Response(shown.content, media_type=shown.media_type, headers=headers)

    async def notices(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        return self.viewing.notices(self._kernel(request), arguments["limit"])

    async def notebook(self, request: Request, arguments: Arguments) -> Response:
        kernel = self._kernel(request)
        file = quote(f"{kernel.name}.ipynb", safe="")
        headers = {"cache-control": "no-store", "content-disposition": f"attachment; filename*=UTF-8''{file}"}
        return StreamingResponse(await self.history.notebook(kernel), media_type=NOTEBOOK, headers=headers)

    async def variables(self, request: Request, arguments: Arguments) -> dict[str, Any] | Response:
        kernel = self._kernel(request)
        try:
            return await self.fleet.variables(kernel)
        except Refused as refused:
            return error(503, refused.refusal.status, refused.refusal.message)

    async def interrupt(self, request: Request, arguments: Arguments) -> Response:
        who, kernel = self._running(request)
        return await self._answered(request, await self.service.interrupt(who, **arguments, kernel=kernel.id))

    async def restart(self, request: Request, arguments: Arguments) -> Response:
        who, kernel = self._changing(request)
        return await self._answered(request, await self.service.restart(who, kernel=kernel.id))

    # -- the server ---------------------------------------------------------------

    async def lease_policy(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        return dataclasses.asdict(self.fleet.leasing.policies.current)

    async def change_policy(self, request: Request, arguments: Arguments) -> dict[str, Any] | Response:
        changes = {name: value for name, value in arguments.items() if value is not None}
        try:
            return dataclasses.asdict(self.fleet.leasing.policies.change(changes))
        except InvalidPolicy as wrong:
            return error(400, "invalid_argument", str(wrong))

    async def events(self, request: Request, arguments: Arguments) -> Response:
        stream = self.feed.stream(request.headers.get("last-event-id"), arguments["recent"] or 0)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def health(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        return {"ok": True, "status": "running", "kernels": len(self.fleet.registry), **self.about}

    async def ways_in(self, request: Request, arguments: Arguments) -> dict[str, Any]:
        return {"by": "token"}

    async def login(self, request: Request, arguments: Arguments) -> Response:
        return login(self.token, arguments["token"], request.headers.get("origin"))

    # -- inside -------------------------------------------------------------------

    def _kernel(self, request: Request) -> Kernel:
        return self.fleet.find(request.path_params["id"])

    def _changing(self, request: Request) -> tuple[Caller, Kernel]:
        """Who changes which kernel, and may. Raises `Refused`."""
        who, kernel = caller_of(request), self._kernel(request)
        self.rights.change(who, kernel)
        return who, kernel

    def _running(self, request: Request) -> tuple[Caller, Kernel]:
        """Who runs or ends a cell of which kernel, and may. Raises `Refused`."""
        who, kernel = caller_of(request), self._kernel(request)
        self.rights.run(who, kernel)
        return who, kernel

    async def _answered(self, request: Request, answer: Answer) -> Response:
        """A use-case's answer as the fields of structured mode. Kernels are told by it; people only look."""
        from loommux_host.rendering.message import render

        made = partial(render, answer, structured=True, limits=self.limits)
        rendered = await asyncio.to_thread(made) if is_large(answer) else made()
        if caller_of(request).kernel is not None:
            answer.delivered()
        fields = rendered.structured or {}
        if not fields.get("ok"):
            return error(CODES.get(fields["status"], 400), fields["status"], fields.get("message") or fields["status"])
        return JsonAnswer(fields, headers={"cache-control": "no-store"})


def _which(arguments: Arguments) -> Which:
    return Which(arguments["execution"], arguments["serial"], arguments["process"])
