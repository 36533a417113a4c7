"""What a kernel needs of an operating system process, whoever starts it.

`launcher` provides these; tests have simpler ones. Called by `kernels.kernel` and `kernels.process_life`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from loommux_host.facts.results import Death
from loommux_kernel.shared.protocol import LaunchFile


class StartFailed(Exception):
    """A process did not get ready. `log_tail` is the end of its own log, at most 20 lines."""

    def __init__(self, reason: str, log_tail: str = "") -> None:
        super().__init__(reason)
        self.log_tail = log_tail


class Exit(Protocol):
    """How a process ended, as the launcher saw it."""

    @property
    def at(self) -> float: ...
    @property
    def code(self) -> int | None: ...
    @property
    def signal(self) -> str | None: ...
    @property
    def max_rss_bytes(self) -> int | None: ...
    @property
    def ended_processes(self) -> int: ...
    @property
    def left(self) -> tuple[tuple[int, str], ...]: ...
    @property
    def faults(self) -> str | None: ...
    @property
    def reason(self) -> str | None: ...


class ProcessInfo(Protocol):
    """A process that a kernel's process started."""

    @property
    def pid(self) -> int: ...
    @property
    def command(self) -> str: ...


class Process(Protocol):
    """One operating system process, as `launcher` hands it out."""

    @property
    def pid(self) -> int: ...
    @property
    def process(self) -> int: ...
    @property
    def started_at(self) -> float: ...
    @property
    def launch(self) -> LaunchFile: ...
    async def wait(self) -> Exit: ...
    async def end(self, *, grace: float) -> Exit: ...
    async def descendants(self) -> Sequence[ProcessInfo]: ...


def death_of(process: int, exit_: Exit, ending: tuple[str, str | None, str | None] | None) -> Death:
    """The death of a process as it is told; `ending` is why it was ended on purpose, and by whom in words."""
    cause, by, _ = ending or ("signal" if exit_.signal else "exit", None, None)
    return Death(
        process=process,
        at=exit_.at,
        cause=cause,
        by=by,
        code=exit_.code,
        signal=exit_.signal,
        reason=exit_.reason,
        max_rss_bytes=exit_.max_rss_bytes,
        stacks=exit_.faults,
        ended_processes=exit_.ended_processes,
        left=exit_.left,
    )
