"""Tool calls that are told as they happen: who, which tool, which kernel, how long, what came back.

Owns the publishing of calls into the `feed`. Stands between a face and `mcp.tool_calls`; changes
nothing, and does nothing as long as there is no feed. Made by `server.http_app` and, over stdio, by `server.host`,
which has a feed once somebody looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from loommux_host.facts.phrases import one_line, without_handles
from loommux_host.mcp.tool_calls import Calls, Outcome, Progress

if TYPE_CHECKING:  # a server over stdio answers before they are there
    from loommux_host.api.feed import Feed
    from loommux_host.sessions.callers import Caller

#: Characters of a result that the feed shows.
SHOWN = 200


class WatchedCalls(Calls):
    """Calls of which the feed tells: who, which tool, how long, what came back in one line."""

    feed: Feed | None = None
    #: Calls so far; an end names the call that it ends.
    _number = 0

    async def call(
        self,
        identify: Callable[[], Caller],
        name: str,
        arguments: Mapping[str, object],
        progress: Progress | None = None,
    ) -> Outcome:
        if self.feed is None:
            return await super().call(identify, name, arguments, progress)
        loop, who = asyncio.get_running_loop(), identify()
        # Not the arguments: the kernel may be named by a handle, which is told to nobody else.
        self._number += 1
        began, facts = loop.time(), {"call": self._number, "tool": name, "caller": one_line(who.label)}
        self.feed.publish("call_began", facts)
        said, ok = "cut off", False
        where: dict[str, str] = {}
        try:
            outcome = await super().call(lambda: who, name, arguments, progress)
            said, ok = _one_line(outcome.result), not outcome.result["isError"]
            if outcome.kernel is not None:
                where = {"kernel": outcome.kernel.id, "name": outcome.kernel.name}
            return outcome
        finally:
            seconds = round(loop.time() - began, 3)
            self.feed.publish("call_ended", {**facts, **where, "seconds": seconds, "ok": ok, "result": said})


def _one_line(result: Mapping[str, Any]) -> str:
    """A result's first line; when that only opens it, with its last, which says how it came out.

    Nothing of the environment's envelope, and no handle: both are told to the caller alone.
    """
    from loommux_host.rendering.forgery_guard import OPENING  # imported beside the first kernel's start

    text = next((block["text"] for block in result["content"] if block["type"] == "text"), "")
    lines = [line for line in text.partition(OPENING)[0].splitlines() if line.strip()] or [""]
    first, last = without_handles(lines[0]), without_handles(lines[-1])
    return one_line(f"{first} {last}" if first.endswith(":") and len(lines) > 1 else first.removesuffix(":"), SHOWN)
