"""A kernel process in memory: the twin of `ZmqChannel`, for tests without processes.

Keeps the promises of `channel.Channel` and the gate's rules (one cell at a time, in turn;
a submission is refused when anything started since what it had seen; withdrawals), writes a
real record store, and numbers its events. What a cell does is a coroutine of the test's.
It can also misbehave on purpose: lose events, answer nothing, die.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loommux_host.kernels.channel import ChannelClosed, KernelUnresponsive, OnEvent
from loommux_kernel.shared.protocol import (
    Event,
    ExecutionEnded,
    ExecutionStarted,
    LaunchFile,
    NoticeGiven,
    Origin,
    Outcome,
    OutputArrived,
    Reply,
    State,
    Stream,
    Submission,
    WatchEnded,
    WatchStarted,
    now,
)
from loommux_kernel.shared.records.writer import RecordWriter

#: As the kernel does: a body of at most so many bytes comes with the reply.
REPLY_BODY_BYTES = 5_000
#: Where the work is that holds `MemoryChannel.turn`.
HELD_AT = "In [1], line 1"


@dataclass
class MemoryCell:
    """A running cell, as the coroutine that stands for its code sees it."""

    source: str
    serial: int
    number: int | None
    _channel: MemoryChannel

    def print(self, text: str, stream: Stream = Stream.STDOUT) -> None:
        self._channel.printed(self.serial, self.number, text, stream)

    def notify(self, text: str) -> None:
        self._channel.noticed(self.serial, self.number, text)


#: What a cell does; its end is `completed` unless it returns a state, raises, or is cancelled.
Code = Callable[[MemoryCell], Awaitable[State | None]]


async def nothing(cell: MemoryCell) -> None:
    """A cell without effect."""


class MemoryChannel:
    """One kernel process in memory and the channel to it. `codes` gives each source its code."""

    def __init__(self, store: Path, codes: dict[str, Code] | None = None) -> None:
        self.heard = 0.0
        self.codes = codes or {}
        self.records = RecordWriter.open(store, 1 << 30, lambda text: None)
        self.requests: list[str] = []
        #: Events that are numbered but never arrive.
        self.lose = 0
        #: Cleared: nothing is answered, as when native code holds the interpreter.
        self.answers = asyncio.Event()
        self.answers.set()
        self.interrupts_land = True
        self.clients: list[dict[str, Any]] = []
        self.watches: dict[str, int | None] = {}
        self.told: list[int] = []
        self.variables: list[dict[str, Any]] = []
        self.children: dict[str, list[int]] = {"pending_children": [], "left_children": []}
        self.on_quit: Callable[[], None] = lambda: None
        #: Held while a cell runs; a test that holds it is work on the kernel's loop that no cell gets past.
        self.turn = asyncio.Lock()
        self._serial = self._number = self._sequence = 0
        self._running: tuple[int, int | None, str | None, asyncio.Task[Any]] | None = None
        self._withdrawn: set[str] = set()
        self._on_event: OnEvent = lambda event: None
        self._closed = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- Channel -------------------------------------------------------------------

    async def open(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self.heard = asyncio.get_running_loop().time()

    async def execute(self, source: str, submission: Submission) -> Reply:
        if self._closed.is_set():
            raise ChannelClosed
        reply = asyncio.ensure_future(self._submitted(source, submission))
        self._tasks.add(reply)
        reply.add_done_callback(self._tasks.discard)
        return await self._unless_closed(reply)

    async def request(self, name: str, content: dict[str, Any] | None = None, *, deadline: float) -> dict[str, Any]:
        self.requests.append(name)
        answer = asyncio.ensure_future(self.answers.wait())
        try:
            async with asyncio.timeout(deadline):
                await self._unless_closed(answer)
        except TimeoutError:
            raise KernelUnresponsive(f"no answer to {name} within {deadline:g} s") from None
        self.heard = asyncio.get_running_loop().time()
        return getattr(self, f"_{name}")(**(content or {}))

    def take_in(self) -> None:
        return

    def close(self) -> None:
        self._closed.set()

    def end(self) -> None:
        """The process is no more: its cell stops where it is, unrecorded."""
        self.close()
        for task in self._tasks | ({self._running[3]} if self._running else set()):
            task.cancel()

    async def _unless_closed(self, answer: asyncio.Future[Any]) -> Any:
        closed = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({answer, closed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()
        if not answer.done():
            raise ChannelClosed
        return answer.result()

    # -- the kernel ------------------------------------------------------------------

    async def foreign(self, source: str, origin: Origin, *, counted: bool = True) -> None:
        """Another client's cell, run in its turn."""
        async with self.turn:
            await self._run(source, origin, None, now(), counted)

    def printed(self, serial: int, number: int | None, text: str, stream: Stream = Stream.STDOUT) -> None:
        self.records.text(serial, stream, text)
        self.records.commit()
        self._tell(
            OutputArrived,
            serial=serial,
            number=number,
            counts=self.records.counts(serial),
            last_line=self.records.last_line(serial),
            late_lines=self.records.late_lines(serial),
        )

    def noticed(self, serial: int | None, number: int | None, text: str, label: str = "") -> None:
        at = now()
        self.records.notice(serial, label, text, at)
        self.records.commit()
        self._tell(NoticeGiven, at, serial=serial, number=number, label=label, text=text)

    def watch(self, name: str, number: int | None = None) -> None:
        """A watch begins."""
        self.watches[name] = number
        self._tell(WatchStarted, name=name, serial=number, number=number)

    def watch_over(self, name: str, outcome: Outcome, ename: str | None = None, evalue: str | None = None) -> None:
        number = self.watches.pop(name)
        self._tell(WatchEnded, name=name, serial=number, number=number, outcome=outcome, ename=ename, evalue=evalue)

    async def _submitted(self, source: str, submission: Submission) -> Reply:
        async with self.turn:
            if submission.id in self._withdrawn:
                return Reply(refused="withdrawn")
            if submission.seen != self._serial:
                return Reply(refused="busy")
            return await self._run(source, submission.origin, submission.id, submission.submitted_at, True)

    async def _run(self, source: str, origin: Origin, submission: str | None, at: float, counted: bool) -> Reply:
        self._serial += 1
        self._number += counted
        serial, number, started = self._serial, self._number if counted else None, now()
        self.records.begin(serial, number, origin, source, at, started)
        self.records.commit()
        started_event = {"origin": origin, "submission": submission, "submitted_at": at, "source": source}
        self._tell(ExecutionStarted, started, serial=serial, number=number, **started_event)
        task = asyncio.ensure_future(self.codes.get(source, nothing)(MemoryCell(source, serial, number, self)))
        self._running = (serial, number, submission, task)
        state, ename, evalue = State.COMPLETED, None, None
        await asyncio.wait({task})
        if task.cancelled():
            state, ename = State.INTERRUPTED, "KeyboardInterrupt"
        elif error := task.exception():
            state, ename, evalue = State.ERROR, type(error).__name__, str(error)
        else:
            state = task.result() or state
        self._running = None
        completed = now()
        self.records.end(serial, state, completed, ename, evalue)
        self.records.commit()
        counts, body = self.records.counts(serial), self.records.body(serial)
        ended = {"state": state, "counts": counts, "ename": ename, "evalue": evalue, "displays": 0}
        self._tell(ExecutionEnded, completed, serial=serial, number=number, **ended)
        small = body if counts.utf8_bytes <= REPLY_BODY_BYTES else None
        return Reply(
            None, serial, number, state, started, completed, counts, ename, evalue, small, sequence=self._sequence
        )

    def _tell(self, event: type[Event], at: float | None = None, **what: Any) -> None:
        self._sequence += 1
        if self._closed.is_set():
            return
        if self.lose > 0:
            self.lose -= 1
            return
        self.heard = asyncio.get_running_loop().time()
        self._on_event(event(sequence=self._sequence, at=now() if at is None else at, **what))

    # -- control requests --------------------------------------------------------------

    def _status(self, holder: bool = False) -> dict[str, Any]:
        running = self._running
        return {
            "serial": running[0] if running else None,
            "felt": False,
            "taken": None,
            "obstacle": None,
            "sequence": self._sequence,
            "last_serial": self._serial,
            "clients": self.clients,
            "watches": [{"name": name, "serial": n, "number": n, "at": now()} for name, n in self.watches.items()],
            "holder": HELD_AT if holder and running is None and self.turn.locked() else None,
        }

    def _interrupt(
        self, serial: int | None, submission: str | None, asked_at: float, by: str | None = None
    ) -> dict[str, Any]:
        running = self._running
        if running is None:
            return {"result": "idle"}
        if (serial is not None and serial != running[0]) or (submission is not None and submission != running[2]):
            return {"result": "not_running"}
        if self.interrupts_land:
            running[3].cancel()
        return {"result": "sent", "serial": running[0], "number": running[1], **self.children}

    def _withdraw(self, submission: str) -> dict[str, Any]:
        if self._running is not None and self._running[2] == submission:
            return {"result": "started", "serial": self._running[0]}
        self._withdrawn.add(submission)
        return {"result": "withdrawn"}

    def _flush(self) -> dict[str, Any]:
        return {"sequence": self._sequence}

    def _told(self, serials: list[int]) -> dict[str, Any]:
        self.told += serials
        return {}

    def _variables(self) -> dict[str, Any]:
        return {"variables": self.variables, "total": len(self.variables)}

    def _rename(self, name: str) -> dict[str, Any]:
        return {}

    def _quit(self) -> dict[str, Any]:
        self.on_quit()
        return {}


