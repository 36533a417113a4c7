"""What a caller still has to be told of a kernel (contract 6)."""

from __future__ import annotations

from loommux_host.facts.results import Death, Notice
from loommux_host.kernels.journal import KEPT, Journal
from loommux_host.sessions.envelope import Envelope, Late, Shown, Told, envelope
from loommux_kernel.shared.protocol import Origin, OriginKind, State

ME = Origin(OriginKind.SESSION, "claude", "me")
OTHER = Origin(OriginKind.SESSION, "claude-1a2b3c4d", "other")
QT = Origin(OriginKind.CLIENT, "qtconsole", "qt")
NOTHING = Shown()


def lines(journal: Journal, told: Told, shown: Shown = NOTHING, late: tuple[Late, ...] = ()) -> list[Notice]:
    """One result's envelope, handed over."""
    one = sent(journal, told, shown, late)
    one.delivered(told)
    return one.notices


def sent(journal: Journal, told: Told, shown: Shown = NOTHING, late: tuple[Late, ...] = ()) -> Envelope:
    one = envelope(journal, late, told, "me", shown)
    one.sent(told, journal.index)
    return one


def test_each_notice_is_told_once_in_order() -> None:
    journal, told = Journal(), Told()
    journal.notice(1, 1.0, "first", serial=6, number=6)
    journal.notice(1, 2.0, "10-env.py failed", label="Startup")
    assert lines(journal, told) == [Notice("first", "In [6]"), Notice("10-env.py failed", "Startup")]
    journal.notice(1, 3.0, "second", serial=6, number=6)
    assert lines(journal, told) == [Notice("second", "In [6]")]
    assert lines(journal, told) == []


def test_a_notice_of_the_shown_execution_has_no_label() -> None:
    journal = Journal()
    journal.notice(2, 1.0, "mine", serial=6, number=6)
    assert lines(journal, Told(), Shown((2, 6))) == [Notice("mine")]
    assert lines(journal, Told(), Shown((1, 6))) == [Notice("mine", "In [6]")]


def test_what_was_not_handed_over_is_told_again() -> None:
    journal, told = Journal(), Told()
    journal.notice(1, 1.0, "again")
    first = sent(journal, told)
    assert first.notices == [Notice("again")]
    first.dropped(told)
    assert lines(journal, told) == [Notice("again")]
    assert lines(journal, told) == []


def test_two_results_on_their_way_at_once_do_not_carry_the_same_notices() -> None:
    journal, told, late = Journal(), Told(), (Late((1, 7), 7, 3),)
    journal.notice(1, 1.0, "one")
    first = sent(journal, told, late=late)
    journal.notice(1, 1.0, "two")
    second = sent(journal, told, late=late)
    assert first.notices == [Notice("one"), Notice("3 more lines after its end", "In [7]")]
    assert second.notices == [Notice("two")]
    second.delivered(told)
    first.dropped(told)
    journal.notice(1, 1.0, "three")
    assert lines(journal, told, late=late) == [
        Notice("one"),
        Notice("three"),
        Notice("3 more lines after its end", "In [7]"),
    ]
    assert lines(journal, told, late=late) == []


def test_a_caller_knows_of_what_was_handed_over_not_of_what_is_on_its_way() -> None:
    journal, told = Journal(), Told()
    journal.died(Death(1, 1.0, "exit", code=4), None, on_purpose=False)
    assert not told.knows(1)
    first = sent(journal, told)
    assert not told.knows(1)
    first.delivered(told)
    assert told.knows(1)


def test_notices_for_one_caller_are_for_that_one_alone() -> None:
    journal = Journal()
    journal.notice(1, 1.0, "yours", only_for="me")
    journal.notice(1, 1.0, "not yours", only_for="other")
    journal.notice(1, 1.0, "your doing", not_for="me")
    assert lines(journal, Told()) == [Notice("yours")]


