"""A service whose answers a test decides, for the faces in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from loommux_host.facts.result_limits import Limits
from loommux_host.facts.results import Answer, CellAnswer, ExecutionFacts, Refusal
from loommux_host.mcp.tool_calls import Calls
from loommux_host.mcp.tools import TOOLS
from loommux_host.usecases.service import Service
from loommux_kernel.shared.protocol import Counts, Origin, OriginKind, State
from loommux_kernel.shared.record_types import DisplayRecord

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


def cell_answer(body: str, *, image: bool = False) -> CellAnswer:
    """The result of In [7], completed after a second."""
    execution = ExecutionFacts(
        serial=7, number=7, process=1, origin=Origin(OriginKind.SESSION, "agent", "me"), source="1",
        state=State.COMPLETED, submitted_at=100.0, started_at=100.0, updated_at=101.0, completed_at=101.0,
        counts=Counts(body.count("\n"), len(body), len(body.encode())),
    )  # fmt: skip
    displays = [DisplayRecord(1, 1, "display", {"image/png": PIXEL}, {})] if image else []
    return CellAnswer(execution=execution, body=body, displays=displays, now=101.0)


class FakeService:
    """Answers every tool with `answer`, and keeps what it was asked."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Any, dict[str, Any]]] = []
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()
        #: Set to have calls wait for it; a waiting call reports progress once.
        self.release: asyncio.Event | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in TOOLS:
            raise AttributeError(name)

        async def answer(caller: Any, **values: Any) -> Answer:
            self.asked.append((name, caller, values))
            self.began.set()
            if self.release is not None:
                if values.get("progress") is not None:
                    await values["progress"](75.0, "epoch 12")
                try:
                    await self.release.wait()
                except asyncio.CancelledError:
                    self.cancelled.set()
                    raise
            return self.answer

        return answer


def refusal() -> Refusal:
    return Refusal(status="busy", message="In [7] of lab has run for 12.4 s, sent by this session. Nothing was run.")


def calls_on(service: FakeService, *, structured: bool = False) -> Calls:
    """The way to a service that is there already."""
    there: asyncio.Future[Service] = asyncio.get_running_loop().create_future()
    there.set_result(cast(Service, service))
    return Calls(there, Limits(), structured=structured)
