"""Who keeps which main kernel, and until when: the rules of contract 9.4.

Owns leases, standings, retention and the alerts of connection leases; what becomes of a kernel
that no lease holds is in `orphans`.
Pure: every event comes with the time it happened (`now`, seconds of one steady
clock that never goes back), is answered with the decisions that follow, and
`deadline` says when to call `advance` next, so that nobody polls. Knows no
kernel process and no HTTP. `sessions` tells it what happens and carries out
what it decides.

A *caller* is an opaque id: an MCP session, or a modern caller (contract 9.3).
Child kernels have no entry of their own; their cells count for their home.
"""

from __future__ import annotations

from loommux_host.leases.decisions import (
    ALERTING,
    AlertCleared,
    AlertRaised,
    Decision,
    LeaseReleased,
    LeaseView,
    Standing,
    Why,
)
from loommux_host.leases.orphans import due_without_lease, settle
from loommux_host.leases.policy import Mode, Policy, Scope
from loommux_host.leases.state import EVERY_CALLER, NEVER, Alone, KeptKernel, Lease


class Leases:
    """The leases of one server."""

    def __init__(self) -> None:
        self._kernels: dict[str, KeptKernel] = {}
        self._streams: dict[str, int] = {}

    # -- kernels ----------------------------------------------------------------

    def kernel_opened(
        self,
        kernel: str,
        scope: Scope,
        policy: Policy,
        now: float,
        *,
        autoclose: bool | None = None,
        adopted: bool = False,
    ) -> None:
        """A main kernel exists; the call that opened it follows at the same time.

        Private kernels close with their callers, named ones are kept, unless `autoclose` says otherwise.
        An adopted one has no callers, or has lost them: it waits for them as long as its scope's window.
        """
        closes = scope is Scope.PRIVATE if autoclose is None else autoclose
        entry = self._kernels[kernel] = KeptKernel(kernel, scope, policy, closes)
        if adopted:
            entry.retained_until = now + policy.window(scope)
            entry.note_keeper(now)

    def kernel_recalled(self, entry: KeptKernel) -> None:
        """A main kernel was taken over, with what kept it."""
        self._kernels[entry.id] = entry

    def kept(self) -> list[KeptKernel]:
        """Every main kernel with what keeps it."""
        return list(self._kernels.values())

    def kernel_named(self, kernel: str, now: float) -> list[Decision]:
        """A private kernel was given a name: from now on it has a named one's window, and is kept as one."""
        entry = self._kernels.get(kernel)
        if entry is None or entry.scope is Scope.NAMED:
            return []
        entry.scope, entry.autoclose = Scope.NAMED, False
        if not entry.leases:
            entry.retained_until = max(entry.retained_until, now + entry.policy.named_activity_timeout_seconds)
        return settle(entry, now)

    def kernel_closed(self, kernel: str) -> None:
        """It has ended, whoever ended it."""
        self._kernels.pop(kernel, None)

    # -- callers ----------------------------------------------------------------

    def call_began(
        self, caller: str, kernel: str, policy: Policy, now: float, *, stream_expected: bool = True
    ) -> list[Decision]:
        """A tool call of `caller` works in `kernel`: begins its lease under `policy`, or renews the one it has.

        `stream_expected` is False for a modern caller that named no resource: under
        connection it has the activity window, without an alert.
        """
        entry = self._kernels[kernel]
        lease = entry.leases.get(caller) or self._begin(entry, caller, policy, now, stream_expected)
        entry.calls[caller] = entry.calls.get(caller, 0) + 1
        lease.last_call = now
        return self._sign(entry, lease, now)

    def call_ended(self, caller: str, kernel: str, now: float, *, answered: bool = True) -> list[Decision]:
        """A call that `call_began` announced is over. `answered` is False when its connection was gone."""
        entry = self._kernels.get(kernel)
        if entry is None or caller not in entry.calls:
            return []
        entry.calls[caller] -= 1
        if not entry.calls[caller]:
            del entry.calls[caller]
        if (lease := entry.leases.get(caller)) is None:
            return []
        lease.last_call = now
        return self._sign(entry, lease, now, heard=answered)

    def signed(self, caller: str, now: float) -> list[Decision]:
        """A ping or any other request: renews what the caller has, in every mode, and creates nothing."""
        return [d for entry, lease in self._held_by(caller) for d in self._sign(entry, lease, now)]

    def stream_opened(self, caller: str, now: float) -> list[Decision]:
        """The caller's standing stream began; it may come before its first call, or after it was given up."""
        self._streams[caller] = self._streams.get(caller, 0) + 1
        decisions: list[Decision] = []
        for entry in self._kernels.values():
            lease = entry.departed.get(caller)
            if lease is not None and not lease.final and not entry.retiring:
                entry.leases[caller] = entry.departed.pop(caller)
        for entry, lease in self._held_by(caller):
            if lease.standing in ALERTING:
                decisions.append(AlertCleared(entry.id, caller))
            if lease.policy.lease_mode is Mode.CONNECTION:
                lease.stand(Standing.CONNECTED, now)
            decisions += self._sign(entry, lease, now)
        return decisions

    def stream_closed(self, caller: str, now: float) -> None:
        """One of the caller's standing streams ended."""
        left = self._streams.get(caller, 0) - 1
        if left > 0:
            self._streams[caller] = left
            return
        self._streams.pop(caller, None)
        for _, lease in self._held_by(caller):
            if lease.standing is Standing.CONNECTED:
                lease.stand(Standing.RECONNECTING, now)
                lease.last_sign = now

    def let_go(self, caller: str, kernel: str, now: float) -> list[Decision]:
        """``--attach`` moved the caller elsewhere: its lease ends, and with it the kernel's retention."""
        entry = self._kernels.get(kernel)
        if entry is None:
            return []
        entry.departed.pop(caller, None)
        entry.end_alone(caller)
        entry.retained_until = NEVER
        entry.last_keeper = Why.LET_GO
        released: list[Decision] = []
        if (lease := entry.leases.pop(caller, None)) is not None:
            entry.policy = lease.policy
            released.append(LeaseReleased(entry.id, caller, Why.LET_GO))
        return released + settle(entry, now)

    def hold_alone(self, caller: str, kernel: str, now: float) -> bool:
        """The caller works there alone, from now until its lease on it ends, or somebody releases it.

        False when it does so already.
        """
        entry = self._kernels[kernel]
        if entry.alone is not None and entry.alone.caller == caller:
            return False
        entry.alone = Alone(caller, now)
        return True

    def release_alone(self, kernel: str) -> Alone | None:
        """Nobody holds it alone any more; returns who did."""
        entry = self._kernels.get(kernel)
        if entry is None:
            return None
        alone, entry.alone = entry.alone, None
        return alone

    def alone(self, kernel: str) -> Alone | None:
        """Who holds the kernel alone."""
        entry = self._kernels.get(kernel)
        return entry.alone if entry else None

    def callers(self) -> set[str]:
        """All who hold a lease, or have left one behind."""
        return {caller for entry in self._kernels.values() for caller in (*entry.leases, *entry.departed)}

    def client_left(self, caller: str, now: float) -> list[Decision]:
        """The caller is gone for good: its session was deleted or has expired."""
        decisions: list[Decision] = []
        for entry in self._kernels.values():
            if (lease := entry.leases.get(caller)) is not None:
                decisions += self._depart(entry, lease, Why.CLIENT_LEFT, now)
            if (lease := entry.departed.get(caller)) is not None:
                lease.final = True
                entry.note_keeper(now)
        return decisions

    # -- cells ------------------------------------------------------------------

    def cell_started(self, kernel: str, cell: object, caller: str | None) -> None:
        """`cell` is any key, unique in this kernel and its children; `caller` as in `state.KeptKernel`."""
        if entry := self._kernels.get(kernel):
            entry.running[cell] = caller

    def cell_ended(self, kernel: str, cell: object, now: float, *, untold: bool = True) -> list[Decision]:
        """`untold` is False when nobody needs to be told of this end (a person's cell, a startup file)."""
        entry = self._kernels.get(kernel)
        if entry is None:
            return []
        owner = entry.running.pop(cell, None)
        if owner is None and not entry.leases and not entry.autoclose:
            # A person works there, whom no lease stands for.
            entry.retained_until = max(entry.retained_until, now + entry.policy.named_activity_timeout_seconds)
        for lease in entry.leases.values():
            if owner in (lease.caller, EVERY_CALLER):
                lease.last_sign = max(lease.last_sign, now)
        if untold:
            entry.untold[cell] = now + entry.policy.named_activity_timeout_seconds
        return settle(entry, now)

    def told(self, kernel: str, cell: object, now: float) -> list[Decision]:
        """A session has been told of the end of `cell`."""
        entry = self._kernels.get(kernel)
        if entry is None or entry.untold.pop(cell, None) is None:
            return []
        return settle(entry, now)

    # -- time -------------------------------------------------------------------

    def advance(self, now: float) -> list[Decision]:
        """Everything that falls due by `now`. Afterwards `deadline` is later than `now`, or None."""
        decisions: list[Decision] = []
        for entry in self._kernels.values():
            for lease in list(entry.leases.values()):
                while lease.caller in entry.leases and (due := self._due(entry, lease)) is not None and due <= now:
                    decisions += self._fall_due(entry, lease, now)
            decisions += settle(entry, now)
        return decisions

    def deadline(self) -> float | None:
        """When `advance` has something to do next; None when only an event can change anything."""
        return min((due for entry in self._kernels.values() if (due := self._next(entry)) is not None), default=None)

    # -- views ------------------------------------------------------------------

    def views(self, kernel: str, now: float) -> list[LeaseView]:
        entry = self._kernels.get(kernel)
        if entry is None:
            return []
        held = [_view(lease, True, self._due(entry, lease), now) for lease in entry.leases.values()]
        return held + [_view(lease, False, None, now) for lease in entry.departed.values()]

    def alert(self, caller: str, kernel: str) -> Standing | None:
        """The standing to warn this caller of, for as long as it lasts."""
        entry = self._kernels.get(kernel)
        lease = entry.leases.get(caller) if entry else None
        return lease.standing if lease and lease.standing in ALERTING else None

    def retention_remaining(self, kernel: str, now: float) -> float | None:
        """Seconds for which a kernel without leases keeps itself; None when it has one, or nothing keeps it."""
        entry = self._kernels.get(kernel)
        if entry is None or entry.leases or entry.retiring or entry.kept_until() <= now:
            return None
        return entry.kept_until() - now

    def policy_of(self, caller: str, kernel: str) -> Policy | None:
        """The policy that the caller's lease began with."""
        entry = self._kernels.get(kernel)
        lease = entry.leases.get(caller) if entry else None
        return lease.policy if lease else None

    def in_call(self, caller: str, kernel: str) -> bool:
        entry = self._kernels.get(kernel)
        return entry is not None and caller in entry.calls

    def is_somebodys(self, kernel: str, cell: object) -> bool:
        """Whether a running cell belongs to callers, not to a person or to a startup file."""
        entry = self._kernels.get(kernel)
        return entry is not None and entry.running.get(cell) is not None

    def scope(self, kernel: str) -> Scope | None:
        entry = self._kernels.get(kernel)
        return entry.scope if entry else None

    def closes_with_leases(self, kernel: str) -> bool:
        """Whether nothing keeps it when its last lease has ended, but a cell and its result."""
        entry = self._kernels.get(kernel)
        return entry is not None and entry.autoclose

    def is_orphaned(self, kernel: str) -> bool:
        entry = self._kernels.get(kernel)
        return entry is not None and entry.orphaned_at is not None

    def holds(self, caller: str, kernel: str) -> bool:
        entry = self._kernels.get(kernel)
        return entry is not None and caller in entry.leases

    # -- rules ------------------------------------------------------------------

    def _held_by(self, caller: str) -> list[tuple[KeptKernel, Lease]]:
        return [(entry, entry.leases[caller]) for entry in self._kernels.values() if caller in entry.leases]

    def _begin(self, entry: KeptKernel, caller: str, policy: Policy, now: float, stream_expected: bool) -> Lease:
        standing = None
        if policy.lease_mode is Mode.CONNECTION and self._streams.get(caller):
            standing = Standing.CONNECTED
        elif policy.lease_mode is Mode.CONNECTION and stream_expected:
            standing = Standing.AWAITING_STREAM
        entry.departed.pop(caller, None)
        entry.policy = policy
        lease = entry.leases[caller] = Lease(caller, policy, standing, last_call=now, last_sign=now, since=now)
        return lease

    def _sign(self, entry: KeptKernel, lease: Lease, now: float, *, heard: bool = True) -> list[Decision]:
        lease.last_sign = max(lease.last_sign, now)
        lease.heard = lease.heard or heard
        return settle(entry, now)

    def _due(self, entry: KeptKernel, lease: Lease) -> float | None:
        """When time alone changes this lease; None while nothing but an event can."""
        policy = lease.policy
        if lease.standing is Standing.CONNECTED:
            return None
        if lease.standing in (Standing.AWAITING_STREAM, Standing.RECONNECTING):
            return lease.since + policy.connection_grace_seconds
        if lease.caller in entry.calls:
            return None
        if policy.lease_mode is Mode.HEARTBEAT:
            # A missed heartbeat says that the client is gone: its cell is held for the named window, then no longer.
            window = policy.heartbeat_timeout_seconds
            if entry.runs_cell_of(lease.caller):
                window = max(window, policy.named_activity_timeout_seconds)
            return lease.last_sign + window
        # Silence between calls says nothing about a client: a model may think for hours.
        return None if entry.runs_cell_of(lease.caller) else lease.last_sign + policy.window(entry.scope)

    def _fall_due(self, entry: KeptKernel, lease: Lease, now: float) -> list[Decision]:
        if lease.standing is Standing.RECONNECTING and not (lease.heard or lease.caller in entry.calls):
            return self._depart(entry, lease, Why.DISCONNECTED, now)
        if lease.standing in (Standing.AWAITING_STREAM, Standing.RECONNECTING):
            never_seen = lease.standing is Standing.AWAITING_STREAM
            lease.stand(Standing.UNBOUND if never_seen else Standing.STREAM_LOST, now)
            assert lease.standing is not None
            return [AlertRaised(entry.id, lease.caller, lease.standing)]
        return self._depart(entry, lease, Why.LAPSED, now)

    def _depart(self, entry: KeptKernel, lease: Lease, why: Why, now: float) -> list[Decision]:
        """Releases the lease of a caller that is gone, and starts what keeps the kernel without it."""
        del entry.leases[lease.caller]
        entry.end_alone(lease.caller)
        named_window = lease.policy.named_activity_timeout_seconds
        entry.policy, entry.last_keeper = lease.policy, why
        if not entry.autoclose:
            entry.retained_until = max(entry.retained_until, lease.last_call + named_window)
        lease.held_until = lease.last_sign + named_window
        lease.final = why is not Why.DISCONNECTED
        if lease.standing is not None:
            lease.stand(Standing.DISCONNECTED, now)
        if not lease.final or entry.runs_cell_of(lease.caller):
            entry.departed[lease.caller] = lease
        return [LeaseReleased(entry.id, lease.caller, why), *settle(entry, now)]

    def _next(self, entry: KeptKernel) -> float | None:
        if entry.retiring:
            return None
        if entry.leases:
            dues = (self._due(entry, lease) for lease in entry.leases.values())
            return min((due for due in dues if due is not None), default=None)
        return due_without_lease(entry)


def _view(lease: Lease, held: bool, due: float | None, now: float) -> LeaseView:
    policy = lease.policy
    remaining = None if due is None else max(0.0, due - now)
    return LeaseView(lease.caller, policy.lease_mode, policy.generation, lease.standing, held, remaining)
