"""The leases of an HTTP server at work: the rules of `leases` with a clock, and their decisions carried out.

Owns the one timer that waits for the next deadline, which caller has a claim to which
kernel, and the memory of why kernels were retired. Decides nothing itself. `sessions`
and `mcp.http` tell it what happens; it has kernels retired through `retire`, says in the
log and in the feed what was decided, and answers what `binding`, API and console ask.
Everything on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from loommux_host.facts.phrases import clock as clock_time
from loommux_host.facts.phrases import one_line
from loommux_host.facts.refusals import Refused, invalid_argument, refuse
from loommux_host.facts.results import Refusal
from loommux_host.kernels.kernel import Kernel
from loommux_host.leases.decisions import (
    AlertCleared,
    AlertRaised,
    Decision,
    KernelOrphaned,
    LeaseReleased,
    RetireKernel,
    alert_line,
)
from loommux_host.leases.policy import Policies, Policy, UnknownGeneration
from loommux_host.leases.rules import Leases
from loommux_host.leases.state import EVERY_CALLER
from loommux_host.sessions.callers import Caller
from loommux_host.sessions.envelope import Key
from loommux_host.sessions.lease_facts import REASONS, HeldBy, Retired, lease_key, scope_of
from loommux_host.succession.lease_notes import note_of, recalled
from loommux_host.succession.manifest import LeasingNote, RetiredNote
from loommux_kernel.shared.protocol import now as wall_clock

log = logging.getLogger(__name__)

POLICY_HEADER = "X-Loommux-Lease-Policy-Generation"
#: A deadline met so many seconds late says that this process stood still: what has arrived meanwhile comes first.
STOOD_STILL = 1.0
RETIRED_KEPT = 200
#: Callers whose label and address are remembered, those heard last.
CALLERS_KNOWN = 2000


class LeaseEnforcement:
    """Implements `callers.LeaseHooks`."""

    def __init__(self, policies: Policies, publish: Callable[[str, dict[str, Any]], None]) -> None:
        self.policies = policies
        #: Lets a kernel and its children go at once and returns their end; set by who can.
        self.retire: Callable[[Kernel, str], Awaitable[object]] | None = None
        self._publish = publish
        self._leases = Leases()
        self._kernels: dict[str, Kernel] = {}
        self._retired: dict[str, Retired] = {}
        #: Which kernels a session may hold: those it was bound to or has opened.
        self._claims: set[tuple[str, str]] = set()
        self._known: dict[str, tuple[str, str | None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # -- kernels ----------------------------------------------------------------

    def opened(self, kernel: Kernel, policy: Policy, *, autoclose: bool | None = None) -> None:
        """A main kernel was opened for the call that is being bound."""
        self._opened(kernel)
        self._leases.kernel_opened(kernel.id, scope_of(kernel), policy, self._now(), autoclose=autoclose)

    def opened_by_person(self, kernel: Kernel) -> None:
        """A main kernel was opened, and no session works in it yet: it is kept for its window."""
        self._opened(kernel)
        policy = self.policies.current
        self._leases.kernel_opened(kernel.id, scope_of(kernel), policy, self._now(), adopted=True)
        self._arm()

    def named(self, kernel: Kernel) -> None:
        """A private kernel was renamed, and is a named one from now on."""
        self._carry_out(self._leases.kernel_named(kernel.id, self._now()))

    def _opened(self, kernel: Kernel) -> None:
        self._kernels[kernel.id] = kernel
        self._publish("kernel_opened", {"kernel": kernel.id, "name": kernel.name, "scope": scope_of(kernel)})

    def closed(self, kernel: Kernel, reason: str) -> None:
        """A kernel is no more; main kernels are remembered for those who come back to them."""
        if self._kernels.pop(kernel.id, None) is None:
            return
        self._leases.kernel_closed(kernel.id)
        self._claims = {claim for claim in self._claims if claim[1] != kernel.id}
        self._retired[kernel.id] = Retired(kernel.name, wall_clock(), reason)
        while len(self._retired) > RETIRED_KEPT:
            del self._retired[next(iter(self._retired))]
        self._publish("kernel_retired", {"kernel": kernel.id, "name": kernel.name, "reason": reason})
        self._arm()

    def why_retired(self, kernel_id: str) -> Retired | None:
        return self._retired.get(kernel_id)

    # -- for a successor of this server ---------------------------------------------

    def note(self) -> LeasingNote:
        """What a successor has to know."""
        return LeasingNote(
            self.policies.generations,
            [note_of(entry) for entry in self._leases.kept() if not entry.retiring],
            sorted(self._claims),
            [RetiredNote(id, one.name, one.at, one.reason) for id, one in self._retired.items()],
            [(who, label, address) for who, (label, address) in self._known.items()],
        )

    def recall(self, note: LeasingNote, mains: Iterable[Kernel]) -> None:
        """Know what the server knew whose kernels were taken over. What is kept by nothing waits for its callers."""
        self.policies.recall(note.policies)
        kept = {one.kernel: one for one in note.kernels}
        for kernel in mains:
            self._kernels[kernel.id] = kernel
            one = kept.get(kernel.id)
            if one is None:
                policy = self.policies.current
                self._leases.kernel_opened(kernel.id, scope_of(kernel), policy, self._now(), adopted=True)
            else:
                self._leases.kernel_recalled(recalled(one, self.policies.pinned, self._now()))
        self._claims = {(who, where) for who, where in note.claims if where in self._kernels}
        self._retired = {one.kernel: Retired(one.name, one.at, one.reason) for one in note.retired}
        self._known = {who: (label, address) for who, label, address in note.known}
        self._arm()

    # -- callers ----------------------------------------------------------------

    def claim(self, caller: Caller, kernel: Kernel) -> None:
        """From now on calls of this session in this kernel hold it."""
        self._claims.add((caller.id, kernel.id))

    def policy_for(self, caller: Caller) -> Policy:
        """The policy a lease of this caller begins with. Raises `Refused` when it pins one that is not there."""
        try:
            return self.policies.pinned(caller.policy)
        except UnknownGeneration as error:
            raise Refused(invalid_argument(POLICY_HEADER, caller.policy, str(error))) from None

    def called_from(self, caller: Caller, address: str | None) -> None:
        """Where the caller's last request came from, for people."""
        self._known.pop(caller.id, None)
        self._known[caller.id] = (caller.label, address)
        if len(self._known) > CALLERS_KNOWN:
            del self._known[next(iter(self._known))]

    def signed(self, caller: str) -> None:
        """A ping or another request of a session that is no tool call."""
        self._carry_out(self._leases.signed(caller, self._now()))

    def signed_without_session(self, caller: Caller) -> None:
        """A request of a modern caller: a sign wherever it works, or in the one resource that it names."""
        for kernel in list(self._kernels.values()):
            if caller.resource in (None, kernel.name):
                self._carry_out(self._leases.signed(lease_key(caller, kernel), self._now()))

    def stream_opened(self, key: str) -> None:
        self._carry_out(self._leases.stream_opened(key, self._now()))

    def stream_closed(self, key: str) -> None:
        self._leases.stream_closed(key, self._now())
        self._arm()

    def let_go(self, caller: Caller, kernel: Kernel) -> None:
        """The session moves on to another kernel."""
        self._claims.discard((caller.id, kernel.id))
        self._carry_out(self._leases.let_go(caller.id, kernel.id, self._now()))

    def client_left(self, caller: str) -> None:
        """The session was deleted, or is given up; a caller without one has said that it is gone."""
        self._claims = {claim for claim in self._claims if claim[0] != caller}
        for key in {caller} | {key for key in self._leases.callers() if key.startswith(f"{caller}@")}:
            self._carry_out(self._leases.client_left(key, self._now()))
        self._known.pop(caller, None)

    # -- one session alone -----------------------------------------------------------

    def hold_alone(self, caller: Caller, kernel: Kernel) -> bool:
        """From now on no other session changes anything there, as long as this one holds it. Whether that is new."""
        return self._leases.hold_alone(lease_key(caller, kernel), kernel.id, self._now())

    def held_alone(self, caller: Caller, kernel: Kernel) -> Refusal | None:
        main = self._kernels.get(kernel.home or kernel.id)
        alone = self._leases.alone(main.id) if main else None
        if main is None or alone is None or alone.caller == lease_key(caller, main):
            return None
        return refuse(
            "claimed",
            kernel=one_line(main.name),
            name=shlex.quote(one_line(main.name)),
            holder=self._label(alone.caller),
            since=clock_time(self._wall(alone.since)),
        )

    def alone_in(self, kernel: Kernel) -> tuple[str, float] | None:
        """The label of the session that holds the kernel alone, and since when (seconds, wall clock)."""
        alone = self._leases.alone(kernel.id)
        return (self._label(alone.caller), self._wall(alone.since)) if alone else None

    def closes_with_leases(self, kernel: Kernel) -> bool:
        """Whether it ends when no session holds it any more, its cell over and its result told."""
        return self._leases.closes_with_leases(kernel.id)

    def release_alone(self, kernel: Kernel) -> str | None:
        """A person lets others work there too; returns the label of who held it alone."""
        alone = self._leases.release_alone(kernel.id)
        return self._label(alone.caller) if alone else None

    # -- what `sessions` tells ------------------------------------------------------

    def call_began(self, caller: Caller, kernel: Kernel) -> tuple[str, str] | None:
        """The key of the lease and its main kernel."""
        main = kernel.home or kernel.id
        if main not in self._kernels:
            return None
        if not caller.modern and (caller.id, main) not in self._claims:
            self.signed(caller.id)
            return None
        policy, expected = self.policy_for(caller), not caller.modern or caller.resource is not None
        key = lease_key(caller, self._kernels[main])
        self._carry_out(self._leases.call_began(key, main, policy, self._now(), stream_expected=expected))
        return key, main

    def call_ended(self, call: object, answered: bool) -> None:
        match call:
            case (str(key), str(main)) if main in self._kernels:
                self._carry_out(self._leases.call_ended(key, main, self._now(), answered=answered))
            case _:
                pass

    def cell_started(self, kernel: Kernel, cell: Key, caller: str | None) -> None:
        if kernel.home is not None:
            self._leases.cell_started(kernel.home, (kernel.id, cell), EVERY_CALLER)
        else:
            self._leases.cell_started(kernel.id, (kernel.id, cell), self._key_in(kernel, caller))
        self._arm()

    def cell_ended(self, kernel: Kernel, cell: Key) -> None:
        main, key = kernel.home or kernel.id, (kernel.id, cell)
        untold = self._leases.is_somebodys(main, key)
        self._carry_out(self._leases.cell_ended(main, key, self._now(), untold=untold))

    def told(self, kernel: Kernel, cell: Key) -> None:
        self._carry_out(self._leases.told(kernel.home or kernel.id, (kernel.id, cell), self._now()))

    # -- what others ask -------------------------------------------------------------

    def in_call(self, caller: Caller, kernel: Kernel) -> bool:
        """Whether a call of this caller in this kernel is on its way."""
        return self._leases.in_call(lease_key(caller, kernel), kernel.id)

    def alert(self, caller: Caller, kernel: Kernel) -> str | None:
        """The line that warns this caller that its kernel is no longer held by its stream."""
        main = self._kernels.get(kernel.home or kernel.id)
        key = lease_key(caller, main)
        standing = self._leases.alert(key, main.id) if main else None
        policy = self._leases.policy_of(key, main.id) if main else None
        return alert_line(standing, policy, scope_of(main)) if main and standing and policy else None

    def held_by(self, kernel: Kernel) -> list[HeldBy]:
        views = self._leases.views(kernel.id, self._now())
        nobody = ("", None)
        return [HeldBy(view, *self._known.get(view.caller.partition("@")[0], nobody)) for view in views]

    def holders(self, kernel: Kernel) -> set[str]:
        """The callers that hold the kernel."""
        return {one.lease.caller.partition("@")[0] for one in self.held_by(kernel) if one.lease.held}

    def retention_remaining(self, kernel: Kernel) -> float | None:
        return self._leases.retention_remaining(kernel.id, self._now())

    def is_orphaned(self, kernel: Kernel) -> bool:
        return self._leases.is_orphaned(kernel.id)

    def holds_anything(self, caller: str) -> bool:
        return any(claim[0] == caller for claim in self._claims)

    # -- time and decisions -------------------------------------------------------------

    def close(self) -> Iterable[asyncio.Task[None]]:
        """Decide nothing more; returns what is still being retired, for the owner to await."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        return set(self._tasks)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _wall(self, at: float) -> float:
        """A time of the leases' clock as wall clock."""
        return wall_clock() - (self._now() - at)

    def _key_in(self, kernel: Kernel, caller: str | None) -> str | None:
        """The lease key of a cell's sender, who is in a call in this kernel."""
        if caller is None or (caller, kernel.id) in self._claims:
            return caller
        keys = (view.caller for view in self._leases.views(kernel.id, self._now()))
        return next((key for key in keys if key.startswith(f"{caller}@")), caller)

    def _arm(self) -> None:
        due = None if self._closed else self._leases.deadline()
        if self._timer is not None and not self._timer.cancelled() and self._timer.when() == due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due is None else asyncio.get_running_loop().call_at(due, self._ring, due)

    def _ring(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - due > STOOD_STILL:
            self._timer = loop.call_later(STOOD_STILL, self._advance)
            return
        self._advance()

    def _advance(self) -> None:
        self._timer = None
        self._carry_out(self._leases.advance(self._now()))

    def _carry_out(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            kernel = self._kernels.get(decision.kernel)
            if kernel is not None and not self._closed:
                self._do(decision, kernel)
        self._arm()

    def _do(self, decision: Decision, kernel: Kernel) -> None:
        facts: dict[str, Any] = {"kernel": kernel.id, "name": kernel.name}
        name = one_line(kernel.name)
        match decision:
            case LeaseReleased(caller=caller, why=why):
                log.info("lease of %s on %s released: %s", self._label(caller), name, why)
                self._publish("lease_released", {**facts, "holder": self._label(caller), "why": why})
            case AlertRaised(caller=caller, standing=standing):
                log.warning("lease of %s on %s is %s: only calls keep it now", self._label(caller), name, standing)
                self._publish("lease_alert", {**facts, "holder": self._label(caller), "standing": standing})
            case AlertCleared(caller=caller):
                log.warning("lease of %s on %s is connected again", self._label(caller), name)
                self._publish("lease_alert_cleared", {**facts, "holder": self._label(caller)})
            case KernelOrphaned(grace=grace):
                log.warning("%s runs a cell and nobody holds it: retired in %g s", name, grace)
                self._publish("kernel_orphaned", {**facts, "grace_seconds": grace})
            case RetireKernel(why=why):
                log.info("%s is retired: %s", name, REASONS[why])
                if self.retire is not None:
                    self._own(self._end(kernel, self.retire(kernel, REASONS[why])))
            case _:
                raise AssertionError(decision)

    async def _end(self, kernel: Kernel, ending: Awaitable[object]) -> None:
        try:
            await ending
        except Exception:
            log.exception("%s did not end in order", one_line(kernel.name))

    def _label(self, key: str) -> str:
        label, _ = self._known.get(key.partition("@")[0], ("", None))
        return one_line(label) or "a caller"

    def _own(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
