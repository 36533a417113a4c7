"""What the host and a kernel say to each other.

Owns the names, versions and shapes of every message on the wire, and of the
file that tells a kernel process how it was launched. Standard library only:
both sides import it, neither side's libraries are wanted by the other.

Ways a message travels:

* ``execute_request`` on shell carries a `Submission` under ``metadata["loommux"]``;
  its reply carries a `Reply` in the same place.
* Control requests (`CONTROL_REQUESTS`) go to the control channel as messages of
  the type ``loommux_<name>`` and are answered as ``loommux_<name>_reply``.
* Events go out on IOPub as messages of type `EVENT_TYPE` under `EVENT_TOPIC`,
  numbered from 1 without gaps within one kernel process.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from loommux_kernel.shared.clock import now as now
from loommux_kernel.text.counts import Counts as Counts

PROTOCOL_VERSION = 1
METADATA_KEY = "loommux"
EVENT_TYPE = "loommux_event"
#: Begins with a byte that no other topic has: whoever subscribes to everything is spared the events.
EVENT_TOPIC = b"\x01loommux"
CONTROL_PREFIX = "loommux_"
#: What the session ids of those begin with who only look which kernels are there; they are no clients.
LOOKING = "loommux-look-"

#: Seconds between two output events of one execution, at the least.
OUTPUT_EVENT_INTERVAL = 0.1
#: A body of at most this many UTF-8 bytes travels with the reply.
REPLY_BODY_BYTES = 5_000
#: The same while the record store cannot be written.
UNRECORDED_BODY_BYTES = 200_000
NOTICE_CHARACTERS = 500
NOTICES_KEPT = 10


class Stream(StrEnum):
    """The five streams of an execution (contract 3.5)."""

    COMBINED = "combined"
    STDOUT = "stdout"
    STDERR = "stderr"
    RESULT = "result"
    TRACEBACK = "traceback"


class State(StrEnum):
    """The states of an execution (contract 3.1)."""

    RUNNING = "running"
    COMPLETED = "completed"
    ERROR = "error"
    INTERRUPTED = "interrupted"
    KILLED = "killed"


class OriginKind(StrEnum):
    """Who sends cells (contract 3.2)."""

    SESSION = "session"
    KERNEL = "kernel"
    CLIENT = "client"
    CONSOLE = "console"
    STARTUP = "startup"


@dataclass(frozen=True)
class Origin:
    """Who sent an execution.

    `label` is what people read (``qtconsole``, ``session claude-1a2b3c4d``);
    `client` identifies the sender: a caller id for sessions, the Jupyter
    session id for foreign clients.
    """

    kind: OriginKind
    label: str
    client: str = ""

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Origin:
        return cls(OriginKind(wire["kind"]), wire["label"], wire.get("client", ""))


def _shape(message: Any) -> dict[str, Any]:
    """The fields of a message; `dataclasses.asdict` takes twenty times as long, several times for each cell."""
    return {k: dict(vars(v)) if isinstance(v, Counts | Origin) else v for k, v in vars(message).items()}


@dataclass(frozen=True)
class Submission:
    """Metadata of a server's ``execute_request``.

    `seen` is the serial of the last start the host has heard of: when anything
    has started since, the gate refuses the submission. `relay` is the path of a
    file that does not exist yet: what the execution says is written there as it
    was said (`relay`), until it ends or somebody removes the file.
    """

    id: str
    seen: int
    origin: Origin
    submitted_at: float
    version: int = PROTOCOL_VERSION
    relay: str | None = None

    def to_wire(self) -> dict[str, Any]:
        return _shape(self)

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Submission:
        return cls(
            wire["id"],
            wire["seen"],
            Origin.from_wire(wire["origin"]),
            wire["submitted_at"],
            wire.get("version", 0),
            wire.get("relay"),
        )


@dataclass(frozen=True)
class Reply:
    """Metadata of the ``execute_reply`` to a `Submission`.

    `refused` is ``busy`` (something started first) or ``withdrawn``; then nothing
    ran and the other fields are empty. `body` is the combined output when it is
    at most `REPLY_BODY_BYTES`; the record store holds it in every case, committed
    before the reply leaves, unless it cannot be written: then larger ones travel too.
    `displays` counts the bundles with images that were recorded, so that the host
    looks for them only when there are any.
    `sequence` is the last event before the reply: what was said meanwhile has
    arrived when that event has. `recorded` is false when the store stood still for
    too long: `counts` may then lack output, which it holds once it moves again.
    """

    refused: str | None = None
    serial: int = 0
    number: int | None = None
    state: State = State.COMPLETED
    started_at: float = 0.0
    completed_at: float = 0.0
    counts: Counts = Counts()
    ename: str | None = None
    evalue: str | None = None
    body: str | None = None
    displays: int = 0
    sequence: int = 0
    recorded: bool = True

    def to_wire(self) -> dict[str, Any]:
        return _shape(self)

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Reply:
        return cls(**{**wire, "state": State(wire["state"]), "counts": Counts(**wire["counts"])})


# -- events ------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """Something that happened in a kernel process. `sequence` has no gaps."""

    kind: ClassVar[str] = ""
    sequence: int
    at: float

    def to_wire(self) -> dict[str, Any]:
        return {"kind": self.kind, **_shape(self)}


@dataclass(frozen=True)
class ExecutionStarted(Event):
    """An execution began. `submission` is None for foreign cells."""

    kind: ClassVar[str] = "execution_started"
    serial: int
    number: int | None
    origin: Origin
    submission: str | None
    submitted_at: float
    source: str


@dataclass(frozen=True)
class ExecutionEnded(Event):
    """An execution ended; its record is committed and its streams are complete."""

    kind: ClassVar[str] = "execution_ended"
    serial: int
    number: int | None
    state: State
    counts: Counts
    ename: str | None = None
    evalue: str | None = None
    displays: int = 0


@dataclass(frozen=True)
class OutputArrived(Event):
    """Output of an execution reached the record; at most every 100 ms each.

    `late_lines` counts the lines that arrived after the execution's end, in all.
    """

    kind: ClassVar[str] = "output_arrived"
    serial: int
    number: int | None
    counts: Counts
    last_line: str
    late_lines: int = 0


@dataclass(frozen=True)
class NoticeGiven(Event):
    """Code or the environment told the agent something (contract 6).

    `serial` is the execution that spoke, or None outside any. `text` is cut to
    `NOTICE_CHARACTERS` already. `ordinal` counts the notices of that execution
    from 1; those past `NOTICES_KEPT` are not sent, the next one that is kept,
    or the end of the execution, says how many were left out.
    """

    kind: ClassVar[str] = "notice_given"
    serial: int | None
    number: int | None
    label: str
    text: str


@dataclass(frozen=True)
class InputAwaited(Event):
    """A foreign client's cell waits for that client's stdin, or no longer does."""

    kind: ClassVar[str] = "input_awaited"
    serial: int
    number: int | None
    waiting: bool


@dataclass(frozen=True)
class WatchStarted(Event):
    """Work beside the cells began (contract 8.4); `name` is taken by no other that is pending.

    `serial` and `number` are of the execution that started it, whose record has its output.
    """

    kind: ClassVar[str] = "watch_started"
    name: str
    serial: int | None
    number: int | None


class Outcome(StrEnum):
    """How a watch ended. A restart or death of the process ends watches without an event."""

    COMPLETED = "completed"
    ERROR = "error"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class WatchEnded(Event):
    """A watch ended; its notice and its output came before."""

    kind: ClassVar[str] = "watch_ended"
    name: str
    serial: int | None
    number: int | None
    outcome: Outcome
    ename: str | None = None
    evalue: str | None = None


EVENTS: dict[str, type[Event]] = {
    e.kind: e
    for e in (
        ExecutionStarted,
        ExecutionEnded,
        OutputArrived,
        NoticeGiven,
        InputAwaited,
        WatchStarted,
        WatchEnded,
    )
}
_NESTED: dict[str, Any] = {
    "origin": Origin.from_wire,
    "counts": lambda w: Counts(**w),
    "state": State,
    "outcome": Outcome,
}


def event_from_wire(wire: dict[str, Any]) -> Event:
    """The event a wire dict stands for; KeyError names an unknown kind."""
    values = dict(wire)
    cls = EVENTS[values.pop("kind")]
    known = {f.name for f in fields(cls)}
    return cls(**{k: _NESTED.get(k, lambda v: v)(v) for k, v in values.items() if k in known})


# -- control requests ----------------------------------------------------------

#: name → what it asks. Each is answered by a dict; failures by {"error": text}.
CONTROL_REQUESTS: dict[str, str] = {
    # {"holder": bool} -> {"pid", "serial" (running or None), "number", "felt" (it got an interrupt), "sequence" (last
    #        event), "last_serial", "execution_count", "clients": [...], "stream_bytes_pending",
    #        "watches": [{"name", "serial", "number", "at"}...] that are pending, oldest first; asked for, also
    #        "holder" (where the main thread is when it does not come round though nothing runs, or None)}
    "status": "what runs, from the gate",
    # {"serial": int | None, "submission": str | None, "asked_at", "by": str | None (somebody other than the
    #        sender, who is told when a client sent it)} -> {"result": "sent" | "idle" |
    #        "not_running", "serial", "number", "pending_children": [pid...], "left_children": [pid...]};
    #        without a name it is not meant for what started after `asked_at`
    "interrupt": "interrupt that execution (None: the running one) and its processes",
    # {"submission": id} -> {"result": "withdrawn" | "started" | "ended", "serial", "number"}
    "withdraw": "never run that submission, if it has not started",
    # {} -> {"sequence"}: everything written before the request is in the record
    "flush": "bring buffered output into the record",
    # {"serials": [int...]} -> {}: a caller has been told of the ends of these executions
    "told": "these executions may be dropped when space runs out",
    # {} -> {"variables": [{"name", "type", "size" (int, list of ints or None), "bytes", "preview"}...],
    #        "total"}: at most the last 500
    "variables": "the user's variables, read without running any code of theirs",
    # {"name": str} -> {}
    "rename": "the kernel's new name",
    # {} -> {}: answer, then exit with atexit handlers
    "quit": "exit in order",
}


# -- launch --------------------------------------------------------------------


@dataclass(frozen=True)
class LaunchFile:
    """How one kernel process was launched; ``python -m loommux_kernel FILE`` reads it.

    Paths are absolute. The file is private (0600) in the process's directory.
    """

    kernel_id: str
    kernel_name: str
    process: int
    #: Jupyter connection file; ipc or tcp endpoints, the same across restarts.
    connection_file: str
    #: Session id of the server's client: requests from it are the server's own.
    server_session: str
    #: The record store of this process (one SQLite file).
    records: str
    #: Directory for the descriptor files of fd 1 and 2.
    descriptors: str
    #: The process's own log: what it writes before and beside any cell; faulthandler.
    log: str
    workspace: str
    #: The interpreter, and in words why it is that one.
    python: str = ""
    python_why: str = ""
    #: Directory of startup files, or None.
    startup: str | None = None
    #: Inherited descriptor on which one JSON line is written when requests are served.
    ready_fd: int | None = None
    records_budget_bytes: int = 1 << 30
    control_url: str | None = None
    #: The server's `clock`.
    clock: float | None = None
    #: Where IPython keeps what `%store` and its like are given; None: with the process.
    profile: str | None = None
    version: int = PROTOCOL_VERSION
    extra: dict[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> LaunchFile:
        return cls(**json.loads(path.read_text()))
