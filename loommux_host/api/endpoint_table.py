"""The table of the API's endpoints: method, path, arguments, what may be refused (contract 10).

Owns what an endpoint is called and takes; `handlers` has what it does, `endpoint` how it is
served and described. Used by `server`.
"""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request

from loommux_host.api.console_views import MOST_CHARACTERS, MOST_LINES
from loommux_host.api.endpoint import NDJSON, NOTEBOOK, Arguments, Endpoint, describe
from loommux_host.api.feed import KEPT_EVENTS
from loommux_host.api.handlers import Api
from loommux_host.kernels.journal import KEPT
from loommux_host.leases.policy import SETTINGS, Mode
from loommux_host.mcp.parameters import CELL, COUNT, FLAG, LARGEST_INTEGER, POSITIVE, TEXT, Kind, Parameter, one_of
from loommux_host.mcp.tools import READ_OUTPUT, SEARCH_OUTPUT, STREAM, WAIT
from loommux_kernel.shared.handles import LONGEST_WAIT

LONGEST_FOLLOW = 30.0
NUMBER = re.compile("^(latest|[1-9][0-9]{0,14})$")
PAGE = 50
LARGEST_PAGE = 500


def _span(least: float, most: float) -> Kind:
    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ValueError
        return float(value)

    return Kind({"type": "number", "minimum": least, "maximum": most}, f"seconds from {least:g} to {most:g}", check)


def _up_to(most: int) -> Kind:
    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ValueError
        return value

    return Kind({"type": "integer", "minimum": 1, "maximum": most}, f"from 1 to {most}", check)


def _which(value: object) -> int | None:
    if not isinstance(value, str) or not NUMBER.fullmatch(value):
        raise ValueError
    return None if value == "latest" else int(value)


SECONDS, FOLLOW = _span(0, LONGEST_WAIT), _span(0, LONGEST_FOLLOW)
WHICH = {"n": Kind({"type": "string", "pattern": NUMBER.pattern}, "a positive integer, or latest", _which)}
CONTEXT = Parameter("context", TEXT, "Id of the kernel from whose home a bare name is looked up.")
PROCESS = Parameter("process", POSITIVE, "The process whose records are read; left out: the one that runs now.")
EXECUTION = Parameter("execution", POSITIVE, "The cell's number; left out: the running one, else the most recent.")
WAITING = (
    Parameter("wait_seconds", SECONDS, "Answer after so long in any case.", default=10),
    Parameter("silence_seconds", SECONDS, "Answer after so long without new output.", default=10),
)
ONE = "/api/resources/{id}"


def _setting(name: str) -> Parameter:
    """A lease setting as an argument; the policy itself has the last word on its value."""
    if name == "lease_mode":
        return Parameter(name, one_of(*Mode), "What proves that a client is there.")
    return Parameter(name, _span(0.001, LARGEST_INTEGER), f"Setting {name} of config.py.")


POLICY = [_setting(name) for name in SETTINGS]
PATH = Parameter("path", TEXT, "/main, /main/child, an id, or a name with context.", required=True)
NAME = Parameter("name", TEXT, "The new name.", required=True)
FORCE = Parameter("force", FLAG, "Also when a cell runs.", default=False)
RELAY = Parameter("relay", FLAG, "Keep what it says as it was written, for `relay`; for kernels alone.", default=False)
RUNS = [Parameter("source", CELL, "The cell.", required=True), *WAITING, RELAY]
WAITS = [EXECUTION, *WAITING, PROCESS, next(p for p in WAIT.parameters if p.name == "watch")]
READS = [p for p in READ_OUTPUT.parameters if p.name != "kernel"]
SEARCHES = [p for p in SEARCH_OUTPUT.parameters if p.name != "kernel"]
SERIAL = Parameter("serial", POSITIVE, "Its serial, in place of a number that IPython did not give.")
THESE = [EXECUTION, SERIAL, PROCESS]
LINES = [
    *THESE,
    STREAM,
    Parameter("first", POSITIVE, "The first line; left out: the last lines."),
    Parameter("count", _up_to(MOST_LINES), "How many lines.", default=PAGE),
    Parameter("max_chars", _up_to(MOST_CHARACTERS), "Characters of each line.", default=2_000),
    Parameter("after", _span(0, LARGEST_INTEGER), "Wait for something newer than this `updated_at`."),
    Parameter("wait", FOLLOW, "Wait at most so long for it.", default=0),
]
DISPLAY = [
    *THESE,
    Parameter("ordinal", POSITIVE, "Which of the execution's displays.", required=True),
    Parameter("type", TEXT, "Which of its types, as image/png.", required=True),
]
RECENT = [Parameter("recent", _up_to(KEPT_EVENTS), "Begin with so many of the last events.")]
NOTICES = [Parameter("limit", _up_to(KEPT), "How many.", default=PAGE)]
TOKEN = [Parameter("token", TEXT, "The server's token.")]
FOLLOWS = [
    EXECUTION,
    PROCESS,
    STREAM,
    Parameter("since", COUNT, "Settled lines had so far.", default=0),
    Parameter("wait", FOLLOW, "Wait at most so long for something new.", default=0),
    Parameter("mark", TEXT, "`mark` of the answer before: what changed since is new."),
]
RELAYS = [
    Parameter("execution", POSITIVE, "A cell that was run with `relay`.", required=True),
    PROCESS,
    Parameter("after", COUNT, "Bytes had so far: `next` of the answer before.", default=0),
    Parameter("wait", FOLLOW, "Wait at most so long for something new.", default=0),
]
PAGES = [
    Parameter("limit", _up_to(LARGEST_PAGE), "How many.", default=PAGE),
    Parameter("max_chars", POSITIVE, "Characters of each source."),
    Parameter("before", POSITIVE, "Executions before this serial: `next` of the page before."),
    PROCESS,
]
RESOURCE = {"type": "object", "required": ["resource_id", "name", "kernel_state", "busy", "leases"]}
RESOURCES = {"type": "object", "properties": {"resources": {"type": "array", "items": RESOURCE}}}
NONE, CONFLICT = (), (404, 409)
EVENTS, ANY = "text/event-stream", "*/*"
IPYNB = {"type": "object", "required": ["cells", "metadata", "nbformat", "nbformat_minor"]}
VARIABLE = {
    "type": "object",
    "required": ["name", "type", "size", "bytes", "preview"],
    "properties": {
        "name": {"type": "string"},
        "type": {"type": "string"},
        "size": {
            "anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}, {"type": "null"}],
            "description": "Items or characters; of arrays and frames their shape.",
        },
        "bytes": {"type": ["integer", "null"]},
        "preview": {"type": ["string", "null"], "description": "Null for what only its own code could show."},
    },
}
VARIABLES = {
    "type": "object",
    "required": ["process", "kernel_state", "variables", "total"],
    "properties": {
        "process": {"type": ["integer", "null"]},
        "kernel_state": {"type": "string"},
        "variables": {"type": "array", "items": VARIABLE, "description": "At most the last 500."},
        "total": {"type": "integer"},
    },
}


