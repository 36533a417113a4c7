"""What the lease rules say: standings, reasons, decisions, views.

Owns the words between `rules` and those who carry its decisions out or show
its state (`sessions`, the faces). Plain values, no rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from loommux_host.leases.policy import Mode, Policy, Scope


class Standing(StrEnum):
    """How a connection lease stands (contract 9.4); other leases have no standing."""

    CONNECTED = "connected"
    AWAITING_STREAM = "awaiting_stream"
    RECONNECTING = "reconnecting"
    DISCONNECTED = "disconnected"
    UNBOUND = "unbound"
    STREAM_LOST = "stream_lost"


#: In these the lease has fallen back to the activity window, and its caller is warned.
ALERTING = frozenset({Standing.UNBOUND, Standing.STREAM_LOST})


class Why(StrEnum):
    """Which rule ended a lease or retired a kernel."""

    LAPSED = "lapsed"
    DISCONNECTED = "disconnected"
    CLIENT_LEFT = "client_left"
    LET_GO = "let_go"
    RETENTION_OVER = "retention_over"
    UNTOLD_OVER = "untold_over"
    ORPHANED = "orphaned"


@dataclass(frozen=True)
class Decision:
    kernel: str


@dataclass(frozen=True)
class LeaseReleased(Decision):
    caller: str
    why: Why


@dataclass(frozen=True)
class AlertRaised(Decision):
    caller: str
    standing: Standing


@dataclass(frozen=True)
class AlertCleared(Decision):
    caller: str


@dataclass(frozen=True)
class KernelOrphaned(Decision):
    """It is busy and nobody holds it; it will be retired after `grace` seconds."""

    grace: float


@dataclass(frozen=True)
class RetireKernel(Decision):
    """Nobody keeps it: end it with its children. Said once for a kernel."""

    why: Why


@dataclass(frozen=True)
class LeaseView:
    """A lease as `status`, API and console show it.

    `held` is False once its caller is gone. `remaining_seconds` counts to the next
    change that time alone brings; None while only an event can bring one.
    """

    caller: str
    mode: Mode
    generation: int
    standing: Standing | None
    held: bool
    remaining_seconds: float | None


def alert_line(standing: Standing, policy: Policy, scope: Scope) -> str:
    """The line that warns a caller whose connection lease has fallen back to the activity window."""
    happened = {
        Standing.UNBOUND: "this session has never opened its event stream (GET)",
        Standing.STREAM_LOST: "the event stream (GET) of this session ended and did not come back",
    }[standing]
    window = _spoken(policy.window(scope))
    return f"Lease alert ({standing}): {happened}, so only calls keep this kernel now, {window} after the last one."


def _spoken(seconds: float) -> str:
    for unit, size in (("hour", 3600.0), ("minute", 60.0), ("second", 1.0)):
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count != 1 else ''}"
    return f"{seconds:g} seconds"
