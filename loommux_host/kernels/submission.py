"""A cell on its way to a kernel, and how waiters learn that something changed.

No I/O and no rules: `process_life` decides what becomes of a submission, `kernel` waits for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from loommux_host.kernels.mirror import View
from loommux_kernel.shared.protocol import Reply, Submission


class Pulse:
    """Wakes everyone who waits, at every change; waiters look again for what they wait for."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[bool]] = set()

    def beat(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(True)

    async def wait(self, seconds: float) -> bool:
        """Whether something changed within `seconds`."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(seconds, lambda: waiter.done() or waiter.set_result(False))
        self._waiting.add(waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiting.discard(waiter)


@dataclass
class Sent:
    """A submission on its way: exactly one of the four ends it, `view` may change to ended later."""

    submission: Submission
    source: str
    view: View | None = None
    reply: Reply | None = None
    overtaken: bool = False
    lost: bool = False
    #: Lost with a process whose records do not tell whether it had begun.
    unknown: bool = False

    def told(self, sequence: int) -> bool:
        """Whether the reply is there, and with `sequence` all that the kernel said before it."""
        return self.reply is not None and sequence >= self.reply.sequence

    @property
    def decided(self) -> bool:
        return self.view is not None or self.overtaken or self.lost