def endpoints(api: Api) -> list[Endpoint]:
    """All endpoints; of two that fit, the first is meant."""

    async def description(request: Request, arguments: Arguments) -> dict[str, Any]:
        return describe(table)

    table = [
        Endpoint("GET", "/api/resources", "All kernels.", api.resources, answer=RESOURCES, errors=NONE),
        Endpoint("POST", "/api/resources", "Open a kernel.", api.open, body=[PATH, CONTEXT], errors=CONFLICT),
        Endpoint("GET", "/api/resources/lookup", "Find one.", api.lookup, query=[PATH, CONTEXT], answer=RESOURCE),
        Endpoint("POST", "/api/resources/recycle-idle", "End what is idle and not held.", api.recycle_idle, body=[]),
        Endpoint("POST", "/api/resources/recycle-all", "End all kernels.", api.recycle_all, body=[]),
        Endpoint("GET", ONE, "One kernel.", api.resource, answer=RESOURCE),
        Endpoint("GET", f"{ONE}/status", "What the tool status says.", api.status),
        Endpoint("GET", f"{ONE}/executions", "Its executions, newest first.", api.executions, query=PAGES),
        Endpoint("POST", f"{ONE}/executions", "Run a cell.", api.run, body=RUNS, errors=CONFLICT),
        Endpoint("GET", f"{ONE}/executions/{{n}}", "One, or latest.", api.execution, query=[PROCESS], in_path=WHICH),
        Endpoint("POST", f"{ONE}/wait", "Wait for an execution.", api.wait, body=WAITS),
        Endpoint("GET", f"{ONE}/output", "Lines of one stream.", api.output, query=READS),
        Endpoint("GET", f"{ONE}/search", "Lines that match.", api.search, query=SEARCHES),
        Endpoint("GET", f"{ONE}/combined", "Output as it arrives.", api.combined, query=FOLLOWS),
        Endpoint("GET", f"{ONE}/relay", "Output as it was written.", api.relay, query=RELAYS, media_type=NDJSON),
        Endpoint("GET", f"{ONE}/lines", "A window of one stream.", api.lines, query=LINES),
        Endpoint("GET", f"{ONE}/displays", "What a cell displayed.", api.displays, query=THESE),
        Endpoint("GET", f"{ONE}/display", "One display.", api.display, query=DISPLAY, media_type=ANY),
        Endpoint("GET", f"{ONE}/notices", "Its last notices.", api.notices, query=NOTICES),
        Endpoint("GET", f"{ONE}/notebook", "It as an .ipynb.", api.notebook, answer=IPYNB, media_type=NOTEBOOK),
        Endpoint("GET", f"{ONE}/variables", "Its variables, no code run.", api.variables, answer=VARIABLES),
        Endpoint("POST", f"{ONE}/rename", "Rename it.", api.rename, body=[NAME]),
        Endpoint("POST", f"{ONE}/interrupt", "Interrupt a cell.", api.interrupt, body=[EXECUTION], errors=CONFLICT),
        Endpoint("POST", f"{ONE}/restart", "Replace its process.", api.restart, body=[], errors=CONFLICT),
        Endpoint("POST", f"{ONE}/health", "Ask it to answer.", api.kernel_health, body=[]),
        Endpoint("POST", f"{ONE}/release", "Nobody holds it alone any more.", api.release, body=[], errors=CONFLICT),
        Endpoint("POST", f"{ONE}/recycle", "End it with its children.", api.recycle, body=[FORCE], errors=CONFLICT),
        Endpoint("GET", "/api/lease-policy", "The lease policy.", api.lease_policy, errors=NONE),
        Endpoint("PUT", "/api/lease-policy", "Begin a generation of it.", api.change_policy, body=POLICY, errors=NONE),
        Endpoint("GET", "/api/events", "What happens.", api.events, query=RECENT, errors=NONE, media_type=EVENTS),
        Endpoint("GET", "/api/login", "What lets a browser in: its token.", api.ways_in, errors=NONE),
        Endpoint("POST", "/api/login", "Let this browser in.", api.login, body=TOKEN, errors=NONE),
        Endpoint("GET", "/api/health", "Whether the server is there.", api.health, errors=NONE),
        Endpoint("GET", "/api/openapi.json", "This description.", description, errors=NONE),
    ]
    return table
