"""The gate's rules: serials, numbers, admission, withdrawal, and what a signal is meant for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from loommux_kernel.executions.gate import Aim, Execution, Gate, Refusal, Request, Withdrawal
from loommux_kernel.shared.protocol import Origin, OriginKind, Submission

SESSION = Origin(OriginKind.SESSION, "session claude", "claude-1")
QTCONSOLE = Origin(OriginKind.CLIENT, "qtconsole", "jupyter-1")


def submit(name: str, seen: int, *, counted: bool = True) -> Request:
    return Request("1", SESSION, 1.0, Submission(name, seen, SESSION, 1.0), counted=counted)


def foreign(*, counted: bool = True, recorded: bool = True) -> Request:
    return Request("1", QTCONSOLE, 1.0, counted=counted, recorded=recorded)


def admitted(gate: Gate, request: Request, count: int) -> Execution:
    execution = gate.admit(request, count=count, at=2.0)
    assert isinstance(execution, Execution)
    return execution


def test_the_first_submission_gets_serial_and_number_one() -> None:
    execution = admitted(Gate(), submit("a", 0), 1)
    assert (execution.serial, execution.number, execution.submission) == (1, 1, "a")


def test_a_submission_is_refused_when_anything_started_since_the_server_looked() -> None:
    gate = Gate()
    first = admitted(gate, foreign(), 1)
    gate.end(first.serial, count=2)
    assert gate.admit(submit("a", 0), count=2, at=2.0) == Refusal("busy")
    assert admitted(gate, submit("b", 1), 2).number == 2


def test_a_foreign_cell_is_never_refused() -> None:
    gate = Gate()
    for count in (1, 2, 3):
        gate.end(admitted(gate, foreign(), count).serial, count=count + 1)
    assert gate.last_serial == 3


def test_what_ipython_does_not_count_has_a_serial_but_no_number() -> None:
    gate = Gate()
    silent = admitted(gate, foreign(counted=False), 1)
    assert (silent.serial, silent.number) == (1, None)
    gate.end(silent.serial, count=1)
    assert admitted(gate, submit("a", 1), 1).number == 1


def test_what_runs_nothing_is_not_recorded() -> None:
    gate = Gate()
    assert gate.admit(foreign(recorded=False), count=1, at=2.0) is None
    assert gate.last_serial == 0
    assert gate.running is None


def test_numbers_go_on_above_the_highest_when_the_counter_was_set_back() -> None:
    gate = Gate()
    for count in (1, 2, 3):
        gate.end(admitted(gate, foreign(), count).serial, count=count + 1)
    assert admitted(gate, foreign(), 1).number == 4


def test_numbers_that_a_cell_used_up_by_running_cells_are_not_given_again() -> None:
    gate = Gate()
    gate.end(admitted(gate, foreign(), 1).serial, count=5)
    assert admitted(gate, foreign(), 1).number == 5


def test_a_withdrawn_submission_never_runs() -> None:
    gate = Gate()
    assert gate.withdraw("a") == Withdrawal("withdrawn")
    assert gate.admit(submit("a", 0), count=1, at=2.0) == Refusal("withdrawn")
    assert gate.last_serial == 0


def test_a_started_submission_cannot_be_withdrawn() -> None:
    gate = Gate()
    execution = admitted(gate, submit("a", 0), 1)
    assert gate.withdraw("a") == Withdrawal("started", 1, 1)
    gate.end(execution.serial, count=2)
    assert gate.withdraw("a") == Withdrawal("ended", 1, 1)


def test_the_running_execution_is_found_by_serial_submission_or_nothing() -> None:
    gate = Gate()
    execution = admitted(gate, submit("a", 0), 1)
    assert gate.find() is gate.find(serial=1) is gate.find(submission="a") is execution
    assert gate.find(serial=2) is None
    assert gate.find(submission="b") is None
    gate.end(1, count=2)
    assert gate.find() is None


def test_the_gate_remembers_a_bounded_number_of_submissions() -> None:
    gate = Gate()
    for n in range(1000):
        gate.withdraw(f"w{n}")
        gate.end(admitted(gate, submit(f"s{n}", n), n + 1).serial, count=n + 2)
    assert len(gate._withdrawn) <= 256
    assert len(gate._started) <= 256


class Submitting(RuleBasedStateMachine):
    """Random cells, counters and withdrawals, against the promises of contract 3.1."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.count = 1
        self.names = 0
        self.numbers: list[int] = []
        self.withdrawn: set[str] = set()
        self.ran: set[str] = set()

    @rule(counted=st.booleans(), behind=st.integers(0, 2), take_back=st.booleans())
    @precondition(lambda self: self.gate.running is None)
    def submission(self, counted: bool, behind: int, take_back: bool) -> None:
        self.names += 1
        name = f"s{self.names}"
        if take_back:
            assert self.gate.withdraw(name).result == "withdrawn"
            self.withdrawn.add(name)
        seen = self.gate.last_serial - behind
        answer = self.gate.admit(submit(name, seen, counted=counted), count=self.count, at=2.0)
        if isinstance(answer, Refusal):
            assert behind or take_back
        else:
            assert isinstance(answer, Execution)
            assert not behind
            self.ran.add(name)
            self.started(answer)

    @rule(counted=st.booleans())
    @precondition(lambda self: self.gate.running is None)
    def foreign_cell(self, counted: bool) -> None:
        self.started(admitted(self.gate, foreign(counted=counted), self.count))

    def started(self, execution: Execution) -> None:
        assert execution.serial == self.gate.last_serial
        if execution.number is not None:
            assert all(execution.number > earlier for earlier in self.numbers)
            self.numbers.append(execution.number)
            self.count = execution.number + 1

    @rule(count=st.integers(1, 12))
    @precondition(lambda self: self.gate.running is not None)
    def ends_after_setting_the_counter(self, count: int) -> None:
        assert self.gate.running is not None
        self.count = count
        self.gate.end(self.gate.running.serial, count=count)

    @rule()
    @precondition(lambda self: self.gate.running is not None)
    def ends(self) -> None:
        assert self.gate.running is not None
        self.gate.end(self.gate.running.serial, count=self.count)

    @invariant()
    def nothing_withdrawn_ran(self) -> None:
        assert not self.withdrawn & self.ran


