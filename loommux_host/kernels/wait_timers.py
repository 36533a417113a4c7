"""The two timers of a call, and the reports it sends while it waits (contract 3.3).

Knows when to stop waiting, not for what. Called by `kernel`, `interrupt_wait` and `usecases.service`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from loommux_host.kernels.process_life import Life

log = logging.getLogger(__name__)

#: Seconds between two progress messages; the contract promises one every five.
PROGRESS_SECONDS = 4.0

Progress = Callable[[float, str], Awaitable[None]]


@dataclass(frozen=True)
class Patience:
    """Seconds until a call ends in any case, and until it ends for lack of output."""

    timeout: float = 10.0
    silence: float = 10.0


async def follow(
    life: Life, over: Callable[[], bool], patience: Patience, shutdown: Callable[[], bool] = lambda: False
) -> str | None:
    """Wait until `over`; else ``silence``, ``timeout`` or ``shutdown`` says what ended the waiting.

    Silence counts from the later of now and the last output of any cell of the process.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not over():
        moment = loop.time()
        quiet_at = max(began, life.activity) + patience.silence
        late_at = began + patience.timeout
        if shutdown():
            return "shutdown"
        if moment >= quiet_at:
            return "silence"
        if moment >= late_at:
            return "timeout"
        await life.pulse.wait(min(quiet_at, late_at) - moment)
    return None


@contextlib.asynccontextmanager
async def reporting(progress: Progress | None, describe: Callable[[], tuple[float, str]]) -> AsyncIterator[None]:
    """While the block runs, send `describe()`, elapsed seconds and the last line, again and again."""
    if progress is None:
        yield
        return
    task = asyncio.create_task(_report(progress, describe))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _report(progress: Progress, describe: Callable[[], tuple[float, str]]) -> None:
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        try:
            await progress(*describe())
        except Exception:  # a client that cannot be told of progress is still waiting for the result
            log.debug("a progress message could not be sent", exc_info=True)
