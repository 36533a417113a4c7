"""The lease rules by example; test_leases_model.py tries them in random orders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loommux_host.leases.decisions import (
    AlertCleared,
    AlertRaised,
    Decision,
    KernelOrphaned,
    LeaseReleased,
    RetireKernel,
    Standing,
    Why,
    alert_line,
)
from loommux_host.leases.policy import InvalidPolicy, Mode, Policies, Policy, Scope, UnknownGeneration
from loommux_host.leases.rules import Leases
from loommux_host.leases.state import EVERY_CALLER
from loommux_host.settings import Settings

DEFAULT = Policy.of(Settings())
ACTIVITY = replace(DEFAULT, private_activity_timeout_seconds=80, named_activity_timeout_seconds=1440)
HEARTBEAT = replace(ACTIVITY, lease_mode=Mode.HEARTBEAT)
CONNECTION = replace(ACTIVITY, lease_mode=Mode.CONNECTION)


def opened(policy: Policy, scope: Scope = Scope.PRIVATE, caller: str = "a") -> Leases:
    """One kernel, opened by one call of `caller` that was answered, all at 0."""
    leases = Leases()
    leases.kernel_opened("k", scope, policy, 0)
    leases.call_began(caller, "k", policy, 0)
    leases.call_ended(caller, "k", 0)
    return leases


def call(leases: Leases, caller: str, now: float, policy: Policy = ACTIVITY) -> list[Decision]:
    return leases.call_began(caller, "k", policy, now) + leases.call_ended(caller, "k", now)


def standing(leases: Leases, caller: str = "a") -> Standing | None:
    return {view.caller: view.standing for view in leases.views("k", 0)}[caller]


# -- activity ---------------------------------------------------------------------


def test_an_activity_lease_lapses_when_its_window_has_passed_and_retires_a_private_kernel() -> None:
    leases = opened(ACTIVITY)
    assert leases.deadline() == 80
    assert leases.advance(79.9) == []
    assert leases.advance(80) == [LeaseReleased("k", "a", Why.LAPSED), RetireKernel("k", Why.LAPSED)]
    assert leases.deadline() is None


def test_a_named_kernel_has_the_named_window() -> None:
    assert opened(ACTIVITY, Scope.NAMED).deadline() == 1440


@pytest.mark.parametrize("renew", ["call", "ping"])
def test_a_call_and_a_ping_renew_the_window(renew: str) -> None:
    leases = opened(ACTIVITY)
    call(leases, "a", 50) if renew == "call" else leases.signed("a", 50)
    assert leases.deadline() == 130


@pytest.mark.parametrize("policy", [ACTIVITY, HEARTBEAT, CONNECTION])
def test_a_ping_creates_nothing(policy: Policy) -> None:
    leases = opened(policy)
    assert leases.signed("stranger", 1) == []
    assert [view.caller for view in leases.views("k", 1)] == ["a"]


def test_a_call_that_is_still_open_holds_its_lease_for_as_long_as_it_takes() -> None:
    leases = opened(ACTIVITY)
    leases.call_began("a", "k", ACTIVITY, 10)
    assert leases.deadline() is None
    leases.call_ended("a", "k", 5000)
    assert leases.deadline() == 5080


@pytest.mark.parametrize("owner", ["a", EVERY_CALLER])
def test_no_activity_lease_lapses_while_a_cell_of_its_session_or_of_a_child_runs(owner: str) -> None:
    leases = opened(ACTIVITY)
    leases.cell_started("k", 1, owner)
    assert leases.deadline() is None
    assert leases.advance(1_000_000) == []


def test_a_cell_of_somebody_else_does_not_hold_a_lease() -> None:
    leases = opened(ACTIVITY)
    leases.cell_started("k", 1, None)
    assert leases.advance(80) == [LeaseReleased("k", "a", Why.LAPSED), KernelOrphaned("k", 30)]


def test_the_idle_clock_starts_at_the_end_of_the_run() -> None:
    leases = opened(ACTIVITY)
    leases.cell_started("k", 1, "a")
    leases.cell_ended("k", 1, 500)
    assert leases.deadline() == 580


def test_a_private_kernel_whose_cell_ended_untold_waits_for_the_named_window() -> None:
    leases = opened(ACTIVITY)
    leases.cell_started("k", 1, "a")
    leases.cell_ended("k", 1, 500)
    assert leases.advance(580) == [LeaseReleased("k", "a", Why.LAPSED)]
    assert leases.retention_remaining("k", 580) == 500 + 1440 - 580
    assert leases.deadline() == 1940
    assert leases.advance(1940) == [RetireKernel("k", Why.UNTOLD_OVER)]


def test_telling_of_the_last_untold_end_retires_a_kernel_that_nobody_holds() -> None:
    leases = opened(ACTIVITY)
    leases.cell_started("k", 1, "a")
    leases.cell_ended("k", 1, 500)
    leases.advance(580)
    assert leases.told("k", 1, 600) == [RetireKernel("k", Why.UNTOLD_OVER)]


def test_an_end_that_nobody_needs_to_be_told_of_keeps_nothing() -> None:
    leases = opened(ACTIVITY)
    leases.cell_started("k", 1, None)
    leases.cell_ended("k", 1, 70, untold=False)
    assert RetireKernel("k", Why.LAPSED) in leases.advance(80)


# -- two callers --------------------------------------------------------------------


def test_one_of_two_callers_that_leaves_does_not_end_the_kernel() -> None:
    leases = opened(ACTIVITY, Scope.NAMED)
    call(leases, "b", 10)
    assert leases.client_left("a", 20) == [LeaseReleased("k", "a", Why.CLIENT_LEFT)]
    assert leases.holds("b", "k")
    assert not leases.holds("a", "k")


# -- leaving ------------------------------------------------------------------------


def test_a_private_kernel_is_retired_when_its_session_is_deleted() -> None:
    leases = opened(ACTIVITY)
    decided = leases.client_left("a", 20)
    assert decided == [LeaseReleased("k", "a", Why.CLIENT_LEFT), RetireKernel("k", Why.CLIENT_LEFT)]


def test_a_named_kernel_keeps_itself_for_the_named_window_after_the_last_call() -> None:
    leases = opened(ACTIVITY, Scope.NAMED)
    call(leases, "a", 100)
    leases.signed("a", 110)
    assert leases.client_left("a", 120) == [LeaseReleased("k", "a", Why.CLIENT_LEFT)]
    assert leases.retention_remaining("k", 120) == 1420
    assert leases.advance(1540) == [RetireKernel("k", Why.RETENTION_OVER)]


def test_a_retained_kernel_goes_on_with_the_caller_that_comes_next() -> None:
    leases = opened(ACTIVITY, Scope.NAMED)
    leases.client_left("a", 20)
    call(leases, "b", 1000)
    assert leases.advance(1440) == []
    assert leases.retention_remaining("k", 1440) is None


def test_a_running_cell_counts_as_held_for_the_named_window_after_its_client_is_gone() -> None:
    leases = opened(ACTIVITY)
    leases.cell_started("k", 1, "a")
    assert leases.client_left("a", 20) == [LeaseReleased("k", "a", Why.CLIENT_LEFT)]
    assert leases.deadline() == 1440
    assert leases.advance(1440) == [KernelOrphaned("k", 30)]
    assert leases.advance(1469) == []
    assert leases.advance(1470) == [RetireKernel("k", Why.ORPHANED)]


def test_an_orphan_that_is_attached_to_in_time_stays() -> None:
    leases = opened(ACTIVITY)
    leases.cell_started("k", 1, "a")
    leases.client_left("a", 20)
    leases.advance(1440)
    call(leases, "b", 1450)
    assert leases.advance(1470) == []
    assert leases.holds("b", "k")


def test_an_orphan_whose_cell_ends_in_time_is_kept_for_its_result() -> None:
    leases = opened(ACTIVITY)
    leases.cell_started("k", 1, "a")
    leases.client_left("a", 20)
    leases.advance(1440)
    assert leases.cell_ended("k", 1, 1450) == []
    assert leases.retention_remaining("k", 1450) == 1440


def test_a_client_that_left_while_its_cell_ran_leaves_the_result_for_the_named_window() -> None:
    leases = opened(ACTIVITY)
    leases.cell_started("k", 1, "a")
    leases.client_left("a", 20)
    assert leases.cell_ended("k", 1, 300) == []
    assert leases.advance(1740) == [RetireKernel("k", Why.UNTOLD_OVER)]


# -- attach -------------------------------------------------------------------------


def test_letting_go_clears_the_retention_of_a_named_kernel() -> None:
    leases = opened(ACTIVITY, Scope.NAMED)
    call(leases, "b", 5)
    leases.client_left("b", 10)
    assert leases.let_go("a", "k", 20) == [LeaseReleased("k", "a", Why.LET_GO), RetireKernel("k", Why.LET_GO)]


def test_letting_go_of_a_busy_kernel_orphans_it_at_once() -> None:
    leases = opened(ACTIVITY)
    leases.cell_started("k", 1, "a")
    assert leases.let_go("a", "k", 20) == [LeaseReleased("k", "a", Why.LET_GO), KernelOrphaned("k", 30)]
    assert leases.advance(50) == [RetireKernel("k", Why.ORPHANED)]


def test_letting_go_does_not_take_the_kernel_from_others_nor_their_retention() -> None:
    leases = opened(ACTIVITY, Scope.NAMED)
    call(leases, "b", 5)
    assert leases.let_go("a", "k", 20) == [LeaseReleased("k", "a", Why.LET_GO)]
    leases.client_left("b", 30)
    assert leases.retention_remaining("k", 30) == 1415


def test_an_end_nobody_was_told_of_keeps_a_kernel_that_was_let_go() -> None:
    leases = opened(ACTIVITY)
    leases.cell_started("k", 1, "a")
    leases.cell_ended("k", 1, 10)
    assert leases.let_go("a", "k", 20) == [LeaseReleased("k", "a", Why.LET_GO)]
    assert leases.advance(1450) == [RetireKernel("k", Why.UNTOLD_OVER)]


# -- heartbeat ----------------------------------------------------------------------


def test_a_heartbeat_lease_lapses_when_no_sign_came_in_time() -> None:
    leases = opened(HEARTBEAT)
    leases.signed("a", 15)
    assert leases.deadline() == 75
    assert leases.advance(75) == [LeaseReleased("k", "a", Why.LAPSED), RetireKernel("k", Why.LAPSED)]


def test_a_named_kernel_outlives_its_heartbeat() -> None:
    leases = opened(HEARTBEAT, Scope.NAMED)
    assert leases.advance(60) == [LeaseReleased("k", "a", Why.LAPSED)]
    assert leases.retention_remaining("k", 60) == 1380


def test_a_missed_heartbeat_ends_no_lease_while_its_cell_runs() -> None:
    leases = opened(HEARTBEAT)
    leases.cell_started("k", 1, "a")
    assert leases.advance(1000) == []
    leases.cell_ended("k", 1, 1000)
    assert leases.deadline() == 1060
    assert leases.signed("a", 1050) == []
    assert leases.deadline() == 1110


def test_the_cell_of_a_client_without_heartbeat_is_orphaned_after_the_named_window() -> None:
    leases = opened(HEARTBEAT)
    leases.cell_started("k", 1, "a")
    assert leases.advance(1440) == [LeaseReleased("k", "a", Why.LAPSED), KernelOrphaned("k", 30)]


# -- connection ---------------------------------------------------------------------


def test_a_connection_lease_holds_while_the_stream_is_open() -> None:
    leases = Leases()
    leases.stream_opened("a", 0)
    leases.kernel_opened("k", Scope.PRIVATE, CONNECTION, 1)
    leases.call_began("a", "k", CONNECTION, 1)
    leases.call_ended("a", "k", 1)
    assert standing(leases) is Standing.CONNECTED
    assert leases.deadline() is None


def test_a_client_that_reconnects_within_the_grace_loses_nothing() -> None:
    leases = opened(CONNECTION)
    leases.stream_opened("a", 5)
    leases.stream_closed("a", 100)
    assert standing(leases) is Standing.RECONNECTING
    assert leases.deadline() == 160
    leases.stream_opened("a", 159)
    assert standing(leases) is Standing.CONNECTED
    assert leases.deadline() is None


def test_a_client_that_stays_away_is_disconnected_and_its_private_kernel_retired() -> None:
    leases = opened(CONNECTION)
    leases.stream_opened("a", 5)
    leases.stream_closed("a", 100)
    decided = leases.advance(160)
    assert decided == [LeaseReleased("k", "a", Why.DISCONNECTED), RetireKernel("k", Why.DISCONNECTED)]


def test_a_disconnected_client_shows_as_such_and_its_stream_takes_the_lease_up_again() -> None:
    leases = opened(CONNECTION, Scope.NAMED)
    leases.stream_opened("a", 5)
    leases.stream_closed("a", 100)
    assert leases.advance(160) == [LeaseReleased("k", "a", Why.DISCONNECTED)]
    assert [(v.standing, v.held) for v in leases.views("k", 160)] == [(Standing.DISCONNECTED, False)]
    leases.stream_opened("a", 1000)
    assert [(v.standing, v.held) for v in leases.views("k", 1000)] == [(Standing.CONNECTED, True)]
    assert leases.advance(5000) == []


def test_a_session_that_was_deleted_leaves_no_trace_in_a_retained_kernel() -> None:
    leases = opened(CONNECTION, Scope.NAMED)
    leases.stream_opened("a", 5)
    leases.stream_closed("a", 100)
    leases.advance(160)
    leases.client_left("a", 170)
    assert leases.views("k", 170) == []


def test_a_dropped_call_is_no_sign_that_its_client_is_still_there() -> None:
    leases = opened(CONNECTION)
    leases.stream_opened("a", 5)
    leases.call_began("a", "k", CONNECTION, 50)
    leases.stream_closed("a", 100)
    leases.call_ended("a", "k", 100.1, answered=False)
    assert LeaseReleased("k", "a", Why.DISCONNECTED) in leases.advance(160)


@pytest.mark.parametrize("sign", ["ping", "call", "open call"])
def test_a_client_that_is_heard_but_has_no_stream_gets_an_alert_and_the_activity_window(sign: str) -> None:
    leases = opened(CONNECTION)
    leases.stream_opened("a", 5)
    if sign == "open call":
        leases.call_began("a", "k", CONNECTION, 90)
    leases.stream_closed("a", 100)
    if sign == "ping":
        leases.signed("a", 120)
    elif sign == "call":
        call(leases, "a", 120, CONNECTION)
    assert leases.advance(160) == [AlertRaised("k", "a", Standing.STREAM_LOST)]
    assert leases.alert("a", "k") is Standing.STREAM_LOST
    if sign == "open call":
        leases.call_ended("a", "k", 160)
    last = 160 if sign == "open call" else 120
    assert leases.deadline() == last + 80


def test_a_client_that_never_opens_a_stream_is_unbound() -> None:
    leases = opened(CONNECTION)
    assert standing(leases) is Standing.AWAITING_STREAM
    assert leases.advance(60) == [AlertRaised("k", "a", Standing.UNBOUND)]
    assert leases.alert("a", "k") is Standing.UNBOUND
    assert leases.advance(80) == [LeaseReleased("k", "a", Why.LAPSED), RetireKernel("k", Why.LAPSED)]


def test_an_alert_is_cleared_when_the_stream_comes() -> None:
    leases = opened(CONNECTION)
    leases.advance(60)
    assert leases.stream_opened("a", 70) == [AlertCleared("k", "a")]
    assert leases.alert("a", "k") is None
    assert standing(leases) is Standing.CONNECTED


def test_a_caller_of_whom_no_stream_is_expected_has_the_activity_window_without_an_alert() -> None:
    leases = Leases()
    leases.kernel_opened("k", Scope.PRIVATE, CONNECTION, 0)
    leases.call_began("a", "k", CONNECTION, 0, stream_expected=False)
    leases.call_ended("a", "k", 0)
    assert standing(leases) is None
    assert leases.advance(60) == []
    assert leases.deadline() == 80


def test_a_second_stream_of_one_caller_keeps_it_connected() -> None:
    leases = opened(CONNECTION)
    leases.stream_opened("a", 1)
    leases.stream_opened("a", 2)
    leases.stream_closed("a", 3)
    assert standing(leases) is Standing.CONNECTED


def test_the_cell_of_a_disconnected_client_is_found_again_by_its_session() -> None:
    leases = opened(CONNECTION)
    leases.stream_opened("a", 1)
    leases.cell_started("k", 1, "a")
    leases.stream_closed("a", 100)
    assert leases.advance(160) == [LeaseReleased("k", "a", Why.DISCONNECTED)]
    leases.cell_ended("k", 1, 200)
    call(leases, "a", 1000, CONNECTION)
    assert leases.holds("a", "k")


def test_alert_lines_say_what_happened_and_what_keeps_the_kernel() -> None:
    line = alert_line(Standing.UNBOUND, DEFAULT, Scope.PRIVATE)
    assert line.startswith("Lease alert (unbound): ")
    assert "80 minutes" in line
    assert "24 hours" in alert_line(Standing.STREAM_LOST, DEFAULT, Scope.NAMED)


# -- adoption ---------------------------------------------------------------


def test_an_adopted_kernel_waits_for_callers_as_long_as_its_window() -> None:
    leases = Leases()
    leases.kernel_opened("k", Scope.PRIVATE, ACTIVITY, 100, adopted=True)
    assert leases.deadline() == 180
    assert leases.advance(180) == [RetireKernel("k", Why.RETENTION_OVER)]


def test_what_happens_to_a_kernel_that_has_ended_is_ignored() -> None:
    leases = opened(ACTIVITY)
    leases.kernel_closed("k")
    assert leases.call_ended("a", "k", 1) == []
    assert leases.cell_ended("k", 1, 1) == []
    assert leases.told("k", 1, 1) == []
    assert leases.let_go("a", "k", 1) == []
    assert leases.client_left("a", 1) == []
    assert leases.views("k", 1) == []
    assert leases.deadline() is None


# -- policies -------------------------------------------------------------------------


def test_a_change_makes_a_new_generation_and_leaves_the_old_one_alone() -> None:
    policies = Policies(DEFAULT)
    first = policies.current
    second = policies.change({"lease_mode": "heartbeat", "heartbeat_timeout_seconds": 90})
    assert (first.generation, first.lease_mode) == (1, Mode.ACTIVITY)
    assert (second.generation, second.lease_mode, policies.current) == (2, Mode.HEARTBEAT, second)
    assert policies.pinned(1) is first
    assert policies.pinned(None) is second


def test_a_change_that_changes_nothing_makes_no_generation() -> None:
    policies = Policies(DEFAULT)
    assert policies.change({"orphan_grace_seconds": 30}).generation == 1


@pytest.mark.parametrize("generation", [0, 2, -1])
def test_an_unknown_generation_is_an_error(generation: int) -> None:
    with pytest.raises(UnknownGeneration, match=str(generation)):
        Policies(DEFAULT).pinned(generation)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"lease_mode": "forever"}, "lease_mode"),
        ({"orphan_grace_seconds": -1}, "orphan_grace_seconds"),
        ({"private_activity_timeout_seconds": 0}, "private_activity_timeout_seconds"),
        ({"orphan_grace_seconds": float("inf")}, "orphan_grace_seconds"),
        ({"orphan_grace_seconds": "30"}, "orphan_grace_seconds"),
        ({"connection_grace_seconds": True}, "connection_grace_seconds"),
        ({"heartbeat_timeout_seconds": 15}, "heartbeat_timeout_seconds"),
        ({"generation": 7}, "generation"),
        ({"color": "red"}, "color"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_by_name(settings: dict[str, object], named: str) -> None:
    policies = Policies(DEFAULT)
    with pytest.raises(InvalidPolicy, match=named):
        policies.change(settings)
    assert policies.current.generation == 1


def test_a_lease_keeps_the_policy_it_began_with() -> None:
    leases = opened(ACTIVITY)
    call(leases, "a", 10, HEARTBEAT)
    assert leases.deadline() == 90
    assert [v.mode for v in leases.views("k", 10)] == [Mode.ACTIVITY]
