"""Structured mode gives the same facts as fields."""

from __future__ import annotations

from typing import Any

import pytest

from loommux_host.facts.refusals import busy
from loommux_host.facts.results import (
    Answer,
    Death,
    ExecutionStatusAnswer,
    InterruptAnswer,
    Notice,
    ReadAnswer,
    RestartAnswer,
    SearchAnswer,
    StatusAnswer,
)
from loommux_kernel.shared.protocol import Counts, Origin, OriginKind, State, Stream
from loommux_kernel.shared.record_types import SearchResult
from tests.host.answers import KERNEL, NOW, cell, execution, fields_of, rendered

KERNEL_FIELDS = {"id": "k1", "name": "report-cleanup", "busy": False, "pid": 4711, "process": 2}


def has(answer: Answer, expected: dict[str, Any]) -> None:
    fields = fields_of(answer)
    assert {key: fields[key] for key in expected} == expected


def test_content_mode_has_no_fields() -> None:
    assert rendered(cell("x\n")).structured is None


def test_a_completed_cell() -> None:
    streams = {Stream.STDOUT: "a\n", Stream.STDERR: "", Stream.RESULT: "2\n"}
    answer = cell("a\nOut[7]: 2\n", streams=streams, notices=[Notice("hi", "In [6]")], binding="lab (opened)")
    has(
        answer,
        {
            "ok": True, "status": "completed", "execution": 7, "process": 2, "elapsed_seconds": 54.3,
            "output_text": "a\nOut[7]: 2\n", "stdout": "a\n", "stderr": "", "result_text": "2\n", "error": None,
            "output_omitted": False, "output_omitted_reason": None, "output_total_lines": 2,
            "output_total_characters": 12, "output_total_utf8_bytes": 12, "recent_lines": [], "silent_seconds": None,
            "kernel": KERNEL_FIELDS, "notices": ["In [6] · hi", "Kernel: lab (opened)"], "binding": "lab (opened)",
            "lease_alert": None,
        },
    )  # fmt: skip


def test_an_error_is_named_whatever_the_output_says() -> None:
    answer = cell("…\n", State.ERROR, facts={"ename": "ExceptionGroup", "evalue": "g (2 sub-exceptions)"})
    has(answer, {"ok": True, "status": "error", "error": {"ename": "ExceptionGroup", "evalue": "g (2 sub-exceptions)"}})
    long = cell("…\n", State.ERROR, facts={"ename": "E" * 9_000, "evalue": "v" * 9_000})
    has(long, {"error": {"ename": "E" * 200, "evalue": "v" * 2_000}})


def test_a_running_cell_says_what_ended_the_call() -> None:
    answer = cell(
        None, State.RUNNING, 75.0, body_omitted="running", recent=["a"], silent_seconds=35.0461, ended_by="silence"
    )
    has(
        answer,
        {
            "status": "running", "output_text": None, "output_omitted": True, "output_omitted_reason": "running",
            "recent_lines": ["a"], "silent_seconds": 35.046, "wait_ended_by": "silence", "error": None,
        },
    )  # fmt: skip


def test_a_killed_cell_says_how_its_process_ended() -> None:
    death = Death(2, NOW, "signal", signal="SIGKILL", max_rss_bytes=99, ended_processes=3)
    fields = fields_of(cell("x\n", State.KILLED, facts={"death": death}))
    assert fields["status"] == "killed" and fields["ok"] is True
    assert fields["death"] == {
        "process": 2, "at": "2027-01-15T08:00:00.000+00:00", "cause": "signal", "by": None, "exit_code": None,
        "signal": "SIGKILL", "reason": None, "max_rss_bytes": 99, "ended_processes": 3, "left_processes": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    "reason", ["token_limit_exceeded", "size_limit_exceeded", "token_limit_unavailable", "output_unreadable"]
)
def test_an_omission_has_its_reason_and_the_exact_counts(reason: str) -> None:
    answer = cell(None, body_omitted=reason, tail=["z"], head=["a"], facts={"counts": Counts(12_044, 903_112, 903_056)})
    has(
        answer,
        {
            "output_text": None, "stdout": None, "output_omitted": True, "output_omitted_reason": reason,
            "output_total_lines": 12_044, "output_total_characters": 903_112, "output_total_utf8_bytes": 903_056,
        },
    )  # fmt: skip


