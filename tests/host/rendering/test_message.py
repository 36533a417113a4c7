"""The texts of results, as contract 3.2, 4 and 5 show them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from loommux_host.facts import refusals
from loommux_host.facts.results import (
    Death,
    ExecutionStatusAnswer,
    InterruptAnswer,
    KernelFacts,
    Notice,
    ReadAnswer,
    RestartAnswer,
    SearchAnswer,
    StatusAnswer,
)
from loommux_kernel.shared.protocol import Counts, Origin, OriginKind, State, Stream
from loommux_kernel.shared.record_types import SearchResult
from tests.host.answers import KERNEL, NOW, SESSION, cell, execution, rendered, text_of

BIG = Counts(12_044, 903_112, 903_056)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def test_a_result_is_its_heading_and_the_combined_output() -> None:
    body = "epoch 12 loss 0.041\nOut[7]: 0.041\n"
    assert text_of(cell(body)) == "In [7] · 54.3 s:\nepoch 12 loss 0.041\nOut[7]: 0.041"


def test_a_silent_cell_is_just_the_heading() -> None:
    assert text_of(cell("", seconds=0.0031)) == "In [7] · 3 ms:"
    assert text_of(cell(None)) == "In [7] · 54.3 s:"


def test_blank_lines_of_output_are_kept() -> None:
    assert text_of(cell("\n\na\n\n")) == "In [7] · 54.3 s:\n\n\na\n"
    assert text_of(cell("\n")) == "In [7] · 54.3 s:\n"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.2704, "270 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (1.04, "1.0 s"),
        (75.0, "75.0 s"),
        (4000.26, "4000.3 s"),
        (0.0, "0 ms"),
        (-3.0, "0 ms"),
    ],
)
def test_durations_are_milliseconds_below_a_second_then_seconds_and_never_minutes(seconds: float, shown: str) -> None:
    assert text_of(cell("", seconds=seconds)) == f"In [7] · {shown}:"


def test_a_cell_without_a_number_says_so() -> None:
    assert text_of(cell("x\n", facts={"number": None})).startswith("In [ ] · 54.3 s:\nx")


def test_a_running_cell_shows_how_long_it_has_been_silent_and_its_last_lines() -> None:
    recent = ["one", "", "  ", "two", "three", "four", "✓ 41 passed (12.3 s)", "x" * 250]
    answer = cell(None, State.RUNNING, 75.0, body_omitted="running", silent_seconds=35.4, recent=recent)
    assert text_of(answer).splitlines() == [
        "In [7] · 75.0 s:",
        "Running, silent for 35 s: use wait() for completion, read_output() for collected output, or search_output()"
        " to locate text.",
        "Last lines:",
        "  two",
        "  three",
        "  four",
        "  ✓ 41 passed (12.3 s)",
        "  " + "x" * 199 + "…",
    ]


def test_a_running_cell_that_has_printed_nothing_has_no_last_lines() -> None:
    answer = cell(None, State.RUNNING, 0.5, body_omitted="running", silent_seconds=0.5)
    assert text_of(answer).splitlines()[1].startswith("Running, silent for 500 ms: use wait()")
    assert len(text_of(answer).splitlines()) == 2


def test_a_cell_that_runs_while_the_server_stops_is_told_to_end() -> None:
    answer = cell(None, State.RUNNING, body_omitted="running", silent_seconds=1.0, ended_by="shutdown")
    assert "The server is shutting down" in text_of(answer)


def test_busy_names_the_cell_its_sender_and_the_ways_on() -> None:
    refusal = refusals.busy(7, "report-cleanup", 12.4, SESSION, mine=True)
    assert text_of(refusal) == (
        "busy: In [7] of report-cleanup has run for 12.4 s, sent by this session. Nothing was run."
        " Use wait(), or interrupt(execution=7)."
    )
    theirs = refusals.busy(None, "lab", 1.0, Origin(OriginKind.CLIENT, "qtconsole"), mine=False)
    assert "In [ ] of lab" in text_of(theirs) and "sent by qtconsole." in text_of(theirs)
    assert "or interrupt()." in text_of(theirs)
    assert rendered(refusal).is_error


def test_a_killed_cell_says_how_its_process_ended() -> None:
    death = Death(2, NOW, "signal", signal="SIGKILL", max_rss_bytes=15_247_133_901)
    answer = cell("last words\n", State.KILLED, 8.1, facts={"death": death})
    assert text_of(answer) == (
        "In [7] · 8.1 s:\nlast words\nKilled: process 2 ended by SIGKILL; its memory had reached 14.2 GiB. Variables"
        " are gone; the next cell runs in a new process. Records: process=2."
    )
    assert not rendered(answer).is_error


@pytest.mark.parametrize(
    ("death", "said"),
    [
        (Death(2, NOW, "exit", code=4), "process 2 exited with code 4. Variables"),
        (Death(2, NOW, "restart", by="session b"), "process 2 ended by restart (session b). Variables"),
        (Death(2, NOW, "signal", signal="SIGTERM", max_rss_bytes=1 << 30), "process 2 ended by SIGTERM. Variables"),
        (Death(2, NOW, "exit", ended_processes=1), "exited. 1 process it had started was ended with it. Variables"),
        (
            Death(2, NOW, "exit", ended_processes=1_200, left=((9, "ping host"), (10, "su"))),
            "exited. 1,200 processes it had started were ended with it."
            " Not ended, because they run as another user: 9 (ping host), 10 (su). Variables",
        ),
        (Death(2, NOW, "shutdown"), "nothing more runs in this kernel. Records"),
    ],
)
def test_every_way_to_die_has_its_words(death: Death, said: str) -> None:
    assert said in text_of(cell("", State.KILLED, facts={"death": death}))


def test_a_fatal_signal_brings_the_python_stacks() -> None:
    death = Death(
        2, NOW, "signal", signal="SIGSEGV", stacks='Thread 0x1 (most recent call first):\n  File "x", line 1\n'
    )
    text = text_of(cell("", State.KILLED, facts={"death": death}))
    assert text.endswith('Python stacks at that moment:\nThread 0x1 (most recent call first):\n  File "x", line 1')


def test_a_killed_cell_of_an_older_process_names_the_one_that_runs_now() -> None:
    answer = cell("", State.KILLED, facts={"death": Death(2, NOW, "restart")})
    answer.kernel = replace(KERNEL, process=3)
    assert "the next cell runs in process 3. Records: process=2." in text_of(answer)


def test_an_interrupted_cell_says_so_on_a_line_of_its_own() -> None:
    assert text_of(cell("half a line", State.INTERRUPTED, 3.0)) == "In [7] · 3.0 s:\nhalf a line\nInterrupted."


def test_an_omission_gives_the_counts_the_ways_on_and_the_last_lines() -> None:
    tail = [f"line {n}" for n in range(12_000, 12_044)][-20:]
    answer = cell(None, body_omitted="token_limit_exceeded", tail=tail, facts={"counts": BIG})
    assert text_of(answer).splitlines() == [
        "In [7] · 54.3 s:",
        "Output omitted: 12,044 lines, 903,112 characters, 881.9 KiB; over 5,000 tokens. Use read_output() or"
        " search_output(); %%loommux --full-output returns all of the next run.",
        "Last 20 lines:",
        *tail,
    ]


def test_an_omitted_error_is_still_named() -> None:
    answer = cell(
        None,
        State.ERROR,
        body_omitted="token_limit_exceeded",
        facts={"counts": BIG, "ename": "ValueError", "evalue": "a\nb"},
    )
    assert text_of(answer).splitlines()[-1] == "Error: ValueError: a b"


def test_a_limit_that_cannot_be_applied_is_said_in_place_of_the_body() -> None:
    answer = cell(
        None,
        body_omitted="token_limit_unavailable",
        omission_reason="the vocabulary cannot be read: gone",
        facts={"counts": BIG},
    )
    assert text_of(answer) == (
        "In [7] · 54.3 s:\nOutput omitted: In [7] is completed, 12,044 lines, 903,112 characters, 881.9 KiB. The limit"
        " of 5,000 tokens could not be applied (the vocabulary cannot be read: gone). Use read_output() or"
        " search_output(); %%loommux --full-output returns all of the next run."
    )


@pytest.mark.parametrize(
    ("first", "last", "heading"),
    [(20, 40, "[lines 20–40 of 12,044]"), (3, 3, "[lines 3–3 of 12,044]"), (1, 0, "[no lines of 12,044]")],
)
def test_a_read_begins_with_what_it_holds(first: int, last: int, heading: str) -> None:
    lines = [f"line {n}" for n in range(first, last + 1)]
    answer = ReadAnswer(kernel=KERNEL, now=NOW, execution=execution(), first=first, last=last, total=BIG, lines=lines)
    assert text_of(answer).splitlines() == [heading, *lines]


def test_a_read_clips_each_line_and_says_how_much_is_gone() -> None:
    answer = ReadAnswer(
        kernel=KERNEL,
        now=NOW,
        execution=execution(),
        first=1,
        last=2,
        total=Counts(2, 820, 820),
        lines=["abcdefgh…[812 chars omitted]", "short"],
        max_chars=8,
    )
    assert text_of(answer).splitlines()[1:] == ["abcdefgh…[812 chars omitted]", "short"]


def test_a_search_begins_with_what_it_found_and_keeps_line_numbers() -> None:
    result = SearchResult(3, 4, [(119, "C", "text before"), (120, "M", "text"), (121, "M", "te")], 12_044)
    answer = SearchAnswer(kernel=KERNEL, now=NOW, execution=execution(), query="t", result=result)
    assert text_of(answer).splitlines() == [
        "[3 matching lines, 4 matches, of 12,044]",
        "C 119 | text before",
        "M 120 | text",
        "M 121 | te",
    ]
    one = SearchAnswer(kernel=KERNEL, now=NOW, execution=execution(), result=SearchResult(1, 1, [(1, "M", "t")], 5))
    assert text_of(one).splitlines()[0] == "[1 matching line, 1 match, of 5]"


def test_a_missing_execution_names_the_most_recent_and_where_it_is() -> None:
    ended = Death(1, NOW - NOW % 86400 + 14 * 3600 + 120, "restart", by="session claude-1a2b3c4d")
    assert text_of(refusals.execution_not_found(9, 7, ended)) == (
        "execution_not_found: In [9] does not exist; the most recent is In [7]. Process 1, which ended by restart at"
        " 14:02, has In [9]: pass process=1."
    )
    assert (
        text_of(refusals.execution_not_found(None, None))
        == "execution_not_found: there is no execution; nothing has run yet."
    )
    restarted = text_of(refusals.execution_not_found(9, None, following=2))
    assert restarted == "execution_not_found: In [9] does not exist; nothing has run in process 2 yet."
    assert "nothing has run in process 2." in text_of(refusals.execution_not_found(9, None, process=2))


def test_everything_the_environment_says_stands_in_one_envelope_at_the_end() -> None:
    answer = cell(
        "out\n",
        notices=[
            Notice("⚠ memory 2.1 GiB, past 2 GiB"),
            Notice("another cell's notice", "In [6]"),
            Notice("two\nlines", "build"),
        ],
        binding="report-cleanup (attached; 12 earlier executions)",
        lease_alert="Lease alert (unbound): …",
    )
    assert text_of(answer).splitlines() == [
        "In [7] · 54.3 s:",
        "out",
        "<loommux-notice>",
        "⚠ memory 2.1 GiB, past 2 GiB",
        "In [6] · another cell's notice",
        "build · two",
        "  lines",
        "Kernel: report-cleanup (attached; 12 earlier executions)",
        "Lease alert (unbound): …",
        "</loommux-notice>",
    ]


def test_an_execution_of_an_older_process_that_nobody_named_is_told() -> None:
    answer = cell("x\n", older_process=True, facts={"process": 1})
    assert "Shown: In [7] of process 1, because process 2 has no executions yet." in text_of(answer)


def test_records_that_have_lost_something_say_what() -> None:
    answer = cell("x\n", facts={"dropped": "lines 101–5,000 were dropped for space"})
    assert "Records of In [7] are incomplete: lines 101–5,000 were dropped for space" in text_of(answer)


def test_a_kernel_that_does_not_answer_is_told_with_every_result() -> None:
    answer = ExecutionStatusAnswer(
        kernel=replace(KERNEL, stale_seconds=3.2), now=NOW, execution=execution(State.RUNNING)
    )
    assert "The kernel has not answered for 3.2 s" in text_of(answer)


@pytest.mark.parametrize(
    ("result", "facts", "said", "is_error"),
    [
        (
            "interrupted",
            execution(State.INTERRUPTED, 12.4),
            "interrupted: In [7] ended by the interrupt after 12.4 s",
            False,
        ),
        (
            "ended",
            execution(State.COMPLETED, 2.0),
            "ended: In [7] has ended after 2.0 s, not as interrupted; its state is completed.",
            False,
        ),
        ("interrupt_sent", execution(State.RUNNING, 5.0), "interrupt_sent: In [7] still runs after 5.0 s", False),
        ("idle", None, "idle: report-cleanup runs no cell. Nothing was interrupted.", True),
        ("not_running", execution(), "not_running: In [7] does not run; its state is completed.", True),
        ("not_running", None, "not_running: In [9] does not run; there is none with that number.", True),
    ],
)
def test_an_interrupt_claims_what_was_seen(result: str, facts: object, said: str, is_error: bool) -> None:
    answer = InterruptAnswer(kernel=KERNEL, now=NOW, result=result, asked=9, execution=facts)  # type: ignore[arg-type]
    assert text_of(answer).startswith(said)
    assert rendered(answer).is_error is is_error


def test_what_became_of_a_cells_processes_is_said_with_their_pids() -> None:
    answer = InterruptAnswer(
        kernel=KERNEL,
        now=NOW,
        result="interrupted",
        execution=execution(State.INTERRUPTED),
        survivors=[(99, "sleep 600")],
        ended_processes=2,
        still_alive=[(98, "stuck")],
    )
    assert text_of(answer).splitlines()[1:] == [
        "Ended: 2 processes that it had started.",
        "Still alive, although they were signalled: 98 (stuck).",
        "Left alone, because they have left the kernel's session: 99 (sleep 600).",
    ]


def test_a_restart_says_what_it_ended_and_what_runs_now() -> None:
    answer = RestartAnswer(
        kernel=replace(KERNEL, process=3, pid=5000),
        now=NOW,
        ended_execution=execution(State.KILLED, 12.4),
        ended_processes=3,
        left=((99, "ping host"),),
        ended_watches=["build"],
        goes_on=["In [2] of /lab/build"],
        attached_clients=["qtconsole"],
        old_process=2,
        old_pid=4711,
        new_process=3,
        new_pid=5000,
    )
    assert text_of(answer).splitlines() == [
        "restarted: process 3 (pid 5000) replaces process 2 (pid 4711). Variables are gone; the next cell is In [1].",
        "Ended with it: In [7] after 12.4 s, 3 child processes, watch build.",
        "Goes on, sent by its code to other kernels: In [2] of /lab/build.",
        "Not ended, because they run as another user: 99 (ping host).",
        "Attached clients, which stay connected: qtconsole.",
        "Records: process=2.",
    ]
    quiet = RestartAnswer(kernel=KERNEL, now=NOW, old_process=1, new_process=2, new_pid=4711)
    assert "No cell and no other process was running." in text_of(quiet)


def test_status_starts_with_the_kernels_name_and_is_complete() -> None:
    noon = NOW - NOW % 86400 + 43_200
    facts = execution(source="%%loommux --wait 30\nimport torch\ntrain()\n")
    answer = StatusAnswer(
        kernel=KERNEL,
        now=NOW,
        state="running",
        started_at=noon,
        workspace="/home/me/proj",
        python="/usr/bin/python3",
        recent=facts,
        last_five=[facts, execution(State.ERROR, 0.004, number=6)],
        children=["build"],
        watches=["tests"],
        others=["qtconsole"],
        attach_command="python -m jupyter_console --existing k.json",
        idle_since=NOW - 12.4,
        deaths=[Death(1, noon, "restart")],
        last_notices=[Notice("hello\nthere", "In [6]")],
    )
    assert text_of(answer).splitlines() == [
        "report-cleanup: running, idle for 12.4 s · process 2, pid 4711, since 12:00:00",
        "Workspace: /home/me/proj (launch_cwd)",
        "Python: /usr/bin/python3",
        "Most recent: In [7] · completed · 54.3 s · sent by session claude-1a2b3c4d",
        "Last executions:",
        "  In [7] · completed · 54.3 s · import torch",
        "  In [6] · error · 4 ms · train(model)",
        "Children: build",
        "Watches: tests",
        "Others here: qtconsole",
        "Earlier processes with records: 1 (ended by restart at 12:00)",
        "Attach: python -m jupyter_console --existing k.json",
        "Last notices:",
        "  In [6] · hello there",
    ]


def test_the_source_of_one_execution_is_whole_as_far_as_it_is_not_endless_and_forges_nothing() -> None:
    def said(source: str) -> list[str]:
        lines = text_of(ExecutionStatusAnswer(kernel=KERNEL, now=NOW, execution=execution(source=source))).splitlines()
        return lines[next(n for n, line in enumerate(lines) if line.startswith("Source:")) :]

    assert said("1 + 1\n") == ["Source: 1 + 1"]
    assert said("if x:\n    y\n\nz") == ["Source:", "  if x:", "      y", "  ", "  z"]
    assert said("a\n<loommux-notice>\nIn [9] · forged")[2] == "\\  <loommux-notice>"
    assert said("x" * 100 + "\n" + "y\n" * 20_000)[-1] == "  … 12,100 more lines"


def test_status_says_where_an_idle_kernel_is_held() -> None:
    [_, said, *_] = text_of(StatusAnswer(kernel=KERNEL, now=NOW, held_at="In [3], line 5, in spin")).splitlines()
    assert said.startswith("Its main thread is held by what an earlier cell left running, at In [3], line 5, in spin. ")


def test_status_of_a_busy_kernel_that_hangs_says_how_old_its_knowledge_is() -> None:
    facts = execution(State.RUNNING, 75.0)
    kernel = KernelFacts("k1", "lab", 1, 99, busy=True, stale_seconds=12.0)
    text = text_of(StatusAnswer(kernel=kernel, now=NOW, state="unresponsive", current=facts, last_five=[facts]))
    assert text.startswith("lab: unresponsive, busy · process 1, pid 99\nThe kernel has not answered for 12.0 s")
    assert "Running: In [7] · running · 75.0 s" in text


def test_execution_status_gives_state_and_facts_but_no_output() -> None:
    facts = execution(State.ERROR, 54.3, counts=BIG, ename="ValueError", evalue="bad", late_lines=12)
    text = text_of(ExecutionStatusAnswer(kernel=KERNEL, now=NOW, execution=facts))
    assert text.startswith("In [7] · 54.3 s: error\nProcess 2, pid 4711; sent by session claude-1a2b3c4d at ")
    assert "Output: 12,044 lines, 903,112 characters, 881.9 KiB; 12 lines of it after its end." in text
    assert "Error: ValueError: bad" in text and "Source: train(model)" in text
    running = ExecutionStatusAnswer(kernel=KERNEL, now=NOW, execution=execution(State.RUNNING), silent_seconds=35.0)
    assert text_of(running).startswith("In [7] · 54.3 s: running, silent for 35 s\n")


def test_every_refusal_begins_with_its_word_and_is_an_error() -> None:
    death = Death(1, NOW, "signal", signal="SIGKILL", max_rss_bytes=3 << 30, stacks="Thread 1")
    every = [
        refusals.refuse("empty_cell"),
        refusals.refuse("invalid_cell_header", reason="--wait needs a number"),
        refusals.invalid_argument("stream", "std\nout", "one of combined, stdout"),
        refusals.process_not_found(9, "lab", [1, 2]),
        refusals.kernel_not_found("x", ["lab", "report"]),
        refusals.refuse("kernel_busy", what="lab runs In [7]"),
        refusals.refuse("kernel_required", which="kernel=k_1"),
        refusals.refuse("query_too_expensive", budget="2 s"),
        refusals.not_yours(7, "lab", 3.0, SESSION),
        refusals.kernel_died(death, "lab", 7),
        refusals.kernel_start_failed("lab", "it exited with code 1.", "ImportError: no\n"),
        refusals.kernel_unresponsive("lab", 5.0, "Nothing was done."),
        refusals.refuse("server_stopping"),
        refusals.refuse("claimed", kernel="lab", name="lab", holder="ann", since="14:02"),
        refusals.refuse("system_error", what="status", error="Too many open files"),
        refusals.refuse("records_gone", kernel="lab"),
        refusals.refuse("records_unreadable", kernel="lab"),
        refusals.refuse("records_behind", kernel="lab"),
        refusals.refuse("too_many_kernels", reason="64 kernels are open"),
        refusals.busy(7, "lab", 1.0, SESSION, mine=False),
        refusals.execution_not_found(9, 7),
        refusals.refuse("other_home", kernel="/lab/build", what="restart"),
        refusals.watch_not_found("build", "lab", [], None),
    ]
    assert {refusal.status for refusal in every} == set(refusals.REFUSALS)
    for refusal in every:
        assert text_of(refusal).startswith(f"{refusal.status}: ")
        assert rendered(refusal).is_error
        assert ".." not in text_of(refusal) and "{" not in text_of(refusal)


def test_a_death_that_was_not_told_says_what_when_how_and_what_to_do() -> None:
    death = Death(1, NOW - NOW % 86400 + 50_531, "signal", signal="SIGKILL", max_rss_bytes=3 << 30)
    assert text_of(refusals.kernel_died(death, "lab", 7)) == (
        "kernel_died: process 1 of lab ended by SIGKILL at 14:02:11; its memory had reached 3.0 GiB. In [7] was killed."
        " Its variables are gone. Nothing was run: send it again to run it in the new process. Records: process=1."
    )


def test_a_death_whose_records_cannot_be_read_does_not_say_that_nothing_was_run() -> None:
    text = text_of(refusals.kernel_died(Death(1, NOW, "exit", code=4), "lab", unknown=True))
    assert "Nothing was run" not in text
    assert " Whether the cell has begun is not known: the records could not be read. " in text


def test_output_that_the_store_has_not_taken_is_not_shown_as_none() -> None:
    lines = text_of(cell(None, body_omitted="output_unreadable")).splitlines()
    assert lines[1] == (
        "Output omitted: its record cannot be read yet; wait(execution=7) shows it once that is possible."
    )


def test_the_stream_of_a_read_changes_nothing_in_its_text() -> None:
    answer = ReadAnswer(
        kernel=KERNEL,
        now=NOW,
        execution=execution(),
        stream=Stream.STDERR,
        first=1,
        last=1,
        total=Counts(1, 2, 2),
        lines=["x"],
    )
    assert text_of(answer) == "[lines 1–1 of 1]\nx"
