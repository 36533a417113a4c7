"""What an API endpoint is: its path, its arguments with their checks, its description (contract 10).

Owns the reading of arguments from queries and JSON bodies, which HTTP status a refusal has,
and the OpenAPI description that is generated from the table of endpoints. Knows no endpoint:
`endpoint_table` declares them. The kinds of values are those of the tools' `mcp.parameters`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from loommux_host.facts.refusals import Refused, invalid_argument
from loommux_host.kernels.outcomes import KernelClosed
from loommux_host.kernels.record_reads import RecordsGone, RecordsUnreadable
from loommux_host.kernels.registry import TooManyKernels
from loommux_host.mcp.parameters import LARGEST_INTEGER, TEXT, BadArgument, Kind, Parameter
from loommux_host.usecases.outcome_mapping import refused_by_the_system
from loommux_host.version import VERSION
from loommux_host.web.errors import error
from loommux_host.web.json_answer import JsonAnswer

log = logging.getLogger(__name__)

#: HTTP status of refusals; any other is 400.
CODES = {
    "kernel_not_found": 404, "execution_not_found": 404, "process_not_found": 404, "records_gone": 404,
    "records_unreadable": 404, "records_behind": 404, "watch_not_found": 404,
    "busy": 409, "not_yours": 409, "kernel_died": 409, "kernel_busy": 409, "other_home": 409, "claimed": 409,
    "kernel_unresponsive": 409, "kernel_start_failed": 409, "too_many_kernels": 409, "idle": 409, "not_running": 409,
    "server_stopping": 503, "system_error": 503,
}  # fmt: skip
NDJSON = "application/x-ndjson"
NOTEBOOK = "application/x-ipynb+json"
#: What `web.auth` may answer on every route.
FROM_GUARD = (401, 403, 408, 413, 415, 421)

Arguments = dict[str, Any]
Handler = Callable[[Request, Arguments], Awaitable["dict[str, Any] | list[Any] | Response"]]


@dataclass(frozen=True)
class Endpoint:
    """One method of one path. `query` and `body` are its arguments; `answer` is a JSON schema.

    `in_path` says what stands in the path, where that is not any text.
    """

    method: str
    path: str
    summary: str
    handler: Handler
    query: Sequence[Parameter] = ()
    body: Sequence[Parameter] | None = None
    answer: Mapping[str, Any] | None = None
    errors: Sequence[int] = (404,)
    media_type: str = "application/json"
    in_path: Mapping[str, Kind] = field(default_factory=dict)

    async def serve(self, request: Request) -> Response:
        try:
            in_path = [Parameter(name, kind, "", required=True) for name, kind in self.in_path.items()]
            arguments = checked(in_path, {name: request.path_params[name] for name in self.in_path})
            arguments |= checked(self.query, _from_query(self.query, request))
            if self.body is not None:
                arguments |= checked(self.body, await _from_body(request))
            answer = await self.handler(request, arguments)
        except BadArgument as bad:
            refusal = invalid_argument(bad.parameter, bad.value, bad.allowed)
            return error(400, refusal.status, refusal.message)
        except Refused as refused:
            return error(CODES.get(refused.refusal.status, 400), refused.refusal.status, refused.refusal.message)
        except RecordsGone:
            return error(404, "records_gone", "The records of that process are gone: their files were removed.")
        except RecordsUnreadable:
            return error(404, "records_unreadable", "The records of that process are there and cannot be read.")
        except TooManyKernels as full:
            return error(409, "too_many_kernels", str(full))
        except KernelClosed:
            return error(404, "kernel_not_found", "That kernel was recycled while this request was on its way.")
        except (OSError, MemoryError, RuntimeError) as failure:
            refusal = refused_by_the_system(f"{self.method} {self.path}", failure)
            return error(503, refusal.status, refusal.message)
        return answer if isinstance(answer, Response) else JsonAnswer(answer, headers={"cache-control": "no-store"})


def routes(endpoints: Sequence[Endpoint]) -> list[Route]:
    """One route for each path: a method that it does not take is answered with all that it takes."""
    paths: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return [Route(path, partial(_serve, methods), methods=list(methods)) for path, methods in paths.items()]


async def _serve(methods: Mapping[str, Endpoint], request: Request) -> Response:
    return await methods["GET" if request.method == "HEAD" else request.method].serve(request)


def checked(parameters: Sequence[Parameter], given: Mapping[str, object]) -> Arguments:
    """The arguments, defaults filled in. Raises `BadArgument`."""
    names = [parameter.name for parameter in parameters]
    for name, value in given.items():
        if name not in names:
            raise BadArgument(name, value, f"there are {', '.join(names)}" if names else "there are no parameters")
    arguments: Arguments = {}
    for parameter in parameters:
        value = given.get(parameter.name)
        if value is None and not parameter.required:
            value = parameter.default
            if value is None:
                arguments[parameter.name] = None
                continue
        try:
            arguments[parameter.name] = parameter.kind.check(value)
        except ValueError:
            raise BadArgument(parameter.name, value, f"it has to be {parameter.kind.allowed}") from None
    return arguments


def _from_query(parameters: Sequence[Parameter], request: Request) -> dict[str, object]:
    kinds = {parameter.name: parameter.kind.schema["type"] for parameter in parameters}
    given: dict[str, object] = {}
    for name, text in request.query_params.multi_items():
        if name in given:
            raise BadArgument(name, text, "it is given twice")
        given[name] = _value(text, str(kinds.get(name)))
    return given


def _value(text: str, kind: str) -> object:
    """A query's text as JSON has it; what does not fit stays text, and is refused by the check."""
    if kind == "boolean":
        return {"true": True, "false": False}.get(text, text)
    if kind in ("integer", "number"):
        try:
            return int(text) if kind == "integer" else float(text)
        except ValueError:
            return text
    return text


