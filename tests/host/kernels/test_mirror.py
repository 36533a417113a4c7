"""The mirror of a kernel process: events, replies and records in any order give the same picture."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from loommux_host.kernels.mirror import KEPT, LATE_KEPT, Change, Ended, Mirror, Missed, Noticed, Printed, Started
from loommux_kernel.shared.protocol import (
    Counts,
    Event,
    ExecutionEnded,
    ExecutionStarted,
    InputAwaited,
    NoticeGiven,
    Origin,
    OriginKind,
    OutputArrived,
    Reply,
    State,
    Stream,
    Submission,
)
from loommux_kernel.shared.record_types import ExecutionRecord

ME = Origin(OriginKind.SESSION, "claude", "c1")
QT = Origin(OriginKind.CLIENT, "qtconsole", "q1")
SIZE = Counts(1, 2, 2)


def started(sequence: int, serial: int, origin: Origin = ME, number: int | None = None) -> ExecutionStarted:
    return ExecutionStarted(sequence, 10.0 + sequence, serial, number or serial, origin, None, 10.0, f"cell {serial}")


def ended(sequence: int, serial: int, state: State = State.COMPLETED) -> ExecutionEnded:
    return ExecutionEnded(sequence, 10.0 + sequence, serial, serial, state, SIZE)


def printed(sequence: int, serial: int, late: int = 0) -> OutputArrived:
    return OutputArrived(sequence, 10.0 + sequence, serial, serial, SIZE, "last", late)


def record(serial: int, state: State = State.COMPLETED, origin: Origin = ME) -> ExecutionRecord:
    done = None if state is State.RUNNING else 12.0
    return ExecutionRecord(
        serial, serial, origin, f"cell {serial}", state, 10.0, 10.5, 12.0, done, counts={Stream.COMBINED: SIZE}
    )


def reply(serial: int, state: State = State.COMPLETED) -> Reply:
    return Reply(None, serial, serial, state, 10.5, 12.0, SIZE)


def fed(events: Iterable[Event]) -> tuple[Mirror, list[Change]]:
    mirror = Mirror(0.0)
    return mirror, [change for event in events for change in mirror.apply(event)]


def kinds(changes: Iterable[Change]) -> list[type]:
    return [type(change) for change in changes]


def test_a_cell_starts_prints_and_ends() -> None:
    mirror, changes = fed([started(1, 1), printed(2, 1), ended(3, 1)])
    assert kinds(changes) == [Started, Printed, Ended]
    view = mirror.recent
    assert view is not None
    assert (view.number, view.state, view.counts, view.last_line) == (1, State.COMPLETED, SIZE, "last")
    assert mirror.running is None
    assert mirror.idle_since == 13.0


@pytest.mark.parametrize("first", ["reply", "events"])
def test_reply_and_events_may_come_in_either_order_and_change_things_once(first: str) -> None:
    mirror = Mirror(0.0)
    submission = Submission("s", 0, ME, 10.0)
    events: list[Event] = [started(1, 1), ended(2, 1)]
    changes: list[Change] = []
    if first == "reply":
        changes += mirror.replied(submission, "cell 1", reply(1))
    for event in events:
        changes += mirror.apply(event)
    if first == "events":
        changes += mirror.replied(submission, "cell 1", reply(1))
    assert kinds(changes) == [Started, Ended]
    assert mirror.last_serial == 1


def test_a_reply_that_overtakes_the_start_of_its_cell_never_makes_it_run_again() -> None:
    mirror = Mirror(0.0)
    mirror.replied(Submission("s", 0, ME, 10.0), "cell 1", reply(1))
    assert mirror.apply(started(1, 1)) == []
    assert mirror.running is None


def test_output_that_a_disk_held_back_until_after_the_reply_is_known_with_its_event() -> None:
    mirror = Mirror(0.0)
    mirror.apply(started(1, 1))
    mirror.replied(Submission("s", 0, ME, 10.0), "cell 1", Reply(None, 1, 1, State.COMPLETED, 10.5, 12.0))
    assert mirror.apply(ended(2, 1)) == []
    view = mirror.by_serial(1)
    assert view is not None
    assert view.counts == SIZE


def test_a_gap_in_the_numbers_is_told_once_and_what_came_after_it_counts() -> None:
    _, changes = fed([started(1, 1), ended(4, 1), started(5, 2)])
    assert kinds(changes) == [Started, Missed, Ended, Started]


def test_an_end_whose_start_was_lost_asks_for_the_store() -> None:
    mirror, changes = fed([started(1, 1), ended(2, 1), ended(4, 2)])
    assert kinds(changes) == [Started, Ended, Missed, Missed]
    assert kinds(mirror.mend([record(2), record(1)])) == [Started, Ended]


def test_the_store_ends_what_no_event_ended_and_starts_what_no_event_started() -> None:
    mirror, _ = fed([started(1, 1)])
    changes = mirror.mend([record(3, State.RUNNING, QT), record(2), record(1, State.ERROR)])
    assert kinds(changes) == [Ended, Started, Ended, Started]
    assert mirror.running is not None
    assert mirror.running.origin == QT
    assert mirror.last_serial == 3


def test_a_store_read_too_early_does_not_bring_an_ended_cell_back() -> None:
    mirror, _ = fed([started(1, 1), ended(2, 1)])
    assert mirror.mend([record(1, State.RUNNING)]) == []
    assert mirror.running is None


def test_output_found_in_the_store_counts_as_activity() -> None:
    mirror, _ = fed([started(1, 1)])
    assert kinds(mirror.mend([record(1, State.RUNNING)])) == [Printed]


def test_late_output_is_kept_apart_and_remembered_for_executions_no_longer_held() -> None:
    mirror, changes = fed([started(1, 1), ended(2, 1), printed(3, 1, late=12)])
    last = changes[-1]
    assert isinstance(last, Printed)
    assert last.late
    for n in range(2, KEPT + 10):
        mirror.apply(started(2 * n, n))
        mirror.apply(ended(2 * n + 1, n))
    assert mirror.by_serial(1) is None
    assert mirror.apply(printed(200, 1, late=12))[-1] == Printed(None, True)
    assert mirror.late == {1: (1, 12)}


def test_late_lines_are_held_of_the_executions_that_printed_late_last() -> None:
    mirror, _ = fed([])
    for n in range(1, LATE_KEPT + 1):
        mirror.apply(printed(n, n, late=1))
    mirror.apply(printed(LATE_KEPT + 1, 1, late=2))
    mirror.apply(printed(LATE_KEPT + 2, LATE_KEPT + 1, late=1))
    assert len(mirror.late) == LATE_KEPT
    assert mirror.late[1] == (1, 2)
    assert 2 not in mirror.late


def test_a_startup_file_is_called_so_also_when_it_is_no_longer_held() -> None:
    mirror, _ = fed([])
    mirror.mend([record(1, origin=Origin(OriginKind.STARTUP, "10-env.py"))])
    mirror.mend([record(n) for n in range(KEPT + 10, 1, -1)])
    assert mirror.by_serial(1) is None
    assert (mirror.label(1), mirror.label(2), mirror.label(None)) == ("Startup", "", "")


def test_a_running_execution_is_held_however_many_come_after_it() -> None:
    mirror, _ = fed([started(1, 1)])
    mirror.mend([record(n) for n in range(KEPT + 10, 1, -1)])
    assert mirror.running is not None
    assert mirror.running.serial == 1
    assert len(list(mirror.latest())) == KEPT


def test_the_death_of_the_process_kills_what_ran_and_nothing_else() -> None:
    mirror, _ = fed([started(1, 1), ended(2, 1), started(3, 2)])
    changes = mirror.killed(99.0)
    assert [c.view.serial for c in changes if isinstance(c, Ended)] == [2]
    assert [v.state for v in mirror.latest()] == [State.KILLED, State.COMPLETED]
    assert mirror.killed(100.0) == []


def test_an_execution_without_a_number_runs_but_is_not_the_most_recent_one() -> None:
    mirror, _ = fed([started(1, 1), ended(2, 1)])
    mirror.apply(ExecutionStarted(3, 13.0, 2, None, QT, None, 13.0, "silent"))
    assert mirror.running is not None
    assert mirror.recent is not None
    assert (mirror.running.serial, mirror.recent.serial) == (2, 1)


def test_repeated_events_change_nothing() -> None:
    mirror, _ = fed([started(1, 1), printed(2, 1)])
    assert mirror.apply(printed(2, 1)) == []


def test_waiting_for_a_foreign_clients_input_ends_with_the_cell() -> None:
    mirror, _ = fed([started(1, 1, QT), InputAwaited(2, 12.0, 1, 1, True)])
    assert mirror.waiting_for_input == 1
    mirror.apply(ended(3, 1))
    assert mirror.waiting_for_input is None


def test_notices_pass_through() -> None:
    _, changes = fed([NoticeGiven(1, 11.0, 1, 1, "", "memory")])
    assert changes == [Noticed(1, 1, "", "memory", 11.0)]


def test_what_came_before_anybody_listened_is_no_gap() -> None:
    mirror = Mirror(0.0)
    mirror.caught_up(7, 2)
    assert kinds(mirror.apply(started(8, 3))) == [Started]
    assert mirror.last_serial == 3
