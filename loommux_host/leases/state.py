"""What the lease rules remember: leases, and kernels with who and what keeps them.

Owns the state of `rules` and the little that follows from it without a rule. Pure; used
by `rules` alone. Times are seconds of the clock that `rules` are given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from loommux_host.leases.decisions import Standing, Why
from loommux_host.leases.policy import Policy, Scope

#: Stands for every caller that holds the kernel: a child's cell is a cell of each of them.
EVERY_CALLER = "*"
NEVER = -math.inf


@dataclass
class Lease:
    caller: str
    policy: Policy
    standing: Standing | None
    last_call: float
    #: What windows count from: the last sign of the caller, or the last end of a cell of its.
    last_sign: float
    #: When the standing began.
    since: float
    #: Whether the caller was heard since then.
    heard: bool = True
    #: Of a departed lease: until when a running cell of its caller counts as held.
    held_until: float = NEVER
    #: Of a departed lease: its caller cannot come back.
    final: bool = False

    def stand(self, standing: Standing, now: float) -> None:
        self.standing, self.since, self.heard = standing, now, False


@dataclass(frozen=True)
class Alone:
    """A caller that holds the kernel alone, and since when."""

    caller: str
    since: float


@dataclass
class KeptKernel:
    id: str
    scope: Scope
    policy: Policy
    #: It ends with its last lease, its cell over and its result told; else it keeps itself for the named window.
    autoclose: bool
    alone: Alone | None = None
    leases: dict[str, Lease] = field(default_factory=dict)
    #: Leases of callers that left while a cell of theirs ran, or that may reconnect.
    departed: dict[str, Lease] = field(default_factory=dict)
    #: Calls in flight by caller; they may outlast the lease they began.
    calls: dict[str, int] = field(default_factory=dict)
    #: Running cells: key → the caller whose cell it is, EVERY_CALLER, or None for a foreign one.
    running: dict[object, str | None] = field(default_factory=dict)
    #: Executions whose end nobody has been told → until when that keeps the kernel.
    untold: dict[object, float] = field(default_factory=dict)
    retained_until: float = NEVER
    orphaned_at: float | None = None
    #: The last rule that kept the kernel, for the reason of its retirement.
    last_keeper: Why = Why.CLIENT_LEFT
    retiring: bool = False

    def end_alone(self, caller: str) -> None:
        """The caller holds it no more, so not alone either."""
        if self.alone is not None and self.alone.caller == caller:
            self.alone = None

    def runs_cell_of(self, caller: str) -> bool:
        return any(owner in (caller, EVERY_CALLER) for owner in self.running.values())

    def kept_until(self) -> float:
        """Until when something other than a lease keeps it; the past when nothing does."""
        return max(self._keepers().values())

    def note_keeper(self, now: float) -> None:
        """Forgets what is over and remembers which rule keeps it longest."""
        self.departed = {c: d for c, d in self.departed.items() if not d.final or self.runs_cell_of(c)}
        self.untold = {key: until for key, until in self.untold.items() if until > now}
        keepers = self._keepers()
        keeper = max(keepers, key=lambda why: keepers[why])
        if keepers[keeper] > now:
            self.last_keeper = keeper

    def _keepers(self) -> dict[Why, float]:
        cells = (lease.held_until for caller, lease in self.departed.items() if self.runs_cell_of(caller))
        return {
            Why.RETENTION_OVER: self.retained_until,
            Why.UNTOLD_OVER: max(self.untold.values(), default=NEVER),
            Why.DISCONNECTED: max(cells, default=NEVER),
        }
