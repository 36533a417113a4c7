"""What keeps a kernel, as a server writes it down for its successor, and what that makes of it.

Pure. Owns the rule for the time in which nobody served: streams have to come back within
their grace, and no lease ends before its caller had a minute to be heard again. Used by
`sessions.lease_enforcement`.
"""

from __future__ import annotations

from collections.abc import Callable

from loommux_host.leases.decisions import Standing
from loommux_host.leases.policy import Mode, Policy
from loommux_host.leases.state import Alone, KeptKernel, Lease
from loommux_host.succession.manifest import KeptNote, LeaseNote

#: What a caller has at least to be heard by the successor, in seconds.
RETURN_SECONDS = 60.0


def note_of(entry: KeptKernel) -> KeptNote:
    """What is written down of a kernel; calls in flight and streams end with their server."""
    return KeptNote(
        entry.id,
        entry.scope,
        entry.policy.generation,
        [_lease(one) for one in entry.leases.values()],
        [_lease(one) for one in entry.departed.values()],
        [(*_cell(key), owner) for key, owner in entry.running.items()],
        [(*_cell(key), until) for key, until in entry.untold.items()],
        entry.retained_until,
        entry.last_keeper,
        entry.autoclose,
        (entry.alone.caller, entry.alone.since) if entry.alone else None,
    )


def recalled(note: KeptNote, policy: Callable[[int], Policy], now: float) -> KeptKernel:
    """The kernel for a server that has taken it over at `now`; `policy` gives a generation."""
    entry = KeptKernel(note.kernel, note.scope, policy(note.policy), note.autoclose)
    entry.leases = {one.caller: _held(one, entry, policy, now) for one in note.leases}
    entry.departed = {one.caller: _recalled(one, policy) for one in note.departed}
    entry.running = {(kernel, (process, serial)): owner for kernel, process, serial, owner in note.running}
    entry.untold = {(kernel, (process, serial)): until for kernel, process, serial, until in note.untold}
    entry.retained_until, entry.last_keeper = note.retained_until, note.last_keeper
    entry.alone = Alone(*note.alone) if note.alone else None
    return entry


def _lease(lease: Lease) -> LeaseNote:
    return LeaseNote(
        lease.caller,
        lease.policy.generation,
        lease.standing,
        lease.last_call,
        lease.last_sign,
        lease.since,
        lease.held_until,
        lease.final,
    )


def _cell(key: object) -> tuple[str, int, int]:
    """`sessions.lease_enforcement` gives cells as (kernel, (process, serial))."""
    kernel, (process, serial) = key  # type: ignore[misc]
    return kernel, process, serial


def _recalled(note: LeaseNote, policy: Callable[[int], Policy]) -> Lease:
    return Lease(
        note.caller,
        policy(note.policy),
        note.standing,
        note.last_call,
        note.last_sign,
        note.since,
        held_until=note.held_until,
        final=note.final,
    )


def _held(note: LeaseNote, entry: KeptKernel, policy: Callable[[int], Policy], now: float) -> Lease:
    lease = _recalled(note, policy)
    terms = lease.policy
    window = terms.window(entry.scope)
    if terms.lease_mode is Mode.HEARTBEAT:
        window = terms.heartbeat_timeout_seconds
    lease.last_sign = max(lease.last_sign, now - window + min(window, RETURN_SECONDS))
    if lease.standing in (Standing.CONNECTED, Standing.RECONNECTING):
        lease.stand(Standing.RECONNECTING, now)
    elif lease.standing is Standing.AWAITING_STREAM:
        lease.since = now
    return lease