async def _from_body(request: Request) -> dict[str, object]:
    content = await request.body()
    if not content:
        return {}
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        raise BadArgument("body", content[:80].decode(errors="replace"), "it has to be JSON") from None
    if not isinstance(body, dict):
        raise BadArgument("body", body, "it has to be a JSON object")
    return body


# -- description ------------------------------------------------------------------------


def describe(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The API as an OpenAPI 3.1 document."""
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "loommux",
            "version": VERSION,
            "description": "Kernels of a loommux server. Reads change nothing and renew no lease.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


ERROR = {
    "type": "object",
    "properties": {
        "ok": {"const": False},
        "status": {"type": "string", "description": "A status word of the reference."},
        "message": {"type": "string"},
    },
    "required": ["ok", "status", "message"],
    "additionalProperties": False,
}


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    in_path = dict.fromkeys([part[1:-1] for part in endpoint.path.split("/") if part.startswith("{")], TEXT)
    in_path.update(endpoint.in_path)
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": kind.schema} for name, kind in in_path.items()
    ]
    parameters += [
        {"name": p.name, "in": "query", "required": p.required, "description": p.description, "schema": _schema(p)}
        for p in endpoint.query
    ]
    refused = {"description": "Nothing was done.", "content": _content({"$ref": "#/components/schemas/Error"})}
    codes = sorted({400, 503, *endpoint.errors, *FROM_GUARD})
    schema = endpoint.answer or {"type": "object"}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done.", "content": _content(schema, endpoint.media_type)},
            **{str(code): refused for code in codes},
        },
    }
    if endpoint.body is not None:
        body = {
            "type": "object",
            "properties": {p.name: _in_body(p) for p in endpoint.body},
            "required": [p.name for p in endpoint.body if p.required],
            "additionalProperties": False,
        }
        operation["requestBody"] = {"required": bool(body["required"]), "content": _content(body)}
    return operation


def _content(schema: Mapping[str, Any], media_type: str = "application/json") -> dict[str, Any]:
    return {media_type: {"schema": schema}}


def _in_body(parameter: Parameter) -> dict[str, Any]:
    """A property of a body; null is the same as left out."""
    schema = _schema(parameter)
    if not parameter.required:
        schema = {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "description": parameter.description}


def _schema(parameter: Parameter) -> dict[str, Any]:
    default = {} if parameter.default is None else {"default": parameter.default}
    # Tools leave it out: it would cost every model's context.
    largest = {"maximum": LARGEST_INTEGER} if parameter.kind.schema["type"] == "integer" else {}
    return {**largest, **parameter.kind.schema, **default}
