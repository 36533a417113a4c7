"""One kernel: a stable, named workbench whose process can be replaced.

Owns the processes one after the other: starting them, running cells in the living one,
waiting, interrupting, restarting, and what remains of those that ended. It does not know
who may do what (`usecases.service`), what each session was told (`sessions`), or how a process is
made (`processes.launcher`). Called by `registry` and `usecases.service`.

States: nothing started → starting → running → (restarting → running)… ; a process that
dies leaves the kernel without one, and the next call that needs one starts it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from loommux_host.facts.results import KernelFacts
from loommux_host.kernels.channel import Channel
from loommux_host.kernels.interrupt_wait import Interrupted, interrupt
from loommux_host.kernels.journal import Journal
from loommux_host.kernels.live_facts import ASIDE_SECONDS, Seen, look
from loommux_host.kernels.mirror import Began, Change, Died, Ended, Noticed, View
from loommux_host.kernels.outcomes import Busy, KernelClosed, KernelStartFailed, NotTaken, Ran, Restarted, accounted
from loommux_host.kernels.process_life import Life
from loommux_host.kernels.submission import Sent
from loommux_host.kernels.wait_timers import Patience, follow
from loommux_host.processes.process_protocol import Process, StartFailed
from loommux_host.processes.runtime_files import ENDED_KEPT
from loommux_kernel.shared.protocol import Origin, OriginKind, now

log = logging.getLogger(__name__)

START_TRIES = 2
#: How long an idle process may run its atexit handlers.
ATEXIT_SECONDS = 2.0
#: How long a process that is told the kernel's new name has to take it.
RENAME_SECONDS = 30.0
#: How long a call waits in any case to learn whether its cell was taken.
TAKEN_SECONDS = 2.0
#: How long others wait to learn the number of a cell that is just being sent.
NAMING_SECONDS = 1.0
#: After so long without news of it, the records are looked at; native code may keep the kernel from telling.
LOOK_SECONDS = 0.1

#: How much later than the event of a cell's end its reply may come, or the other way round.
LAGGING = Patience(0.25, 0.25)


class Launching(Protocol):
    """How one kernel gets its processes, and lets go of the files of one process, or of all."""

    async def start(self, name: str, process: int) -> Process: ...
    def connect(self, process: Process) -> Channel: ...
    async def discard(self, process: Process) -> None: ...
    async def remove(self) -> None: ...


class Kernel:
    """A kernel and its processes. `home` is the id of its main kernel, None for a main kernel."""

    def __init__(
        self,
        id: str,
        name: str,
        launching: Launching,
        *,
        home: str | None = None,
        private: bool = False,
        on_change: Callable[[Kernel, Life, Change], None] = lambda kernel, life, change: None,
    ) -> None:
        self.id, self.name, self.home, self.private = id, name, home, private
        self.opened_at = now()
        self.journal = Journal()
        #: The living process, or the last that lived.
        self.life: Life | None = None
        self.ended: list[Life] = []
        self.closed = False
        self._launching = launching
        self._on_change = on_change
        self._starting: asyncio.Task[Life] | None = None
        self._restarting: asyncio.Task[Restarted] | None = None
        self._renaming: asyncio.Task[Any] | None = None
        self._answer_now = False
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- what is known -----------------------------------------------------------

    @property
    def state(self) -> str:
        if self.restarting:
            return "restarting"
        if self._starting is not None and not self._starting.done():
            return "restarting" if self.ended else "starting"
        if self.life is None or self.life.gone:
            return "stopped"
        return "running" if self.life.stale_seconds is None else "unresponsive"

    @property
    def restarting(self) -> bool:
        return self._restarting is not None and not self._restarting.done()

    def facts(self) -> KernelFacts:
        life = self.life
        alive = life is not None and life.alive
        return KernelFacts(
            id=self.id,
            name=self.name,
            process=life.process.process if life else 0,
            pid=life.pid if life and alive else None,
            busy=bool(life and life.busy),
            stale_seconds=life.stale_seconds if life else None,
        )

    def lives(self) -> list[Life]:
        """The processes whose records can be read, newest first."""
        ended = [life for life in reversed(self.ended) if life is not self.life]
        return ([self.life] if self.life else []) + ended

    def rename(self, name: str) -> None:
        """Call it `name` from now on, inside the process too."""
        self.name = name
        if self.life is not None and self.life.alive:
            self._renaming = self._own(self.life.ask("rename", {"name": name}, deadline=RENAME_SECONDS))

    def tell(self, text: str, *, not_for: str | None = None) -> None:
        """A notice about the kernel itself, for all who work in it but one."""
        self.journal.notice(self.life.process.process if self.life else 0, now(), text, not_for=not_for)

    async def knows_its_name(self) -> None:
        """Wait a moment until the process has taken the last name it was told."""
        if self._renaming is not None:
            await asyncio.wait({self._renaming}, timeout=ASIDE_SECONDS)

    # -- starting ----------------------------------------------------------------

    def start_soon(self) -> None:
        """Start the process behind whatever comes next; a failure shows when it is needed."""
        if self.life is None and self._starting is None:
            self._begin_start()

    def start_again(self) -> None:
        """After a death: start the next process behind what is answered now."""
        if self._starting is None and self.life is not None and self.life.finished.is_set() and not self.closed:
            self._begin_start()

    async def settled(self) -> None:
        """Wait until no start of a process is under way, however it ends."""
        while under_way := {t for t in (self._restarting, self._starting) if t is not None and not t.done()}:
            await asyncio.wait(under_way)

    async def ready(self) -> Life:
        """The living process, started when there is none. Raises `KernelStartFailed`."""
        while True:
            if self.closed:
                raise KernelClosed
            if self._restarting is not None and not self._restarting.done():
                await asyncio.wait({self._restarting})
                continue
            life = self.life
            if life is not None and life.alive:
                return life
            if life is not None:
                await life.finished.wait()
            starting = self._starting or self._begin_start()
            await asyncio.wait({starting})
            if starting.cancelled():
                raise KernelClosed
            return starting.result()

    def _begin_start(self) -> asyncio.Task[Life]:
        self._starting = task = self._own(self._start())
        task.add_done_callback(lambda done: setattr(self, "_starting", None))
        return task

    async def _start(self) -> Life:
        process_number = (self.life.process.process if self.life else 0) + 1
        for left in reversed(range(START_TRIES)):
            try:
                process = await self._launching.start(self.name, process_number)
            except StartFailed as error:
                if not left:
                    raise KernelStartFailed(str(error), error.log_tail) from error
                continue
            self.life = life = await self._begun(process)
            if process.launch.kernel_name != self.name:  # renamed while it started
                await life.ask("rename", {"name": self.name}, deadline=ASIDE_SECONDS)
            self._on_change(self, life, Began())
            return life
        raise AssertionError("unreachable")

    async def _begun(self, process: Process) -> Life:
        """Its life from now on; a process that nobody would know of is ended."""
        life = self.life_of(process)
        try:
            await life.begin()
        except BaseException:
            await asyncio.shield(process.end(grace=0))
            life.leave()
            raise
        return life

    def life_of(self, process: Process) -> Life:
        """What a process of this kernel is followed by, once it has begun."""
        return Life(process, self._launching.connect(process), on_change=self._changed, on_death=self._died)

    # -- running and waiting -------------------------------------------------------

    async def run(
        self,
        source: str,
        origin: Origin,
        patience: Patience,
        admit: Callable[[], None] = lambda: None,
        *,
        relay: bool = False,
    ) -> Ran | Busy | NotTaken:
        """Submit one cell and wait for its first result. Cancelling changes nothing in the kernel.

        `admit` is asked when the process is known in which the cell would run, and may raise.
        With `relay` what the cell says is kept as it was written.
        """
        life = await self.ready()
        admit()
        if life.busy:
            return await self._busy(life)
        began = asyncio.get_running_loop().time()
        sent = life.submit(source, origin, now(), relay=relay)

        def over() -> bool:
            return sent.decided and (sent.view is None or not sent.view.running)

        ended_by = await self.follow(life, over, patience)
        if not sent.decided:
            # Whoever waits for less still learns whether the cell was taken.
            await self.settle(life, sent, TAKEN_SECONDS)
        if ended_by is None and sent.view is not None:
            # The reply carries the body, the events its notices; whichever came first, the other is right behind.
            await self.follow(life, lambda: life.gone or sent.told(life.mirror.last_sequence), LAGGING)
        if not sent.decided:
            await life.withdraw(sent)
        if sent.view is not None:
            return Ran(life, sent.view, sent, ended_by if sent.view.running else None)
        if sent.overtaken:
            return Busy(life, life.mirror.running or life.mirror.newest)
        return NotTaken(life, life.death, asyncio.get_running_loop().time() - began, sent.lost, sent.unknown)

    async def _busy(self, life: Life) -> Busy:
        """What runs; a cell that is just being sent gets a moment to have a number."""
        pending = life.pending
        if pending is None:
            return Busy(life, life.mirror.running)
        await self.settle(life, pending)
        return Busy(life, pending.view or life.mirror.running, pending)

    async def settle(self, life: Life, sent: Sent, seconds: float = NAMING_SECONDS) -> None:
        """Wait until it is known whether the cell was taken: from the kernel, else from its records."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not sent.decided:
            left = min(LOOK_SECONDS, end - loop.time())
            await self.follow(life, lambda: sent.decided, Patience(left, left))
            if not sent.decided:
                await life.mend()
            if loop.time() > end or self._answer_now:
                return

    async def follow(self, life: Life, over: Callable[[], bool], patience: Patience) -> str | None:
        """Wait until `over`; else ``silence``, ``timeout`` or ``shutdown`` says what ended the waiting."""
        return await follow(life, over, patience, lambda: self._answer_now)

    async def accounted(self) -> None:
        """Of a process that has just died, wait for its records; then everything says the same of it."""
        if self.life is not None:
            await accounted(self.life)

    def answer_now(self) -> None:
        """Every waiting call is answered with what is known."""
        self._answer_now = True
        if self.life is not None:
            self.life.pulse.beat()

    # -- interrupt ---------------------------------------------------------------

    async def interrupt(self, number: int | None = None, by: str | None = None) -> Interrupted:
        """Interrupt the running cell, or only that one; says what was seen, not what was hoped.

        `by` is who wants it, when that is somebody else than its sender.
        """
        if self.life is None or self.life.gone:
            return Interrupted("idle" if number is None else "not_running", None)
        return await interrupt(self.life, number, by)

    async def seen(self) -> Seen:
        """Its attached clients and what holds it, as its process knows them."""
        return await look(self.life)

    async def heard_from(self, client: str) -> float | None:
        """When the kernel last heard of an attached client, seconds since the epoch; None when it cannot tell."""
        for known in (await self.seen()).clients:
            if known["client"] == client:
                return now() - float(known["heard_seconds"])
        return None

    # -- ending ------------------------------------------------------------------------

    async def restart(self, by: str | None = None, caller: str | None = None) -> Restarted:
        """Replace the process. `by` is who wants it, in words; calls at the same time share one restart."""
        if self.closed:
            raise KernelClosed
        if self._restarting is None or self._restarting.done():
            self._restarting = self._own(self._restart(by, caller))
        restarting = self._restarting
        await asyncio.wait({restarting})
        if restarting.cancelled():  # by its end
            raise KernelClosed
        return restarting.result()

    async def _restart(self, by: str | None, caller: str | None) -> Restarted:
        if self._starting is not None and not self._starting.done():
            await asyncio.wait({self._starting})
        old, killed, clients, watches, started = self.life, None, (), (), 0
        if old is not None and old.alive:
            killed = old.mirror.running
            watches = tuple(watch.name for watch in old.mirror.watches.pending)
            started = len(await old.process.descendants())
            clients = tuple(str(client["label"]) for client in (await self.seen()).clients)
            await self._end(old, "restart", by, caller)
        elif old is not None:
            await old.finished.wait()
        # Whoever waited for the same end of the old process may have begun already.
        return Restarted(old, await (self._starting or self._begin_start()), killed, clients, watches, started)

    async def _end(self, life: Life, cause: str, by: str | None, caller: str | None = None) -> None:
        """An idle process may leave in order, a busy one is ended at once; then everything it started."""
        life.ending = (cause, by, caller)
        grace = 0.0
        if not life.busy and await life.ask("quit", deadline=ASIDE_SECONDS) is not None:
            grace = ATEXIT_SECONDS
        await life.process.end(grace=grace)
        await life.finished.wait()

    async def close(self, cause: str = "shutdown", by: str | None = None) -> None:
        """Retire the kernel: its process ends with all that it started; nothing starts again."""
        self.closed = True
        self.answer_now()
        for task in (self._restarting, self._starting):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait({task})
        if self.life is not None and self.life.alive:
            await self._end(self.life, cause, by)
        left = [task for life in self.lives() for task in life.leave()]
        if left:
            await asyncio.wait(left)
        await self._launching.remove()

    # -- what the processes tell ---------------------------------------------------------

    def _changed(self, life: Life, change: Change) -> None:
        process = life.process.process
        match change:
            case Noticed():
                label = change.label or life.mirror.label(change.serial)
                self.journal.notice(
                    process, change.at, change.text, label=label, serial=change.serial, number=change.number
                )
            case Ended(view) if view.origin.kind is not OriginKind.STARTUP:
                at = view.completed_at or now()
                self.journal.ended(process, at, view.serial, view.number, view.state, view.origin)
            case _:
                pass
        self._on_change(self, life, change)

    def _died(self, life: Life, lost: View | None) -> None:
        assert life.death is not None
        cause, _, caller = life.ending or ("", None, None)
        number = lost.number if lost else None
        self.journal.died(life.death, number, on_purpose=bool(cause), not_for=caller)
        self.ended.append(life)
        while len(self.ended) > ENDED_KEPT:
            oldest = self.ended.pop(0)
            oldest.records.close()
            self._own(self._launching.discard(oldest.process))
        self._on_change(self, life, Died())

    def _own(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        known = isinstance(error, KernelStartFailed)  # whoever needs the process is told
        log.log(logging.WARNING if known else logging.ERROR, "kernel %s: %s", self.name, error, exc_info=not known)
