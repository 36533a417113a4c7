"""What a server leaves for its successor, so that kernels can be taken over (contract 5): the shapes.

Owns what is written down of a server, of its callers and of each kernel, and the numbers
by which a successor sees whether it can read that. Output is not in it: record stores are.
Pure; times are as their owners have them, leases' on the system's steady clock, which goes
on across processes. `storage` writes and reads them, `server.handover` fills them,
`restoration` makes kernels of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loommux_host.facts.results import Death
from loommux_host.kernels.journal import DeathEntry, EndEntry, NoticeEntry
from loommux_host.leases.decisions import Standing, Why
from loommux_host.leases.policy import Policy, Scope
from loommux_kernel.shared.protocol import PROTOCOL_VERSION

#: Of the shapes below. A successor takes over from a server with the same only.
FORMAT = 3
VERSIONS = (FORMAT, PROTOCOL_VERSION)


@dataclass(frozen=True)
class Identity:
    """Whose kernels they are. `endpoint` is the address or the socket that was listened on.

    `uptime` is the system's when the server began, in seconds, and `boot` which run of the system
    that was. `session` is the server's Jupyter client session: what the kernels know it by.
    """

    versions: tuple[int, ...]
    pid: int
    uptime: float
    boot: str
    workspace: str
    endpoint: str
    python: str
    session: str


# -- a kernel ---------------------------------------------------------------------------


@dataclass(frozen=True)
class ProcessNote:
    """One process of a kernel; the one without a `death` was alive. `ending` is `Life.ending`."""

    process: int
    pid: int
    init_pid: int | None
    started_at: float
    ending: tuple[str, str | None, str | None] | None = None
    death: Death | None = None


@dataclass(frozen=True)
class JournalNote:
    """The state of a `Journal`."""

    index: int
    notices: list[NoticeEntry]
    ends: list[EndEntry]
    deaths: list[DeathEntry]
    ends_let_go: int
    notices_let_go: int


@dataclass(frozen=True)
class KernelNote:
    """One kernel. `connection` is the content of its connection file; `processes` are oldest first."""

    id: str
    name: str
    home: str | None
    private: bool
    opened_at: float
    connection_file: str
    connection: dict[str, Any]
    processes: list[ProcessNote]
    journal: JournalNote


# -- callers ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToldNote:
    """What one caller has had of one kernel. `late` is (process, serial, lines); `owed` is [start, stop)."""

    caller: str
    kernel: str
    index: int
    late: list[tuple[int, int, int]]
    owed: list[tuple[int, int]]


@dataclass(frozen=True)
class PresenceNote:
    caller: str
    label: str
    modern: bool
    last_call: float


@dataclass(frozen=True)
class BoundNote:
    caller: str
    kernel: str
    line: str | None
    fresh: bool


@dataclass(frozen=True)
class HandleNote:
    handle: str
    kernel: str
    caller: str
    passed: bool


@dataclass(frozen=True)
class BindingNote:
    """The state of a `Binder`. `gone` are handles of kernels that were retired."""

    bound: list[BoundNote] = field(default_factory=list)
    handles: list[HandleNote] = field(default_factory=list)
    gone: dict[str, str] = field(default_factory=dict)
    introduced: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class LeaseNote:
    """A lease, held or departed."""

    caller: str
    policy: int
    standing: Standing | None
    last_call: float
    last_sign: float
    since: float
    held_until: float
    final: bool


@dataclass(frozen=True)
class KeptNote:
    """A main kernel with what keeps it. Cells are (kernel, process, serial), with whose they are or until when."""

    kernel: str
    scope: Scope
    policy: int
    leases: list[LeaseNote]
    departed: list[LeaseNote]
    running: list[tuple[str, int, int, str | None]]
    untold: list[tuple[str, int, int, float]]
    retained_until: float
    last_keeper: Why
    autoclose: bool
    #: The caller that holds it alone, and since when.
    alone: tuple[str, float] | None


@dataclass(frozen=True)
class RetiredNote:
    kernel: str
    name: str
    at: float
    reason: str


@dataclass(frozen=True)
class LeasingNote:
    """The state of a `LeaseEnforcement`: generations of the policy, leases, claims, and who was called what."""

    policies: list[Policy] = field(default_factory=list)
    kernels: list[KeptNote] = field(default_factory=list)
    claims: list[tuple[str, str]] = field(default_factory=list)
    retired: list[RetiredNote] = field(default_factory=list)
    known: list[tuple[str, str, str | None]] = field(default_factory=list)


@dataclass(frozen=True)
class CallersNote:
    """Everything that is known of callers. `sessions` are the open sessions' ids with how they were opened."""

    told: list[ToldNote] = field(default_factory=list)
    present: list[PresenceNote] = field(default_factory=list)
    binding: BindingNote = field(default_factory=BindingNote)
    leasing: LeasingNote = field(default_factory=LeasingNote)
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
