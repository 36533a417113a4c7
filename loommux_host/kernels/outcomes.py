"""What came of asking a kernel for something. Facts for `usecases.service`; filled by `kernel`."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from loommux_host.facts.results import Death
from loommux_host.kernels.mirror import View
from loommux_host.kernels.process_life import Life
from loommux_host.kernels.submission import Sent

#: How long whoever looks waits for the records of a process that has just died; it takes milliseconds.
ACCOUNT_SECONDS = 1.0


class KernelStartFailed(Exception):
    """No process could be started in two tries. `log_tail` is the last of its own log."""

    def __init__(self, reason: str, log_tail: str) -> None:
        super().__init__(reason)
        self.log_tail = log_tail


class KernelClosed(Exception):
    """The kernel was retired, or the server is stopping."""


@dataclass(frozen=True)
class Ran:
    """The cell was accepted. `ended_by` is None when it has ended, else the timer that ended the call."""

    life: Life
    view: View
    sent: Sent
    ended_by: str | None


@dataclass(frozen=True)
class Busy:
    """Nothing was run. `view` is what runs, or ran first; `sent` a cell on its way that has no view yet."""

    life: Life
    view: View | None
    sent: Sent | None = None

    @property
    def awaits_input(self) -> bool:
        """Whether what runs waits for input from the client that sent it."""
        return self.view is not None and self.life.mirror.waiting_for_input == self.view.serial


@dataclass(frozen=True)
class NotTaken:
    """Nothing was run: the process ended first (`death`), or it never took the cell.

    `unknown`: after a death whose records cannot be read, nobody can tell.
    """

    life: Life
    death: Death | None
    seconds: float
    withdrawn: bool
    unknown: bool = False


@dataclass(frozen=True)
class Restarted:
    """`started` is how many processes of the old one lived when it was asked to leave."""

    old: Life | None
    new: Life
    killed: View | None
    clients: tuple[str, ...]
    watches: tuple[str, ...]
    started: int


async def accounted(life: Life) -> None:
    """Of a process that has just died, wait for its records; then everything says the same of it."""
    if life.gone and not life.finished.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ACCOUNT_SECONDS):
                await life.finished.wait()