def test_cells_of_others_are_told_together_and_own_ones_and_startup_files_are_not() -> None:
    journal, told = Journal(), Told()
    startup = Origin(OriginKind.STARTUP, "10-env.py")
    for serial, origin, state in (
        (1, startup, State.COMPLETED),
        (7, ME, State.COMPLETED),
        (8, QT, State.COMPLETED),
        (9, OTHER, State.ERROR),
    ):
        journal.ended(1, 1.0, serial, serial, state, origin)
    assert lines(journal, told) == [
        Notice(
            "2 cells were run by others since your last result: In [8] (completed, qtconsole),"
            " In [9] (error, session claude-1a2b3c4d). Variables may have changed."
        )
    ]
    journal.ended(1, 1.0, 10, 10, State.COMPLETED, QT)
    assert lines(journal, told, Shown((1, 10), whole=True)) == []


def test_many_cells_of_others_are_counted_and_the_last_ten_named() -> None:
    journal = Journal()
    for n in range(1, 31):
        journal.ended(1, 1.0, n, n, State.COMPLETED, QT)
    [notice] = lines(journal, Told())
    assert notice.text.startswith("30 cells were run by others since your last result: 20 more, In [21] (completed")
    assert "In [20]" not in notice.text


def test_a_count_of_others_cells_of_which_some_are_forgotten_says_at_least() -> None:
    journal, told = Journal(), Told()
    for n in range(1, KEPT + 2):
        journal.ended(1, float(n), n, n, State.COMPLETED, QT)
    (notice,) = lines(journal, told)
    assert notice.text.startswith(f"At least {KEPT} cells were run by others since your last result: ")
    journal.ended(1, 1.0, KEPT + 2, KEPT + 2, State.COMPLETED, QT)
    (notice,) = lines(journal, told)
    assert notice.text.startswith("1 cell was run by others")


def test_notices_that_are_forgotten_before_they_were_told_are_told_of_once() -> None:
    journal, told = Journal(), Told()
    for n in range(KEPT):
        journal.notice(1, float(n), str(n))
    assert len(lines(journal, Told())) == KEPT
    journal.notice(1, 1.0, "last")
    first, second, *_ = lines(journal, told)
    assert first == Notice(f"Earlier notices are gone; a kernel keeps the last {KEPT}.")
    assert second == Notice("1")
    journal.notice(1, 1.0, "new")
    assert lines(journal, told) == [Notice("new")]


def test_late_lines_are_told_as_they_grow_unless_the_result_shows_them() -> None:
    journal, told = Journal(), Told()
    seven = (1, 7)
    assert lines(journal, told, late=(Late(seven, 7, 12),)) == [Notice("12 more lines after its end", "In [7]")]
    assert lines(journal, told, late=(Late(seven, 7, 12),)) == []
    assert lines(journal, told, late=(Late(seven, 7, 13),)) == [Notice("1 more line after its end", "In [7]")]
    assert lines(journal, told, Shown(seven, whole=True), (Late(seven, 7, 20),)) == []
    assert lines(journal, told, late=(Late(seven, 7, 20),)) == []
    startup = Late((1, 1), None, 2, "Startup")
    assert lines(journal, told, late=(startup,)) == [Notice("2 more lines after its end", "Startup")]


def test_a_death_is_told_once_unless_the_result_says_it_or_the_caller_wanted_it() -> None:
    journal, told = Journal(), Told()
    journal.died(Death(2, 1.0, "signal", signal="SIGKILL", max_rss_bytes=3 << 30), 7, on_purpose=False)
    assert lines(journal, Told(), Shown((2, 7), deaths=frozenset({2}))) == []
    [notice] = lines(journal, told)
    assert notice.text.startswith("Process 2 ended by SIGKILL at ")
    assert "its memory had reached 3.0 GiB. In [7] was killed. Its variables are gone" in notice.text
    journal.died(Death(3, 1.0, "restart", by="session claude"), None, on_purpose=True, not_for="me")
    assert lines(journal, told) == []
