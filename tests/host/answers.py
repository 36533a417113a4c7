"""Answers to render, with few words, and answers that a service gave, taken as a face takes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from loommux_host.facts.result_limits import Limits
from loommux_host.facts.results import Answer, CellAnswer, ExecutionFacts, KernelFacts, Refusal
from loommux_host.rendering.message import Rendered, TextBlock, render
from loommux_kernel.shared.protocol import Counts, Origin, OriginKind, State

A = TypeVar("A", bound=Answer)
NOW = 1_800_000_000.0
KERNEL = KernelFacts("k1", "report-cleanup", process=2, pid=4711, busy=False)
SESSION = Origin(OriginKind.SESSION, "claude-1a2b3c4d", "caller-1")


def counts(text: str) -> Counts:
    lines = text.count("\n") + (not text.endswith("\n") and text != "")
    return Counts(lines, len(text), len(text.encode(errors="replace")))


def execution(state: State = State.COMPLETED, seconds: float = 54.3, **changes: Any) -> ExecutionFacts:
    """In [7] of process 2, which took `seconds` or has run for them."""
    began = NOW - seconds
    facts = ExecutionFacts(
        serial=7, number=7, process=2, origin=SESSION, source="train(model)\n", state=state, submitted_at=began,
        started_at=began, updated_at=NOW, completed_at=None if state is State.RUNNING else NOW, counts=Counts(),
        kernel_pid=4711,
    )  # fmt: skip
    return replace(facts, **changes)


def cell(body: str | None = "", state: State = State.COMPLETED, seconds: float = 54.3, **more: Any) -> CellAnswer:
    """The answer of run_cell for In [7]; facts of the execution may be given as `facts`."""
    facts = {"counts": counts(body or ""), **more.pop("facts", {})}
    return CellAnswer(kernel=KERNEL, now=NOW, execution=execution(state, seconds, **facts), body=body, **more)


def rendered(answer: Answer, structured: bool = False, **limits: Any) -> Rendered:
    return render(answer, structured=structured, limits=Limits(**limits))


def text_of(answer: Answer, **limits: Any) -> str:
    """The text of a result that has one block."""
    (block,) = rendered(answer, **limits).blocks
    assert isinstance(block, TextBlock)
    return block.text


def fields_of(answer: Answer, **limits: Any) -> dict[str, Any]:
    fields = rendered(answer, structured=True, **limits).structured
    assert fields is not None
    return fields


def of(kind: type[A], answer: Answer) -> A:
    """The answer, handed over."""
    assert isinstance(answer, kind), answer
    answer.delivered()
    return answer


def refused(answer: Answer) -> tuple[str, str]:
    refusal = of(Refusal, answer)
    return refusal.status, refusal.message
