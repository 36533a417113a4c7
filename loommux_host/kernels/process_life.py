"""One process of a kernel, from the moment it is ready until its records are finished.

Owns the process's channel, its mirror, the submission that is on its way, and the tasks
that watch for silence and for the process's end. It tells its kernel what changed and
wakes whoever waits. It does not start processes, does not decide who may do what, and
does not know sessions. Called by `kernel`.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from loommux_host.facts.results import Death
from loommux_host.kernels.channel import Channel, ChannelClosed, KernelUnresponsive, RequestFailed
from loommux_host.kernels.journal import Journaled, NoticeKey
from loommux_host.kernels.mirror import Change, Ended, Mirror, Missed, Noticed, Printed, Started, View, WatchesChanged
from loommux_host.kernels.record_files import RecordFiles
from loommux_host.kernels.record_reads import in_thread, read_finished, read_latest, taken_back
from loommux_host.kernels.relay_file import Relay
from loommux_host.kernels.submission import Pulse, Sent
from loommux_host.processes.process_protocol import Process, death_of
from loommux_kernel.shared.protocol import Event, ExecutionEnded, ExecutionStarted, Origin, State, Submission, now
from loommux_kernel.shared.record_types import ExecutionRecord, NoticeRecord

log = logging.getLogger(__name__)

#: Without news for so long while something runs, the kernel is asked; an answer that
#: is awaited for longer makes what the mirror says stale.
QUIET_SECONDS = 1.0
#: How long one such question stays open; so a held kernel finds few of them later.
PROBE_SECONDS = 30.0
#: How long a store is read anew every second while the kernel does not answer, then every five.
EAGER_SECONDS = 10.0
#: Told ends are reported to the kernel together after so long.
TOLD_SECONDS = 1.0
#: By what a process ends when whoever stops the server signals all of it; SIGKILL is its init's.
SENT_TO_ALL = ("SIGTERM", "SIGINT", "SIGHUP", "SIGKILL")
#: Seconds between the looks whether a kernel has made its record files.
HOLD_PAUSES = (0.01, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
T = TypeVar("T")


class Life:
    """One process of a kernel."""

    def __init__(
        self,
        process: Process,
        channel: Channel,
        *,
        on_change: Callable[[Life, Change], None],
        on_death: Callable[[Life, View | None], None],
    ) -> None:
        self.process = process
        self.records = RecordFiles(Path(process.launch.records))
        self.mirror = Mirror(now())
        self.pulse = Pulse()
        #: What forwarded cells say, by serial, until it was fetched.
        self.relays: dict[int, tuple[View, Relay]] = {}
        #: The submission whose start, or refusal, is not known yet.
        self.pending: Sent | None = None
        #: When output last arrived, on the loop's clock.
        self.activity = 0.0
        #: Why this process is being ended on purpose: cause, by whom in words, caller id.
        self.ending: tuple[str, str | None, str | None] | None = None
        #: What has asked the server to stop, in words. It may have asked this process as well.
        self.server_ends_by: str | None = None
        self.gone = False
        #: The process has ended, its records are complete, `death` says how.
        self.finished = asyncio.Event()
        self.death: Death | None = None
        self._channel = channel
        self._on_change, self._on_death = on_change, on_death
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._mending: asyncio.Task[None] | None = None
        self._mend_again = False
        self._asked_at: float | None = None
        self._notice_id = 0
        self._noticed: deque[NoticeKey] = deque(maxlen=256)
        self._told: set[int] = set()

    # -- begin and end -----------------------------------------------------------

    async def begin(self) -> None:
        """Listen to the process and catch up with what it did before."""
        self._loop = asyncio.get_running_loop()
        self._own(self._watch_exit())
        self._own(self._hold_records())
        await self._channel.open(self._heard)
        await self._catch_up()

    async def _hold_records(self) -> None:
        """Hold them as soon as the kernel has made them."""
        for pause in HOLD_PAUSES:
            if await in_thread(self.records.hold) or self.gone:
                return
            await asyncio.sleep(pause)

    def begin_soon(self) -> asyncio.Task[None]:
        """As `begin`, behind the caller; it ends with this life."""
        return self._own(self.begin())

    async def recall(self, known: Callable[[ExecutionRecord], bool], noticed: Journaled) -> None:
        """Take over from another host: what is `known` and was `noticed` is no news. Then `begin`."""
        records, notices = await in_thread(read_latest, self.records, 0)
        self.mirror.mend(record for record in records if known(record))
        self._noticed.extend(noticed.keys)
        self._notice_id = max((notice.id for notice in notices if notice.at < noticed.since), default=0)

    def over(self, death: Death) -> None:
        """It is known from before that the process has ended, and how."""
        self.gone, self.death = True, death
        self.finished.set()

    def leave(self) -> list[asyncio.Task[Any]]:
        """Give up every task, for a host that goes; returns them for the owner to await."""
        self._channel.close()
        self.records.close()
        for _, relay in self.relays.values():
            relay.close()
        for task in self._tasks:
            task.cancel()
        return list(self._tasks)

    @property
    def alive(self) -> bool:
        return not self.gone

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def busy(self) -> bool:
        return self.alive and (self.mirror.running is not None or self.pending is not None)

    @property
    def stale_seconds(self) -> float | None:
        """How long the kernel has not answered while it was asked; None when it answers."""
        if self._asked_at is None or self.gone or self._loop.time() - self._asked_at < QUIET_SECONDS:
            return None
        silent = self._loop.time() - self._channel.heard
        return silent if silent >= QUIET_SECONDS else None

    # -- what is asked of the process ---------------------------------------------

    def submit(self, source: str, origin: Origin, submitted_at: float, *, relay: bool = False) -> Sent:
        """Send a cell; the caller has seen that nothing runs and nothing is pending."""
        id = uuid.uuid4().hex
        kept = str(self.records.path.with_name(f"relay-{id}")) if relay else None
        submission = Submission(id, self.mirror.last_serial, origin, submitted_at, relay=kept)
        sent = self.pending = Sent(submission, source)
        self._own(self._deliver(sent))
        self._watch_quiet()
        return sent

    async def ask(self, name: str, content: dict[str, Any] | None = None, *, deadline: float) -> dict[str, Any] | None:
        """A control request; None when the process does not answer in time, cannot, or is gone."""
        try:
            return await self._channel.request(name, content, deadline=deadline)
        except (ChannelClosed, KernelUnresponsive):
            return None
        except RequestFailed:
            log.exception("process %d (pid %d) failed to answer", self.process.process, self.pid)
            return None

    async def flush(self, deadline: float = 0.1) -> None:
        """Bring what was printed into the record, as far as the kernel answers in time."""
        if self.alive and self.stale_seconds is None:
            await self.ask("flush", deadline=deadline)

    def told(self, serial: int) -> None:
        """Somebody knows of that execution's end; the kernel may drop it when space runs out."""
        if self.alive:
            if not self._told:
                self._loop.call_later(TOLD_SECONDS, lambda: self._own(self._report_told()))
            self._told.add(serial)

    async def withdraw(self, sent: Sent) -> None:
        """Have it never run, unless it has started; a kernel that does not answer finds that later."""
        answer = await self.ask("withdraw", {"submission": sent.submission.id}, deadline=QUIET_SECONDS)
        lost = await taken_back(self.records, sent.submission) if answer is None else answer["result"] == "withdrawn"
        if sent.view is None and (answer is None or not lost):
            await self.mend()
        if lost:
            # A kernel that did not answer may have begun it before that; its note says so, if there is one.
            sent.unknown = answer is None and not await in_thread(self.records.tells_what_began)
            self._decide(sent, lost=True)

    async def mend(self) -> None:
        """Read from the store what events did not tell."""
        records, notices = await in_thread(read_latest, self.records, self._notice_id)
        self._mended(records, notices)

    # -- what comes from the process ----------------------------------------------

    def _heard(self, event: Event) -> None:
        changes = self.mirror.apply(event)
        pending = self.pending
        if isinstance(event, ExecutionStarted) and pending is not None and changes:
            if event.submission == pending.submission.id:
                self._decide(pending, view=self.mirror.by_serial(event.serial))
            elif event.serial > pending.submission.seen:
                self._decide(pending, overtaken=True)
                self._own(self.withdraw(pending))
        self._act(changes)
        if isinstance(event, ExecutionEnded):
            self.pulse.beat()

    async def _deliver(self, sent: Sent) -> None:
        try:
            reply = await self._channel.execute(sent.source, sent.submission)
        except ChannelClosed:  # the process is gone; what it recorded decides
            if self.finished.is_set():
                self._decide(sent, lost=True)
            return
        except RequestFailed:
            log.exception("a submission was not answered as agreed")
            await self.mend()
            sent.unknown = True
            self._decide(sent, lost=True)
            return
        if reply.refused is not None:
            if not sent.decided:  # something started first, and no event has told of it
                await self._catch_up()
            self._decide(sent, overtaken=True)
            return
        self._channel.take_in()  # what was said meanwhile, its notices above all, was sent before the reply
        changes = self.mirror.replied(sent.submission, sent.source, reply)
        sent.reply = reply
        self._decide(sent, view=self.mirror.by_serial(reply.serial))
        self._act(changes)

    def _decide(self, sent: Sent, *, view: View | None = None, overtaken: bool = False, lost: bool = False) -> None:
        if not sent.decided:
            sent.view, sent.overtaken, sent.lost = view, overtaken, lost
            if view is not None and sent.submission.relay is not None:
                self.relays = {serial: kept for serial, kept in self.relays.items() if not kept[1].closed}
                self.relays[view.serial] = (view, Relay(Path(sent.submission.relay)))
        if self.pending is sent:
            self.pending = None
        self.pulse.beat()

    def _act(self, changes: list[Change]) -> None:
        for change in changes:
            match change:
                case Missed():
                    self._mend_soon()
                    self._own(self._mend_watches())
                    continue
                case Noticed() if not self._first_heard(change):
                    continue
                case Printed():
                    self.activity = self._loop.time()
                case Started():
                    self._watch_quiet()
                case _:
                    pass
            self._on_change(self, change)
        if any(isinstance(c, Started | Ended | WatchesChanged) for c in changes):
            self.pulse.beat()

    def _first_heard(self, notice: Noticed) -> bool:
        """Whether neither the events nor the store told of this notice before."""
        key = (notice.serial, notice.text, notice.at)
        if key in self._noticed:
            return False
        self._noticed.append(key)
        return True

    def _mended(self, records: list[ExecutionRecord], notices: list[NoticeRecord]) -> None:
        changes = self.mirror.mend(records)
        pending = self.pending
        if pending is not None:
            since = [record for record in records if record.serial > pending.submission.seen]
            ours = (pending.submission.origin, pending.submission.submitted_at)
            mine = next((record for record in since if (record.origin, record.submitted_at) == ours), None)
            if mine is not None:
                self._decide(pending, view=self.mirror.by_serial(mine.serial))
            elif since and self.alive:  # the kernel refuses it, whenever it comes to it
                self._decide(pending, overtaken=True)
        for notice in notices:
            self._notice_id = max(self._notice_id, notice.id)
            view = None if notice.serial is None else self.mirror.by_serial(notice.serial)
            number = view.number if view else None
            changes.append(Noticed(notice.serial, number, notice.label, notice.text, notice.at))
        self._act(changes)

    async def _catch_up(self) -> None:
        """Ask how far the kernel is, and read from the store what no event told."""
        status = await self.ask("status", deadline=QUIET_SECONDS * 10)
        if status is None or status["sequence"] > self.mirror.last_sequence or self.pending is not None:
            await self.mend()
        if status is not None:
            self._caught_up(status)

    def _caught_up(self, status: dict[str, Any]) -> None:
        """What the kernel said of itself after the store was read; events may have told more meanwhile."""
        if status["sequence"] >= self.mirror.last_sequence:
            self.mirror.watches.mend(status["watches"], now())
        self.mirror.caught_up(status["sequence"], status["last_serial"])
        self.pulse.beat()

    async def _mend_watches(self) -> None:
        """No store has them: the kernel says what is pending, as soon as it can."""
        status = await self.ask("status", deadline=PROBE_SECONDS)
        if status is not None and status["sequence"] >= self.mirror.last_sequence:
            self.mirror.watches.mend(status["watches"], now())
            self.pulse.beat()

    def _mend_soon(self) -> None:
        self._mend_again = True
        if self._mending is None or self._mending.done():
            self._mending = self._own(self._mend_all())

    async def _mend_all(self) -> None:
        while self._mend_again:
            self._mend_again = False
            await self.mend()

    # -- watching ------------------------------------------------------------------

    def _watch_quiet(self) -> None:
        if self._watcher is None or self._watcher.done():
            self._watcher = self._own(self._while_busy())

    async def _while_busy(self) -> None:
        """While something runs: after a second without news, ask; as long as no answer comes, read the store."""
        while self.busy:
            quiet = self._loop.time() - self._channel.heard
            if quiet < QUIET_SECONDS:
                await asyncio.sleep(QUIET_SECONDS - quiet)
            else:
                await self._probe()

    async def _probe(self) -> None:
        if self._asked_at is None:  # else the last question found no answer either
            self._asked_at = self._loop.time()
        question = self._own(self.ask("status", deadline=PROBE_SECONDS))
        pause = QUIET_SECONDS
        try:
            while not (await asyncio.wait({question}, timeout=pause))[0]:
                await self.mend()
                if self._loop.time() - self._asked_at > EAGER_SECONDS:
                    pause = QUIET_SECONDS * 5
        finally:
            question.cancel()
        status = question.result()
        if status is not None:
            self._asked_at = None
            if status["sequence"] > self.mirror.last_sequence or status["serial"] is None:
                await self.mend()

    async def _watch_exit(self) -> None:
        exit_ = await self.process.wait()
        self.gone = True
        self._channel.take_in()
        await asyncio.sleep(0)  # replies that were there already reach their submissions first
        self._channel.close()
        records, notices, known = await read_finished(
            self.process, self.records, exit_.at, relay=self._relayed(), after=self._notice_id
        )
        if self.ending is None and self.server_ends_by is not None and exit_.signal in SENT_TO_ALL:
            self.ending = ("shutdown", self.server_ends_by, None)
        self.death = death_of(self.process.process, exit_, self.ending)
        self._mended(records, notices)
        self._act(self.mirror.killed(exit_.at))
        self.finished.set()
        if self.pending is not None:
            self.pending.unknown = not known
            self._decide(self.pending, lost=True)
        self._on_death(self, next((v for v in self.mirror.latest() if v.state is State.KILLED), None))
        self.pulse.beat()

    def _relayed(self) -> str | None:
        """Where what runs, or is about to, is kept as it is said."""
        running = (str(relay.path) for view, relay in self.relays.values() if view.running and not relay.closed)
        return next(running, self.pending.submission.relay if self.pending is not None else None)

    async def _report_told(self) -> None:
        serials, self._told = sorted(self._told), set()
        await self.ask("told", {"serials": serials}, deadline=PROBE_SECONDS)

    def _own(self, work: Awaitable[T]) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.ensure_future(work)  # pyright: ignore[reportAssignmentType]
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("watching a kernel process failed", exc_info=task.exception())
