"""What is known of a lease beside the rules: its key, its holder, and the words for why a kernel was retired.

Plain values and their words. Made and used by `lease_enforcement`; `binding` and `usecases.fleet` show them.
"""

from __future__ import annotations

from dataclasses import dataclass

from loommux_host.facts.phrases import clock as clock_time
from loommux_host.kernels.kernel import Kernel
from loommux_host.leases.decisions import LeaseView, Why
from loommux_host.leases.policy import Scope
from loommux_host.sessions.callers import Caller

REASONS = {
    Why.LAPSED: "its lease had lapsed",
    Why.DISCONNECTED: "its client was gone",
    Why.CLIENT_LEFT: "its session had ended",
    Why.LET_GO: "its session had attached elsewhere",
    Why.RETENTION_OVER: "nobody had used it for as long as it is kept",
    Why.UNTOLD_OVER: "its lease had lapsed, and a result that nobody was told of had been kept long enough",
    Why.ORPHANED: "a cell was running and nobody held it",
}


@dataclass(frozen=True)
class Retired:
    """A kernel that is no more: its name, when, and by which rule, as words after "because"."""

    name: str
    at: float
    reason: str

    def __str__(self) -> str:
        return f"{self.name} was retired at {clock_time(self.at)}: {self.reason}"


@dataclass(frozen=True)
class HeldBy:
    """A lease with what people know its caller by."""

    lease: LeaseView
    label: str
    address: str | None


def scope_of(kernel: Kernel) -> Scope:
    return Scope.PRIVATE if kernel.private else Scope.NAMED


def lease_key(caller: Caller, kernel: Kernel | None = None) -> str:
    """Who holds a lease: a session; in the modern era the caller together with its kernel.

    Without `kernel` that of the caller's configured resource, which may not be open yet.
    """
    if not caller.modern:
        return caller.id
    if kernel is None or kernel.name == caller.resource:
        return f"{caller.id}@resource {caller.resource}"
    return f"{caller.id}@{kernel.home or kernel.id}"
