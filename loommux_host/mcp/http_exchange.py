"""One HTTP exchange as both its ends see it: the ASGI app outside, the tool's handler inside.

Owns what the SDK does not pass on: that the client's connection was dropped, and that a
result was handed to it. `http` makes one for every request and puts it into the scope;
`sdk` asks for it. Without one (a client in memory) calls are neither cut off nor late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from loommux_host.mcp.tool_calls import Outcome

SCOPE_KEY = "loommux.exchange"


class CutOff(Exception):
    """The connection was closed before the call ended; nobody reads what comes of it."""


class Exchange:
    """The state of one request and its response."""

    def __init__(self) -> None:
        self.dropped = False
        self._cut_off: list[Callable[[], None]] = []
        self._waiting: list[Outcome] = []

    @classmethod
    def of(cls, request: Any) -> Exchange | None:
        """That of a Starlette request; None for any other transport."""
        return request.scope.get(SCOPE_KEY) if request is not None else None

    def drop(self) -> None:
        """The connection is gone before the response was complete."""
        self.close()
        for cut_off in self._cut_off:
            cut_off()

    def close(self) -> None:
        """Nothing more goes out; what still waits for that is lost."""
        self.dropped = True
        waiting, self._waiting = self._waiting, []
        for outcome in waiting:
            outcome.lost()

    def sent(self) -> None:
        """A part of the response went out; what was waiting for that has been handed over."""
        waiting, self._waiting = self._waiting, []
        for outcome in waiting:
            outcome.delivered()

    def carries(self, outcome: Outcome) -> None:
        """The next part of the response is that result."""
        if self.dropped:
            outcome.lost()
        else:
            self._waiting.append(outcome)

    @contextmanager
    def cutting_off(self) -> Iterator[None]:
        """Cancel the block when the connection is dropped; it then raises `CutOff`."""
        with anyio.CancelScope() as scope:
            if self.dropped:
                scope.cancel()
            self._cut_off.append(scope.cancel)
            try:
                yield
            finally:
                self._cut_off.remove(scope.cancel)
        if scope.cancelled_caught:
            raise CutOff("The connection was closed before the call ended.")
