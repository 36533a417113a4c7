"""The two steps of the ordered queue between which an execution's output lies: its begin and its end in the record.

Owns what the record and whoever listens are told then. `output` puts them, the drain does them on the IOPub thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from loommux_kernel.capture.drain import Known, Recorder
from loommux_kernel.executions.gate import Execution
from loommux_kernel.shared.protocol import UNRECORDED_BODY_BYTES, Counts, ExecutionEnded, ExecutionStarted, State


@dataclass(frozen=True)
class Finished:
    """What the record of an ended execution holds; `body` only when it is small."""

    counts: Counts = field(default_factory=Counts)
    body: str | None = None
    displays: int = 0
    recorded: bool = True


def label_of(execution: Execution) -> str:
    """What stands before a notice of that execution."""
    return "" if execution.number is None else f"In [{execution.number}]"


def begin(execution: Execution, header: dict[str, Any], relay: str | None, recorder: Recorder) -> None:
    recorder.know(execution.serial, Known(execution.number, header))
    if recorder.writer is not None:
        recorder.writer.begin(
            execution.serial, execution.number, execution.origin, execution.source,
            execution.submitted_at, execution.started_at,
        )  # fmt: skip
        if relay is not None:
            recorder.writer.relay(execution.serial, relay)
    recorder.tell(
        ExecutionStarted,
        at=execution.started_at,
        serial=execution.serial,
        number=execution.number,
        origin=execution.origin,
        submission=execution.submission,
        submitted_at=execution.submitted_at,
        source=execution.source,
    )


def end(
    execution: Execution,
    outcome: tuple[State, str | None, str | None],
    completed_at: float,
    found: list[Finished],
    recorder: Recorder,
    done: Callable[[], None],
) -> None:
    state, ename, evalue = outcome
    serial, known, writer = execution.serial, recorder.known(execution.serial), recorder.writer
    known.ended = True
    recorder.settle(serial)
    if writer is not None:
        writer.end(serial, state, completed_at, ename, evalue)
        found.append(Finished(writer.counts(serial), writer.body(serial), known.displays))
    recorder.tell(
        ExecutionEnded,
        at=completed_at,
        serial=serial,
        number=execution.number,
        state=state,
        counts=found[0].counts if found else Counts(),
        ename=ename,
        evalue=evalue,
        displays=known.displays,
    )

    def committed() -> None:
        if writer is not None and writer.waiting and found:  # the disk is full: memory is all there is
            found[0] = replace(found[0], body=writer.body(serial, UNRECORDED_BODY_BYTES))
        done()

    recorder.after_commit(committed)
