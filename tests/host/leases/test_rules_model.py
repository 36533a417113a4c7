"""The lease rules in random orders: what must hold whatever happens, checked against plain facts of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loommux_host.leases.decisions import (
    ALERTING,
    AlertCleared,
    AlertRaised,
    Decision,
    KernelOrphaned,
    LeaseReleased,
    RetireKernel,
    Standing,
    Why,
)
from loommux_host.leases.policy import Mode, Policy, Scope
from loommux_host.leases.rules import Leases
from loommux_host.leases.state import EVERY_CALLER

CALLERS = st.sampled_from(["a", "b"])
KERNELS = st.sampled_from(["k1", "k2"])
PRIVATE, NAMED, ORPHAN = 30.0, 100.0, 7.0
POLICIES = st.builds(
    Policy,
    generation=st.just(1),
    lease_mode=st.sampled_from(list(Mode)),
    private_activity_timeout_seconds=st.just(PRIVATE),
    named_activity_timeout_seconds=st.just(NAMED),
    heartbeat_interval_seconds=st.just(5.0),
    heartbeat_timeout_seconds=st.just(12.0),
    connection_grace_seconds=st.just(10.0),
    orphan_grace_seconds=st.just(ORPHAN),
)


@dataclass
class Facts:
    """What the machine itself has done to one kernel."""

    autoclose: bool
    #: Until when a new name, or a person's cell, keeps it.
    used_until: float = -1.0
    running: dict[int, str | None] = field(default_factory=dict)
    untold: dict[int, float] = field(default_factory=dict)
    policies: dict[str, Policy] = field(default_factory=dict)
    alerted: set[str] = field(default_factory=set)
    last_call: dict[str, float] = field(default_factory=dict)
    let_go_at: float = -1.0
    orphaned_at: float | None = None
    #: Callers that went away on their own → their cells that ran then.
    left: dict[str, set[int]] = field(default_factory=dict)

    def runs_cell_of(self, caller: str) -> bool:
        return any(owner in (caller, EVERY_CALLER) for owner in self.running.values())


class LeaseMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.leases = Leases()
        self.kernels: dict[str, Facts] = {}
        self.open_calls: list[tuple[str, str]] = []
        self.streams: dict[str, int] = {}
        self.cells = 0

    # -- what happens ---------------------------------------------------------------

    @initialize(policy=POLICIES)
    def first_kernel(self, policy: Policy) -> None:
        self.call("a", "k1", policy, Scope.PRIVATE, None, True, True)

    @rule(
        caller=CALLERS,
        kernel=KERNELS,
        policy=POLICIES,
        scope=st.sampled_from(list(Scope)),
        autoclose=st.sampled_from([None, True, False]),
        stream_expected=st.booleans(),
        finish=st.sampled_from([True, True, True, False]),
    )
    def call(
        self,
        caller: str,
        kernel: str,
        policy: Policy,
        scope: Scope,
        autoclose: bool | None,
        stream_expected: bool,
        finish: bool,
    ) -> None:
        if kernel not in self.kernels:
            self.kernels[kernel] = Facts(scope is Scope.PRIVATE if autoclose is None else autoclose)
            self.leases.kernel_opened(kernel, scope, policy, self.now, autoclose=autoclose)
        facts = self.kernels[kernel]
        new = not self.leases.holds(caller, kernel)
        decided = self.leases.call_began(caller, kernel, policy, self.now, stream_expected=stream_expected)
        if new:
            facts.policies[caller] = policy
        facts.last_call[caller] = self.now
        facts.orphaned_at = None
        facts.left.pop(caller, None)
        self.open_calls.append((caller, kernel))
        self.obey(decided)
        assert self.leases.holds(caller, kernel)
        if finish:
            self.open_calls.remove((caller, kernel))
            self.obey(self.leases.call_ended(caller, kernel, self.now))

    @precondition(lambda self: self.open_calls)
    @rule(data=st.data(), answered=st.booleans())
    def end_call(self, data: st.DataObject, answered: bool) -> None:
        caller, kernel = self.open_calls.pop(data.draw(st.integers(0, len(self.open_calls) - 1)))
        if kernel in self.kernels and self.leases.holds(caller, kernel):
            self.kernels[kernel].last_call[caller] = self.now
        self.obey(self.leases.call_ended(caller, kernel, self.now, answered=answered))

    @rule(caller=CALLERS)
    def ping(self, caller: str) -> None:
        before = self.held()
        self.obey(self.leases.signed(caller, self.now))
        assert self.held() == before, "a ping creates and ends nothing"

    @rule(caller=CALLERS)
    def open_stream(self, caller: str) -> None:
        self.streams[caller] = self.streams.get(caller, 0) + 1
        self.obey(self.leases.stream_opened(caller, self.now))

    @precondition(lambda self: any(self.streams.values()))
    @rule(data=st.data())
    def close_stream(self, data: st.DataObject) -> None:
        caller = data.draw(st.sampled_from(sorted(c for c, n in self.streams.items() if n)))
        self.streams[caller] -= 1
        self.leases.stream_closed(caller, self.now)

    @rule(kernel=KERNELS, owner=st.sampled_from(["a", "b", EVERY_CALLER, None]))
    def start_cell(self, kernel: str, owner: str | None) -> None:
        if kernel in self.kernels:
            self.cells += 1
            self.kernels[kernel].running[self.cells] = owner
            self.leases.cell_started(kernel, self.cells, owner)

    @precondition(lambda self: any(f.running for f in self.kernels.values()))
    @rule(data=st.data(), untold=st.booleans())
    def end_cell(self, data: st.DataObject, untold: bool) -> None:
        kernel = data.draw(st.sampled_from(sorted(k for k, f in self.kernels.items() if f.running)))
        facts = self.kernels[kernel]
        cell = data.draw(st.sampled_from(sorted(facts.running)))
        if facts.running.pop(cell) is None and not facts.autoclose and not self.held(kernel):
            facts.used_until = self.now + NAMED
            facts.orphaned_at = None
        if untold:
            facts.untold[cell] = self.now + NAMED
            facts.orphaned_at = None
        self.obey(self.leases.cell_ended(kernel, cell, self.now, untold=untold))

    @precondition(lambda self: any(f.untold for f in self.kernels.values()))
    @rule(data=st.data())
    def tell(self, data: st.DataObject) -> None:
        kernel = data.draw(st.sampled_from(sorted(k for k, f in self.kernels.items() if f.untold)))
        cell = data.draw(st.sampled_from(sorted(self.kernels[kernel].untold)))
        del self.kernels[kernel].untold[cell]
        self.obey(self.leases.told(kernel, cell, self.now))

    @rule(caller=CALLERS, kernel=KERNELS)
    def let_go(self, caller: str, kernel: str) -> None:
        if kernel not in self.kernels:
            return
        self.kernels[kernel].let_go_at = self.now
        self.kernels[kernel].left.pop(caller, None)
        decided = self.leases.let_go(caller, kernel, self.now)
        self.obey(decided)
        assert not self.leases.holds(caller, kernel)
        if kernel in self.kernels and not self.held(kernel) and not self.kernels[kernel].running:
            assert any(until > self.now for until in self.kernels[kernel].untold.values())

    @rule(kernel=KERNELS)
    def rename(self, kernel: str) -> None:
        if kernel in self.kernels:
            private = self.leases.scope(kernel) is Scope.PRIVATE
            self.obey(self.leases.kernel_named(kernel, self.now))
            assert kernel in self.kernels, "a name ends nothing"
            if private:
                self.kernels[kernel].autoclose = False
                if not self.held(kernel):
                    self.kernels[kernel].used_until = self.now + NAMED
                    self.kernels[kernel].orphaned_at = None

    @rule(caller=CALLERS, kernel=KERNELS)
    def hold_alone(self, caller: str, kernel: str) -> None:
        if kernel in self.kernels and self.leases.holds(caller, kernel):
            self.leases.hold_alone(caller, kernel, self.now)

    @rule(caller=CALLERS)
    def leave(self, caller: str) -> None:
        self.obey(self.leases.client_left(caller, self.now))
        assert not any(self.leases.holds(caller, kernel) for kernel in self.kernels)

    @rule(seconds=st.sampled_from([0.5, 3.0, 7.0, 10.0, 13.0, 31.0, 101.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = self.leases.deadline()
        decided = self.leases.advance(self.now)
        if due is None or due > self.now:
            assert not decided, "nothing happens before its deadline"
        self.obey(decided)

    @rule()
    def wait_for_the_next_deadline(self) -> None:
        due = self.leases.deadline()
        if due is not None:
            self.now = max(self.now, due)
            self.obey(self.leases.advance(self.now))

    # -- what follows -----------------------------------------------------------------

    def obey(self, decided: list[Decision]) -> None:
        for decision in decided:
            facts = self.kernels[decision.kernel]
            match decision:
                case LeaseReleased(caller=caller, why=why):
                    self.check_release(facts, caller, decision.kernel, why)
                    facts.alerted.discard(caller)
                case AlertRaised(caller=caller, standing=standing):
                    assert standing in ALERTING
                    assert not self.streams.get(caller)
                    assert caller not in facts.alerted
                    facts.alerted.add(caller)
                case AlertCleared(caller=caller):
                    facts.alerted.remove(caller)
                case KernelOrphaned():
                    assert facts.running
                    assert not self.held(decision.kernel)
                    assert facts.orphaned_at is None
                    for caller, cells in facts.left.items():
                        over = self.now >= facts.last_call[caller] + NAMED
                        assert over or not cells & set(facts.running), "the cell of a client that left is held"
                    facts.orphaned_at = self.now
                case RetireKernel():
                    self.check_retirement(facts, decision.kernel)
                    self.leases.kernel_closed(decision.kernel)
                    del self.kernels[decision.kernel]
                    # Real ids are never used again; here the name comes back, so its old calls must not.
                    self.open_calls = [c for c in self.open_calls if c[1] != decision.kernel]

    def check_release(self, facts: Facts, caller: str, kernel: str, why: Why) -> None:
        if why is not Why.LET_GO:
            facts.left[caller] = {cell for cell, owner in facts.running.items() if owner in (caller, EVERY_CALLER)}
        if why not in (Why.LAPSED, Why.DISCONNECTED):
            return
        policy = facts.policies[caller]
        assert (caller, kernel) not in self.open_calls or (why is Why.LAPSED and policy.lease_mode is Mode.CONNECTION)
        if policy.lease_mode is Mode.CONNECTION:
            assert not self.streams.get(caller)
        if facts.runs_cell_of(caller) and why is Why.LAPSED:
            assert policy.lease_mode is Mode.HEARTBEAT
            assert self.now >= facts.last_call[caller] + NAMED

    def check_retirement(self, facts: Facts, kernel: str) -> None:
        assert not self.held(kernel)
        assert all(until <= self.now for until in facts.untold.values()), "an untold end keeps its kernel"
        if facts.running:
            assert facts.orphaned_at is not None
            assert self.now >= facts.orphaned_at + ORPHAN
        if not facts.autoclose:
            assert facts.used_until <= self.now or facts.let_go_at >= 0
            calls = [at for at in facts.last_call.values() if at > facts.let_go_at]
            released_by_attach = facts.let_go_at >= 0
            assert released_by_attach or all(at + NAMED <= self.now for at in calls)

    def held(self, kernel: str | None = None) -> set[tuple[str, str]]:
        kernels = [kernel] if kernel else list(self.kernels)
        return {(k, v.caller) for k in kernels for v in self.leases.views(k, self.now) if v.held}

    # -- what always holds ----------------------------------------------------------------

    @invariant()
    def the_deadline_is_ahead_after_advance(self) -> None:
        self.obey(self.leases.advance(self.now))
        due = self.leases.deadline()
        assert due is None or due > self.now

    @invariant()
    def every_kernel_is_kept_or_orphaned(self) -> None:
        for kernel, facts in self.kernels.items():
            if not self.held(kernel) and self.leases.retention_remaining(kernel, self.now) is None:
                assert facts.running
                assert self.leases.deadline() is not None

    @invariant()
    def who_holds_a_kernel_alone_holds_it(self) -> None:
        for kernel in self.kernels:
            alone = self.leases.alone(kernel)
            assert alone is None or self.leases.holds(alone.caller, kernel)

    @invariant()
    def alerts_stand_exactly_while_their_standing_does(self) -> None:
        for kernel, facts in self.kernels.items():
            for view in self.leases.views(kernel, self.now):
                alert = self.leases.alert(view.caller, kernel)
                assert (alert is not None) == (view.held and view.standing in ALERTING)
                assert (view.caller in facts.alerted) == (alert is not None)

    @invariant()
    def a_lease_keeps_its_policy_and_only_connection_leases_stand(self) -> None:
        for kernel, facts in self.kernels.items():
            for view in self.leases.views(kernel, self.now):
                assert view.mode is facts.policies[view.caller].lease_mode
                if view.mode is not Mode.CONNECTION:
                    assert view.standing is None
                elif view.held and view.standing is Standing.CONNECTED:
                    assert self.streams.get(view.caller)
                    assert view.remaining_seconds is None


LeaseMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestLeases = LeaseMachine.TestCase
