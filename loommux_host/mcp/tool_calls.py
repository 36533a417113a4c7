"""One tool call, whatever protocol brings it: arguments → service → render → result.

Owns the way of a call between a face and the service, and the conversion of rendered
blocks into MCP's JSON. Knows no transport and no protocol library: `stdio` and `sdk`
both call this. The service may still be starting; a call waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from loommux_host.facts.phrases import duration
from loommux_host.facts.refusals import invalid_argument
from loommux_host.facts.result_limits import Limits
from loommux_host.facts.results import Answer, CellAnswer, KernelFacts, ReadAnswer, SearchAnswer
from loommux_host.mcp.parameters import BadArgument
from loommux_host.mcp.tools import TOOLS
from loommux_kernel.shared.protocol import now

if TYPE_CHECKING:  # imported by whoever opens the service; a server answers before
    from loommux_host.rendering.message import Block
    from loommux_host.sessions.callers import Caller
    from loommux_host.usecases.service import Service

log = logging.getLogger(__name__)

#: What Python says when the system gives no thread.
#: Tells the client of a call that goes on: elapsed seconds, the last line of output.
Progress = Callable[[float, str], Awaitable[None]]
#: Tools whose calls may take long enough to report progress.
WAITING = frozenset({"run_cell", "wait"})
#: A body up to so long is rendered at once; a kernel's reply carries no longer ones.
SMALL_CHARACTERS = 5_000


@dataclass(frozen=True)
class Outcome:
    """A tool's result as MCP's JSON, and the kernel it is about.

    `delivered` is to be called once it was handed over, `lost` if it cannot be.
    """

    result: dict[str, Any]
    delivered: Callable[[], None]
    lost: Callable[[], None]
    kernel: KernelFacts | None = None


class Calls:
    """Carries out tool calls on the service that `service` brings."""

    def __init__(self, service: asyncio.Future[Service], limits: Limits, *, structured: bool) -> None:
        self._service, self._limits, self._structured = service, limits, structured

    async def call(
        self,
        identify: Callable[[], Caller],
        name: str,
        arguments: Mapping[str, object],
        progress: Progress | None = None,
    ) -> Outcome:
        """Call the tool `name`, one of `TOOLS`. Cancelling ends the call and nothing else.

        `identify` says who calls; it is asked when the service is there.
        """
        try:
            values = TOOLS[name].arguments(arguments)
        except BadArgument as bad:
            answer: Answer = invalid_argument(bad.parameter, bad.value, bad.allowed)
        else:
            service = await asyncio.shield(self._service)
            try:
                answer = await ask(service, identify(), name, values, progress)
                return await self._outcome(answer)
            except (OSError, MemoryError, RuntimeError) as error:
                from loommux_host.usecases.outcome_mapping import refused_by_the_system  # there since the service is

                answer = refused_by_the_system(name, error)
                answer.now = now()
        return await self._outcome(answer)

    async def _outcome(self, answer: Answer) -> Outcome:
        from loommux_host.rendering.message import render  # imported beside the first kernel's start

        made = partial(render, answer, structured=self._structured, limits=self._limits)
        try:
            rendered = await asyncio.to_thread(made) if is_large(answer) else made()
        except BaseException:
            answer.lost()
            raise
        result: dict[str, Any] = {"content": [wire_block(b) for b in rendered.blocks], "isError": rendered.is_error}
        if rendered.structured is not None:
            result["structuredContent"] = rendered.structured
        return Outcome(result, answer.delivered, answer.lost, answer.kernel)


def is_large(answer: Answer) -> bool:
    """Whether rendering may take longer than the event loop can be held: images, long texts, counting tokens."""
    match answer:
        case CellAnswer():
            return bool(answer.displays or answer.tail or answer.head or len(answer.body or "") > SMALL_CHARACTERS)
        case ReadAnswer() | SearchAnswer():
            return True
        case _:
            return False


def wire_block(block: Block) -> dict[str, Any]:
    """A rendered block as MCP's JSON."""
    from loommux_host.rendering.message import TextBlock

    if not isinstance(block, TextBlock):
        return {"type": "image", "data": block.data, "mimeType": block.mime_type, "_meta": block.meta}
    return {"type": "text", "text": block.text}


async def ask(service: Service, caller: Caller, name: str, values: dict[str, Any], progress: Progress | None) -> Answer:
    """The service's answer to a checked call: its methods are called what the tools are called."""
    method: Callable[..., Awaitable[Answer]] = getattr(service, name)
    if "freeform" in values:
        values["source"] = values.pop("freeform")
    if name in WAITING:
        values["progress"] = progress
    return await method(caller, **values)


def progress_message(elapsed: float, last_line: str) -> str:
    """What a progress message says."""
    return f"{duration(elapsed)} · {last_line}" if last_line else duration(elapsed)
