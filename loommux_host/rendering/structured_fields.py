"""The fields of structured mode (contract 3.2): the same facts as the text, for programs.

Pure functions from answers to JSON values. Called by `message`, which says what of an
output may be carried. Times are ISO 8601 in UTC, durations seconds, sizes bytes. A field
without a value is null, so that each kind of answer always has the same fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from loommux_host.facts.result_limits import SOURCE_CHARACTERS
from loommux_host.facts.results import (
    Answer,
    CellAnswer,
    Death,
    ExecutionFacts,
    ExecutionStatusAnswer,
    InterruptAnswer,
    KernelFacts,
    ReadAnswer,
    Refusal,
    RestartAnswer,
    SearchAnswer,
    StatusAnswer,
    WatchAnswer,
)
from loommux_host.facts.status_words import NOTHING_DONE
from loommux_host.rendering import sentences
from loommux_host.rendering.forgery_guard import shown
from loommux_host.rendering.size_choices import Carried
from loommux_kernel.shared.protocol import Counts, State, Stream

Fields = dict[str, Any]


def fields_of(answer: Answer, carried: Carried, environment: Sequence[str]) -> Fields:
    """All fields of `answer`; `environment` are the lines of the envelope."""
    return {
        "ok": is_ok(answer),
        "status": status_of(answer),
        **_own(answer, carried),
        "kernel": _kernel(answer.kernel),
        "notices": list(environment),
        "binding": answer.binding,
        "lease_alert": answer.lease_alert,
    }


def is_ok(answer: Answer) -> bool:
    """False for whatever did nothing."""
    if isinstance(answer, InterruptAnswer):
        return answer.result not in NOTHING_DONE
    return not isinstance(answer, Refusal)


def status_of(answer: Answer) -> str:
    """The status word: of a refusal, of what was done, of the execution, of the kernel."""
    match answer:
        case Refusal():
            return answer.status
        case InterruptAnswer():
            return answer.result
        case RestartAnswer():
            return "restarted"
        case StatusAnswer():
            return answer.state
        case WatchAnswer():
            return sentences.watch_word(answer)
        case CellAnswer() | ExecutionStatusAnswer() | ReadAnswer() | SearchAnswer() if answer.execution is not None:
            return answer.execution.state
    return ""


def _own(answer: Answer, carried: Carried) -> Fields:
    match answer:
        case Refusal():
            return {"message": answer.message}
        case CellAnswer():
            return _cell(answer, carried)
        case ExecutionStatusAnswer():
            return _execution_status(answer)
        case ReadAnswer():
            return _read(answer, carried)
        case SearchAnswer():
            return _search(answer, carried)
        case InterruptAnswer():
            return _interrupt(answer)
        case RestartAnswer():
            return _restart(answer)
        case StatusAnswer():
            return _status(answer)
        case WatchAnswer():
            return _watch(answer)
    return {}


def _cell(answer: CellAnswer, carried: Carried) -> Fields:
    facts = answer.execution
    return {
        **_execution(facts, answer.now),
        "output_text": _shown(carried.text),
        "stdout": _shown(carried.streams.get(Stream.STDOUT)),
        "stderr": _shown(carried.streams.get(Stream.STDERR)),
        "result_text": _shown(carried.streams.get(Stream.RESULT)),
        "error": _error(facts),
        "death": _death(facts.death) if facts else None,
        **_omission(carried, facts.counts if facts else Counts()),
        "recent_lines": [shown(line) for line in answer.recent],
        "silent_seconds": _seconds(answer.silent_seconds),
        "wait_ended_by": answer.ended_by,
    }


def _execution_status(answer: ExecutionStatusAnswer) -> Fields:
    facts = answer.execution
    own: Fields = {
        **_execution(facts, answer.now),
        "error": _error(facts),
        "death": _death(facts.death) if facts else None,
        **_totals(facts.counts if facts else Counts()),
        "silent_seconds": _seconds(answer.silent_seconds),
    }
    if facts is not None:
        own |= {
            "submitted_at": _time(facts.submitted_at),
            "started_at": _time(facts.started_at),
            "updated_at": _time(facts.updated_at),
            "completed_at": _time(facts.completed_at),
            "origin": {"kind": facts.origin.kind, "label": facts.origin.label, "client": facts.origin.client},
            "kernel_pid": facts.kernel_pid,
            "late_lines": facts.late_lines,
            "source": facts.source[:SOURCE_CHARACTERS],
        }
    return own


def _read(answer: ReadAnswer, carried: Carried) -> Fields:
    return {
        **_execution(answer.execution, answer.now),
        "stream": answer.stream,
        "text": _shown(carried.text),
        "line_range": answer.line_range,
        "first_line": answer.first if answer.first <= answer.last else None,
        "last_line": answer.last if answer.first <= answer.last else None,
        "start_char": answer.start_char,
        "line_characters": answer.line_characters,
        **_omission(carried, answer.total),
    }


def _search(answer: SearchAnswer, carried: Carried) -> Fields:
    result = answer.result
    return {
        **_execution(answer.execution, answer.now),
        "stream": answer.stream,
        "query": answer.query,
        "query_interpretation": answer.interpretation,
        "matching_lines": result.matching_lines if result else 0,
        "matches": result.matches if result else 0,
        "text": _shown(carried.text),
        "output_omitted": carried.omitted is not None,
        "output_omitted_reason": carried.omitted,
        "head_lines": [shown(line) for line in carried.head],
        "tail_lines": [shown(line) for line in carried.tail],
        "next_call": carried.next_call,
        "output_total_lines": result.total_lines if result else 0,
    }


def _interrupt(answer: InterruptAnswer) -> Fields:
    facts = answer.execution
    return {
        **_execution(facts, answer.now),
        "message": None if is_ok(answer) else sentences.interrupt(answer)[0].removeprefix(f"{answer.result}: "),
        "execution_status": facts.state if facts else None,
        "error": _error(facts),
        "own_handler": answer.own_handler,
        "ended_processes": answer.ended_processes,
        "still_alive": _named(answer.still_alive),
        "survivors": _named(answer.survivors),
    }


def _restart(answer: RestartAnswer) -> Fields:
    ended = answer.ended_execution
    return {
        "ended_execution": ended.number if ended else None,
        "ended_processes": answer.ended_processes,
        "left_processes": _named(answer.left),
        "ended_watches": answer.ended_watches,
        "goes_on": answer.goes_on,
        "attached_clients": answer.attached_clients,
        "old_process": answer.old_process or None,
        "old_pid": answer.old_pid,
        "new_process": answer.new_process,
        "new_pid": answer.new_pid,
    }


def _watch(answer: WatchAnswer) -> Fields:
    watch = answer.watch
    return {
        "watch": watch and watch.name,
        "execution": watch and watch.number,
        "process": answer.process,
        "started_at": _time(watch.started_at) if watch else None,
        "ended_at": _time(watch.ended_at) if watch else None,
        "error": {"ename": watch.ename, "evalue": (watch.evalue or "")[:2000]} if watch and watch.ename else None,
        "pending": [one.name for one in answer.pending],
        "wait_ended_by": answer.ended_by,
    }


def _status(answer: StatusAnswer) -> Fields:
    kernel = answer.kernel
    return {
        "workspace": answer.workspace,
        "workspace_resolution": answer.workspace_resolution,
        "python": answer.python,
        "python_why": answer.python_why,
        "kernel_started": answer.started_at is not None,
        "kernel_started_at": _time(answer.started_at),
        "kernel_restarting": answer.restarting,
        "kernel_pid": kernel.pid if kernel else None,
        "busy": kernel.busy if kernel else False,
        "stale_seconds": _seconds(kernel.stale_seconds) if kernel else None,
        "current_execution": answer.current.number if answer.current else None,
        "recent_execution": answer.recent.number if answer.recent else None,
        "idle_since": _time(answer.idle_since),
        "waiting_for_input": answer.waiting_for_input,
        "held_at": answer.held_at,
        "executions": [
            {**_execution(facts, answer.now), "status": facts.state, "source": facts.source.strip()[:200]}
            for facts in answer.last_five
        ],
        "children": answer.children,
        "watches": answer.watches,
        "others": answer.others,
        "attach_command": answer.attach_command,
        "ended_processes": [_death(death) for death in answer.deaths],
        "last_notices": [f"{n.label} · {n.text}" if n.label else n.text for n in answer.last_notices],
    }


def _execution(facts: ExecutionFacts | None, now: float) -> Fields:
    if facts is None:
        return {"execution": None, "process": None, "elapsed_seconds": None}
    elapsed = _seconds(max(0.0, facts.elapsed(now)))
    return {"execution": facts.number, "process": facts.process, "elapsed_seconds": elapsed}


def _error(facts: ExecutionFacts | None) -> Fields | None:
    if facts is None or facts.ename is None or facts.state not in (State.ERROR, State.INTERRUPTED):
        return None
    return {"ename": facts.ename[:200], "evalue": (facts.evalue or "")[:2000]}


def _omission(carried: Carried, total: Counts) -> Fields:
    return {
        "output_omitted": carried.omitted is not None,
        "output_omitted_reason": carried.omitted,
        "head_lines": [shown(line) for line in carried.head],
        "tail_lines": [shown(line) for line in carried.tail],
        "next_call": carried.next_call,
        **_totals(total),
    }


def _totals(total: Counts) -> Fields:
    return {
        "output_total_lines": total.lines,
        "output_total_characters": total.characters,
        "output_total_utf8_bytes": total.utf8_bytes,
    }


def _death(death: Death | None) -> Fields | None:
    if death is None:
        return None
    return {
        "process": death.process,
        "at": _time(death.at),
        "cause": death.cause,
        "by": death.by,
        "exit_code": death.code,
        "signal": death.signal,
        "reason": death.reason,
        "max_rss_bytes": death.max_rss_bytes,
        "ended_processes": death.ended_processes,
        "left_processes": _named(death.left),
    }


def _named(processes: Sequence[tuple[int, str]]) -> list[Fields]:
    return [{"pid": pid, "command": command} for pid, command in processes]


def _kernel(kernel: KernelFacts | None) -> Fields | None:
    if kernel is None:
        return None
    return {"id": kernel.id, "name": kernel.name, "busy": kernel.busy, "pid": kernel.pid, "process": kernel.process}


def _seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _shown(text: str | None) -> str | None:
    return None if text is None else shown(text)


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
