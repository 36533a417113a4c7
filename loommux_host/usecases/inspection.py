"""The use-cases that only look: status, execution_status, read_output, search_output.

The first two answer from the mirrors, at once, whatever the kernel does; the others from
the record store in a worker thread of their own. Called by `service`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from loommux_host.facts.phrases import attached, cell, sender
from loommux_host.facts.refusals import Refused, invalid_argument, refuse
from loommux_host.facts.result_limits import SEARCH_ROW_CHARACTERS
from loommux_host.facts.results import (
    ExecutionFacts,
    ExecutionStatusAnswer,
    Notice,
    ReadAnswer,
    SearchAnswer,
    StatusAnswer,
)
from loommux_host.kernels import line_ranges
from loommux_host.kernels.encryption import is_encrypted
from loommux_host.kernels.journal import NoticeEntry
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.live_facts import Seen
from loommux_host.kernels.process_life import Life
from loommux_host.kernels.record_reads import in_thread, reading
from loommux_host.kernels.registry import Registry
from loommux_host.sessions.callers import Caller, Sessions
from loommux_host.usecases.execution_selection import Chosen, choose, of_record, of_view, taken_in
from loommux_kernel.shared.lines import QUERY_MODES, LineRange, Query, QueryTooExpensive
from loommux_kernel.shared.protocol import Counts, OriginKind, State, Stream, now
from loommux_kernel.shared.records.reader import RecordReader

LAST_EXECUTIONS = 5
LAST_NOTICES = 10
#: Searches at the same time; a bad pattern keeps one of them for two seconds.
SEARCHES = 16
T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Where a server's kernels work: for status."""

    workspace: str
    workspace_resolution: str
    #: The interpreter of the next process, and why it is that one.
    interpreter: Callable[[], tuple[Path, str]]


@dataclass(frozen=True)
class Reading:
    """What read_output was asked for, as it was given."""

    stream: str
    line_range: str | None
    max_chars: int | None
    start_char: int | None = None


@dataclass(frozen=True)
class Searching:
    """What search_output was asked for, as it was given."""

    stream: str
    query: str
    query_mode: str
    before: int
    after: int
    ignore_case: bool
    max_chars: int | None


