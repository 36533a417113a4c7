"""A cell on its way to a kernel, and how waiters learn that something changed.

No I/O and no rules: `life` decides what becomes of a submission, `kernel` waits for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from loommux_host.mirror import View
from loommux_kernel.protocol import Reply, Submission


class Pulse:
    """Wakes everyone who waits, at every change; waiters look again for what they wait for."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def beat(self) -> None:
        if self._next is not None and not self._next.done():
            self._next.set_result(None)
        self._next = None

    async def wait(self, seconds: float) -> bool:
        """Whether something changed within `seconds`."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait({self._next}, timeout=max(0.0, seconds))
        return bool(done)


@dataclass
class Sent:
    """A submission on its way: exactly one of the four ends it, `view` may change to ended later."""

    submission: Submission
    source: str
    view: View | None = None
    reply: Reply | None = None
    overtaken: bool = False
    lost: bool = False

    @property
    def decided(self) -> bool:
        return self.view is not None or self.overtaken or self.lost