def test_a_refusal_carries_ok_status_and_message() -> None:
    refusal = busy(7, "lab", 1.0, Origin(OriginKind.CLIENT, "qtconsole"), mine=False)
    fields = fields_of(refusal)
    assert (fields["ok"], fields["status"]) == (False, "busy")
    assert fields["message"].startswith("In [7] of lab has run for 1.0 s, sent by qtconsole.")


def test_execution_status_has_times_and_origin() -> None:
    facts = execution(State.RUNNING, 10.0, counts=Counts(1, 2, 3), late_lines=0)
    has(
        ExecutionStatusAnswer(kernel=KERNEL, now=NOW, execution=facts, silent_seconds=1.0),
        {
            "status": "running", "submitted_at": "2027-01-15T07:59:50.000+00:00",
            "started_at": "2027-01-15T07:59:50.000+00:00", "updated_at": "2027-01-15T08:00:00.000+00:00",
            "completed_at": None, "kernel_pid": 4711, "silent_seconds": 1.0, "output_total_utf8_bytes": 3,
            "origin": {"kind": "session", "label": "claude-1a2b3c4d", "client": "caller-1"},
        },
    )  # fmt: skip


def test_a_read_has_its_lines_and_what_the_range_came_to() -> None:
    answer = ReadAnswer(
        kernel=KERNEL, now=NOW, execution=execution(), stream=Stream.STDERR, first=3, last=4, total=Counts(4, 9, 9),
        lines=["ab…[4 chars omitted]", "d"], line_range="-2:", max_chars=2,
    )  # fmt: skip
    has(
        answer,
        {
            "stream": "stderr", "text": "ab…[4 chars omitted]\nd", "line_range": "-2:", "first_line": 3,
            "last_line": 4, "start_char": 1, "line_characters": None, "output_total_lines": 4,
            "output_omitted": False, "next_call": None,
        },
    )  # fmt: skip
    empty = ReadAnswer(kernel=KERNEL, now=NOW, execution=execution())
    has(empty, {"text": "", "first_line": None, "last_line": None})


def test_a_search_says_how_the_query_was_read() -> None:
    result = SearchResult(1, 2, [(2, "M", "tt"), (3, "C", "x")], 3)
    answer = SearchAnswer(
        kernel=KERNEL, now=NOW, execution=execution(), query="t", interpretation="regex", result=result
    )
    has(
        answer,
        {
            "query": "t", "query_interpretation": "regex", "matching_lines": 1, "matches": 2,
            "text": "M 2 | tt\nC 3 | x", "output_total_lines": 3,
        },
    )  # fmt: skip


def test_an_interrupt_that_did_nothing_is_not_ok_and_says_why() -> None:
    has(
        InterruptAnswer(kernel=KERNEL, now=NOW, result="idle"),
        {"ok": False, "status": "idle", "message": "report-cleanup runs no cell. Nothing was interrupted."},
    )
    done = InterruptAnswer(
        kernel=KERNEL, now=NOW, result="interrupted", execution=execution(State.INTERRUPTED), survivors=[(9, "sleep")]
    )
    has(done, {"ok": True, "message": None, "execution": 7, "survivors": [{"pid": 9, "command": "sleep"}]})


def test_a_restart_names_what_it_ended() -> None:
    answer = RestartAnswer(
        kernel=KERNEL, now=NOW, ended_execution=execution(State.KILLED), ended_processes=3, attached_clients=["qt"],
        ended_watches=["build"],
        old_process=1, old_pid=1, new_process=2, new_pid=4711,
    )  # fmt: skip
    has(
        answer,
        {
            "status": "restarted", "ended_execution": 7, "ended_processes": 3, "attached_clients": ["qt"],
            "ended_watches": ["build"],
            "old_process": 1, "new_process": 2, "new_pid": 4711,
        },
    )  # fmt: skip


def test_status_has_the_kernel_and_its_executions() -> None:
    answer = StatusAnswer(
        kernel=KERNEL, now=NOW, workspace="/w", python="/p", started_at=NOW, recent=execution(), idle_since=NOW,
        last_five=[execution()],
    )  # fmt: skip
    has(
        answer,
        {
            "status": "running", "workspace": "/w", "workspace_resolution": "launch_cwd", "python": "/p",
            "kernel_started": True, "kernel_restarting": False, "kernel_pid": 4711, "busy": False,
            "current_execution": None, "recent_execution": 7, "idle_since": "2027-01-15T08:00:00.000+00:00",
            "executions": [
                {
                    "execution": 7, "process": 2, "elapsed_seconds": 54.3, "status": "completed",
                    "source": "train(model)",
                }
            ],
        },
    )  # fmt: skip
