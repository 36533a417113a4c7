"""What the service answers: plain facts, no wording.

`usecases.service` fills these, `rendering.message` words them, the faces hand them out. Times are
seconds since the epoch, durations are seconds, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loommux_kernel.shared.protocol import Counts, Origin, State, Stream

if TYPE_CHECKING:  # a server's answer to its first request does not wait for the record store
    from loommux_host.facts.watches import Watch
    from loommux_kernel.shared.record_types import DisplayRecord, SearchResult


@dataclass(frozen=True)
class KernelFacts:
    """The kernel an answer is about, as its mirror knows it.

    `stale_seconds` is how long the kernel itself has not answered while it
    should have, None when it answers.
    """

    id: str
    name: str
    process: int
    pid: int | None
    busy: bool
    stale_seconds: float | None = None


@dataclass(frozen=True)
class Death:
    """How a kernel process ended (contract 5).

    `cause` is ``restart``, ``shutdown``, ``recycle``, ``exit`` (`code` says which)
    or ``signal`` (`signal` is the name, ``SIGKILL``). `stacks` are faulthandler's
    for a fatal signal. `max_rss_bytes` is the highest of the process and its children.
    `ended_processes` counts what it had started and was ended with it; `left` are pids and
    commands of what could not be: programs that run as another user.
    """

    process: int
    at: float
    cause: str
    by: str | None = None
    code: int | None = None
    signal: str | None = None
    max_rss_bytes: int | None = None
    stacks: str | None = None
    ended_processes: int = 0
    left: tuple[tuple[int, str], ...] = ()
    #: What the signal was for, as far as that is known: a limit that was reached, say.
    reason: str | None = None


@dataclass(frozen=True)
class ExecutionFacts:
    """One execution without its output."""

    serial: int
    number: int | None
    process: int
    origin: Origin
    source: str
    state: State
    submitted_at: float
    started_at: float
    updated_at: float
    completed_at: float | None
    counts: Counts
    kernel_pid: int | None = None
    ename: str | None = None
    evalue: str | None = None
    late_lines: int = 0
    death: Death | None = None
    #: The bodies were dropped for space, or the middle was; words of the store.
    dropped: str | None = None

    def elapsed(self, now: float) -> float:
        """Seconds from submission to the end, or to `now`."""
        return (self.completed_at if self.completed_at is not None else now) - self.submitted_at


@dataclass(frozen=True)
class Notice:
    """One line of the envelope. `label` is empty for the shown execution's own."""

    text: str
    label: str = ""


@dataclass
class Answer:
    """Common to all answers.

    `notices` is the envelope, in order. Either `delivered` is called once the result was
    handed over, and only then has the caller been told, or `lost` when it will not be.
    """

    kernel: KernelFacts | None = None
    notices: list[Notice] = field(default_factory=list)
    binding: str | None = None
    lease_alert: str | None = None
    now: float = 0.0
    delivered: Callable[[], None] = lambda: None
    lost: Callable[[], None] = lambda: None


@dataclass
class Refusal(Answer):
    """Nothing was done. `status` is a word of the contract, `message` the text."""

    status: str = ""
    message: str = ""
    facts: dict[str, object] = field(default_factory=dict)


@dataclass
class CellAnswer(Answer):
    """Of run_cell and wait: one execution, with output when it has ended.

    `body` is the whole combined output: absent (None) while running, or when it
    cannot be within the limits (`body_omitted` then says why:
    ``running``, ``token_limit_exceeded``, ``size_limit_exceeded``, ``output_unreadable``, ``output_gone``,
    ``token_limit_unavailable`` with `omission_reason`). `recent` are the last five lines that are not blank, `tail` the
    last lines for an omission, `head` the first ones of a full output that is too large.
    `ended_by` says which timer ended the call: ``silence``, ``timeout`` or ``shutdown``; for that
    `server_ends_by` says what has asked the server to stop, if anything has.
    """

    execution: ExecutionFacts | None = None
    full_output: bool = False
    body: str | None = None
    body_omitted: str | None = None
    omission_reason: str = ""
    streams: dict[Stream, str] = field(default_factory=dict)
    recent: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    head: list[str] = field(default_factory=list)
    displays: list[DisplayRecord] = field(default_factory=list)
    silent_seconds: float | None = None
    ended_by: str | None = None
    server_ends_by: str | None = None
    #: An older process was used because this one has no executions yet.
    older_process: bool = False