class Observer:
    """Looks at kernels and their records; changes nothing."""

    def __init__(self, registry: Registry, sessions: Sessions, place: Place) -> None:
        self._registry, self._sessions, self._place = registry, sessions, place
        self._searches: asyncio.Semaphore | None = None

    async def status(self, caller: Caller, kernel: Kernel) -> StatusAnswer:
        seen = await self._seen(kernel)
        await kernel.accounted()
        life = kernel.life  # from here on nothing is waited for: one moment is told, and the notices are of the same
        views = list(islice((v for v in life.mirror.latest() if v.number is not None), LAST_EXECUTIONS)) if life else []
        running = life.mirror.running if life else None
        notices = [
            Notice(entry.text, _said_by(entry, life))
            for entry in kernel.journal.last_notices(LAST_NOTICES)
            if entry.only_for in (None, caller.id)
        ]
        launch = life.process.launch if life else None
        python, why = (launch.python, launch.python_why) if launch and launch.python else self._place.interpreter()
        return StatusAnswer(
            state=kernel.state,
            started_at=life.process.started_at if life and life.alive else None,
            restarting=kernel.restarting,
            workspace=self._place.workspace,
            workspace_resolution=self._place.workspace_resolution,
            python=str(python),
            python_why=why,
            current=of_view(life, running) if life and running else None,
            recent=of_view(life, life.mirror.recent) if life and life.mirror.recent else None,
            last_five=[of_view(life, view) for view in views] if life else [],
            children=[child.name for child in self._registry.children(kernel.id)],
            watches=[watch.name for watch in life.mirror.watches.pending] if life and life.alive else [],
            others=self._others(caller, kernel, seen.clients),
            attach_command=attach_command(life.process.launch.connection_file) if life else None,
            last_notices=notices,
            idle_since=life.mirror.idle_since if life and life.alive and not life.busy else None,
            deaths=[ended.death for ended in kernel.ended if ended.death],
            waiting_for_input=self._waiting_for_input(kernel),
            held_at=None if running else seen.held_at,
        )

    async def execution_status(self, kernel: Kernel, number: int | None, process: int | None) -> ExecutionStatusAnswer:
        chosen = await choose(kernel, number, process)
        return ExecutionStatusAnswer(
            execution=chosen.facts, silent_seconds=silent_seconds(chosen), older_process=chosen.older
        )

    async def read(self, kernel: Kernel, number: int | None, process: int | None, asked: Reading) -> ReadAnswer:
        stream = _stream(asked.stream)
        try:
            wanted = LineRange.parse(asked.line_range)
        except ValueError as error:
            raise Refused(_not_allowed("line_range", asked.line_range, error)) from None
        _positive("max_chars", asked.max_chars)
        _positive("start_char", asked.start_char)
        start_char = 1 if asked.start_char is None else asked.start_char
        chosen = await self._flushed(kernel, number, process)

        def work(reader: RecordReader) -> ReadAnswer:
            facts, total = _sizes(reader, chosen, stream)
            first, last = wanted.resolve(total.lines)
            found = line_ranges.read(
                reader, line_ranges.Range(facts.serial, stream, first, last, total, asked.max_chars, start_char)
            )
            return ReadAnswer(
                execution=facts,
                stream=stream,
                first=first,
                last=last,
                total=total,
                lines=found.lines,
                tail=found.tail,
                size=found.size,
                line_range=asked.line_range,
                start_char=start_char,
                max_chars=asked.max_chars,
                line_characters=reader.line_length(facts.serial, stream, first) if first == last else None,
                older_process=chosen.older,
            )

        return await self._look(chosen, work)

    async def search(self, kernel: Kernel, number: int | None, process: int | None, asked: Searching) -> SearchAnswer:
        stream = _stream(asked.stream)
        query = await in_thread(_query, asked)  # compiling an odd pattern can take seconds
        chosen = await self._flushed(kernel, number, process)
        if self._searches is None:
            self._searches = asyncio.Semaphore(SEARCHES)

        def work(reader: RecordReader) -> SearchAnswer:
            facts, _ = _sizes(reader, chosen, stream)
            return SearchAnswer(
                execution=facts,
                stream=stream,
                query=asked.query,
                interpretation=query.interpretation,
                result=reader.search(
                    facts.serial, stream, query, asked.before, asked.after, asked.max_chars or SEARCH_ROW_CHARACTERS
                ),
                max_chars=asked.max_chars,
                older_process=chosen.older,
            )

        try:
            return await self._look(chosen, work, self._searches)
        except QueryTooExpensive:
            raise Refused(refuse("query_too_expensive", budget="2 s")) from None

    # -- inside --------------------------------------------------------------------

    async def _flushed(self, kernel: Kernel, number: int | None, process: int | None) -> Chosen:
        """The execution, with all that was printed so far in its record."""
        chosen = await choose(kernel, number, process)
        await chosen.life.flush()
        return chosen

    async def _look(
        self, chosen: Chosen, work: Callable[[RecordReader], T], limiter: asyncio.Semaphore | None = None
    ) -> T:
        def in_reader() -> T:
            with reading(chosen.life.records, patient=True) as reader:
                return work(reader)

        async with limiter or contextlib.nullcontext():
            return await in_thread(in_reader)

    async def _seen(self, kernel: Kernel) -> Seen:
        """A kernel that does not answer is not asked."""
        return Seen() if kernel.facts().stale_seconds is not None else await kernel.seen()

    def _others(self, caller: Caller, kernel: Kernel, clients: list[dict[str, Any]]) -> list[str]:
        """Who else works here: sessions that are there, attached clients, and whose cells are remembered."""
        labels = [f"session {label}" for label in self._sessions.others_in(kernel, caller.id)]
        labels += [attached(client) for client in clients]
        here = {caller.id, *(client["client"] for client in clients)}
        views = kernel.life.mirror.latest() if kernel.life else ()
        labels += [
            sender(view.origin)
            for view in views
            if view.origin.client not in here and view.origin.kind not in (OriginKind.STARTUP, OriginKind.SESSION)
        ]
        return list(dict.fromkeys(labels))

    def _waiting_for_input(self, kernel: Kernel) -> str | None:
        serial = kernel.life.mirror.waiting_for_input if kernel.life else None
        view = kernel.life.mirror.by_serial(serial) if kernel.life and serial is not None else None
        return f"{cell(view.number)} waits for input from {sender(view.origin)}" if view else None