TestSubmitting = Submitting.TestCase


def test_a_signal_hits_the_armed_execution_that_was_aimed_at() -> None:
    aim = Aim()
    aim.arm(7)
    assert aim.at(7)
    assert aim.landed()


def test_aiming_at_what_does_not_run_fails() -> None:
    aim = Aim()
    assert not aim.at(7)
    aim.arm(8)
    assert not aim.at(7)


def test_a_signal_aimed_at_an_execution_that_is_over_hits_nothing() -> None:
    aim = Aim()
    aim.arm(7)
    aim.at(7)
    aim.disarm()
    assert not aim.landed()
    aim.arm(8)
    assert aim.armed == 8
    assert aim.landed(), "a signal that nobody aimed is meant for whatever runs"


def test_a_signal_that_nobody_aimed_does_nothing_while_nothing_runs() -> None:
    assert not Aim().landed()


@given(st.lists(st.sampled_from(["arm", "aim", "land", "end"]), max_size=40))
def test_an_aimed_signal_never_hits_another_execution(steps: list[str]) -> None:
    """Signals land once at the most, late or not at all, but before the next execution is armed."""
    aim, serial, flying_for = Aim(), 0, None
    for step in steps:
        if step == "arm" and aim.armed is None:
            serial, flying_for = serial + 1, None
            aim.arm(serial)
        elif step == "aim" and aim.at(serial):
            flying_for = serial
        elif step == "land" and flying_for is not None:
            assert aim.landed() == (aim.armed == flying_for)
            flying_for = None
        elif step == "end":
            aim.disarm()