@dataclass
class WatchAnswer(Answer):
    """Of wait with `watch`: the one that ended, or that was named; None when none of several has ended.

    `pending` are those that go on. `ended_by` as in `CellAnswer`.
    """

    watch: Watch | None = None
    pending: list[Watch] = field(default_factory=list)
    ended_by: str | None = None
    process: int = 0


@dataclass
class ExecutionStatusAnswer(Answer):
    execution: ExecutionFacts | None = None
    silent_seconds: float | None = None
    older_process: bool = False


@dataclass
class ReadAnswer(Answer):
    """Lines `first` to `last` (1-based, inclusive; first > last: none) of a stream.

    When they are more than a result can carry, `lines` are only the first ones, enough to
    exceed it, `tail` the last ones, and `size` says how much they all are. Each line begins at
    its column `start_char` and is cut to `max_chars`; when it is only one line,
    `line_characters` is how many it has in all.
    """

    execution: ExecutionFacts | None = None
    stream: Stream = Stream.COMBINED
    first: int = 1
    last: int = 0
    total: Counts = field(default_factory=Counts)
    lines: list[str] = field(default_factory=list)
    tail: list[str] | None = None
    size: Counts | None = None
    line_range: str | None = None
    start_char: int = 1
    max_chars: int | None = None
    line_characters: int | None = None
    older_process: bool = False


@dataclass
class SearchAnswer(Answer):
    """Rows are cut already; `max_chars` is what was asked for."""

    execution: ExecutionFacts | None = None
    stream: Stream = Stream.COMBINED
    query: str = ""
    interpretation: str = "literal"
    result: SearchResult | None = None
    max_chars: int | None = None
    older_process: bool = False


@dataclass
class InterruptAnswer(Answer):
    """`result` is interrupted, ended, interrupt_sent, idle or not_running (contract 4); `asked` is the number given.

    Of the processes that the cell had started `ended_processes` have ended, `still_alive` have
    not although they were signalled, and `survivors` were left alone.
    """

    result: str = ""
    asked: int | None = None
    execution: ExecutionFacts | None = None
    detail: str = ""
    #: Whether a handler of the cell's own has taken the interrupt.
    own_handler: bool = False
    ended_processes: int = 0
    still_alive: list[tuple[int, str]] = field(default_factory=list)
    survivors: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class RestartAnswer(Answer):
    ended_execution: ExecutionFacts | None = None
    ended_processes: int = 0
    #: Processes that could not be ended, as `Death.left`.
    left: tuple[tuple[int, str], ...] = ()
    ended_watches: list[str] = field(default_factory=list)
    #: Cells that its code had sent to other kernels.
    goes_on: list[str] = field(default_factory=list)
    attached_clients: list[str] = field(default_factory=list)
    old_process: int = 0
    old_pid: int | None = None
    new_process: int = 0
    new_pid: int | None = None


@dataclass
class StatusAnswer(Answer):
    state: str = "running"
    started_at: float | None = None
    restarting: bool = False
    workspace: str = ""
    workspace_resolution: str = "launch_cwd"
    python: str = ""
    python_why: str = ""
    current: ExecutionFacts | None = None
    recent: ExecutionFacts | None = None
    last_five: list[ExecutionFacts] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    watches: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    attach_command: str | None = None
    last_notices: list[Notice] = field(default_factory=list)
    idle_since: float | None = None
    deaths: list[Death] = field(default_factory=list)
    waiting_for_input: str | None = None
    #: Where something holds the main thread though no cell runs.
    held_at: str | None = None