@dataclass(frozen=True)
class MemoryExit:
    at: float
    code: int | None = None
    signal: str | None = None
    max_rss_bytes: int | None = None
    ended_processes: int = 0
    left: tuple[tuple[int, str], ...] = ()
    faults: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class MemoryProcessInfo:
    pid: int
    command: str


@dataclass
class MemoryProcess:
    """The process of a `MemoryChannel`, as far as the host sees one."""

    pid: int
    process: int
    launch: LaunchFile
    channel: MemoryChannel
    started_at: float = field(default_factory=now)
    children: list[MemoryProcessInfo] = field(default_factory=list)
    exited: asyncio.Future[MemoryExit] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def wait(self) -> MemoryExit:
        return await asyncio.shield(self.exited)

    async def descendants(self) -> list[MemoryProcessInfo]:
        return self.children

    async def end(self, *, grace: float) -> MemoryExit:
        if grace:
            await asyncio.wait({self.exited}, timeout=grace)
        self.die(signal="SIGKILL")
        return await self.wait()

    def die(self, *, code: int | None = None, signal: str | None = None, rss: int | None = None) -> None:
        """End as a process does: nothing more is heard of it, its store stays as it is."""
        if not self.exited.done():
            self.channel.end()
            self.exited.set_result(MemoryExit(now(), code, signal, rss))
