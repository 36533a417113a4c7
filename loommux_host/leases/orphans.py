"""A kernel that no lease holds: what keeps it all the same, and what an orphan waits for.

Owns the rule of contract 9.4: while something other than a lease keeps it, it stays; an idle
one then goes at once; one that runs a cell is an orphan and has a grace to end it. Pure;
called by `rules` alone.
"""

from __future__ import annotations

from loommux_host.leases.decisions import Decision, KernelOrphaned, RetireKernel, Why
from loommux_host.leases.state import NEVER, KeptKernel


def settle(entry: KeptKernel, now: float) -> list[Decision]:
    """What follows for the kernel from who and what keeps it now."""
    if entry.retiring:
        return []
    if entry.leases or entry.kept_until() > now:
        entry.orphaned_at = None
        entry.note_keeper(now)
        return []
    grace = entry.policy.orphan_grace_seconds
    if entry.running and entry.orphaned_at is None:
        entry.orphaned_at = now
        return [KernelOrphaned(entry.id, grace)]
    if entry.running and entry.orphaned_at is not None and now < entry.orphaned_at + grace:
        return []
    entry.retiring = True
    return [RetireKernel(entry.id, Why.ORPHANED if entry.running else entry.last_keeper)]


def due_without_lease(entry: KeptKernel) -> float | None:
    """When to look again at a kernel that no lease holds; None when time alone changes nothing."""
    if entry.orphaned_at is not None:
        return entry.orphaned_at + entry.policy.orphan_grace_seconds
    return entry.kept_until() if entry.kept_until() > NEVER else None