def _said_by(entry: NoticeEntry, life: Life | None) -> str:
    """Whose a notice is; numbers begin anew with each process."""
    label = entry.label or (cell(entry.number) if entry.serial is not None else "")
    older = label and life is not None and entry.process != life.process.process
    return f"process {entry.process}, {label}" if older else label


def silent_seconds(chosen: Chosen) -> float | None:
    """How long a running execution has had no output; None when it has ended."""
    if chosen.facts.state is not State.RUNNING:
        return None
    last = (chosen.view.last_output_at if chosen.view else None) or chosen.facts.submitted_at
    return max(0.0, now() - last)


def attach_command(connection_file: str) -> str:
    """What a person types to attach a Jupyter client in a terminal, quoted for the shell."""
    return _client_command("jupyter_console", "console", connection_file)


def qtconsole_command(connection_file: str) -> str:
    """The same for a window."""
    return _client_command("qtconsole", "qtconsole", connection_file)


def _client_command(module: str, subcommand: str, connection_file: str) -> str:
    """With the server's own Python where that has the client; else with wherever Jupyter is installed."""
    if _has_keys(connection_file):  # of which Jupyter's own clients, told of a file, make no use
        ours = "loommux_host.jupyter.console_clients"
        return shlex.join([sys.executable, "-m", ours, subcommand, connection_file])
    client = [sys.executable, "-m", module] if _has(module) else ["jupyter", subcommand]
    return shlex.join([*client, "--existing", connection_file])


@lru_cache(256)
def _has_keys(connection_file: str) -> bool:
    """Whether the kernel is reached over TCP and asks for keys; its file says the same as long as it is there."""
    with suppress(OSError, ValueError):
        return is_encrypted(json.loads(Path(connection_file).read_text()))
    return False


@cache
def _has(module: str) -> bool:
    return find_spec(module) is not None


def _sizes(reader: RecordReader, chosen: Chosen, stream: Stream) -> tuple[ExecutionFacts, Counts]:
    """The execution as the store has it now, and the size of the stream that is read."""
    record = taken_in(reader, chosen)
    if record is None:
        return chosen.facts, Counts()
    return of_record(chosen.life, record), record.counts.get(stream, Counts())


def _stream(name: str) -> Stream:
    try:
        return Stream(name)
    except ValueError:
        raise Refused(invalid_argument("stream", name, "it has to be one of " + ", ".join(Stream))) from None


def _query(asked: Searching) -> Query:
    if asked.query_mode not in QUERY_MODES:
        raise Refused(invalid_argument("query_mode", asked.query_mode, "it has to be one of " + ", ".join(QUERY_MODES)))
    for name, value in (("context_before", asked.before), ("context_after", asked.after)):
        if value < 0:
            raise Refused(invalid_argument(name, value, "it has to be 0 or a positive integer"))
    _positive("max_chars", asked.max_chars)
    try:
        return Query.build(asked.query, asked.query_mode, asked.ignore_case)
    except ValueError as error:
        raise Refused(_not_allowed("query", asked.query, error)) from None


def _positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise Refused(invalid_argument(name, value, "it has to be a positive integer"))


def _not_allowed(parameter: str, value: object, error: ValueError):
    return invalid_argument(parameter, value, f"it has to be {str(error).rstrip('.')}")
