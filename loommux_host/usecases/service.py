"""The use-cases of loommux, one method per tool; the only thing the faces call.

Each method finds the kernel a call works in, does what the tool promises, and answers with
plain facts (`facts.results`) and what the caller still has to be told. What did nothing is a
`Refusal`, never an exception. It knows neither protocols nor wording; `rendering.message` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from loommux_host.facts import refusals
from loommux_host.facts.refusals import Refused
from loommux_host.facts.results import Answer, CellAnswer, Refusal
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.mirror import View
from loommux_host.kernels.outcomes import Busy, KernelClosed, KernelStartFailed, NotTaken, Ran
from loommux_host.kernels.record_reads import RecordsGone, RecordsUnreadable
from loommux_host.kernels.registry import Registry, TooManyKernels
from loommux_host.kernels.wait_timers import Patience, Progress, reporting
from loommux_host.sessions.callers import Binding, Caller, Sessions
from loommux_host.sessions.envelope import Shown
from loommux_host.usecases import inspection, interrupt_and_restart, outcome_mapping, watch_waits
from loommux_host.usecases.execution_selection import Chosen, account_for, choose, of_view
from loommux_host.usecases.result_bodies import Bodies
from loommux_kernel.shared.header import Header, InvalidHeader, parse, without_order_mark
from loommux_kernel.shared.protocol import Stream, now

#: How long calls in flight may go on when the server stops, before they are answered as running.
DRAIN_SECONDS = 2.0
#: And how long their answers may take then.
ANSWER_SECONDS = 1.0
DEFAULT_SECONDS = 10.0

Work = Callable[[Binding], Awaitable[Answer]]


class Service:
    """The use-cases over a registry of kernels and its callers."""

    def __init__(self, registry: Registry, sessions: Sessions, bodies: Bodies, place: inspection.Place) -> None:
        self.sessions = self._sessions = sessions
        self.registry, self._bodies = registry, bodies
        self._observing = inspection.Observer(registry, sessions, place)
        self._calls: set[object] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        #: No new calls but those that cells in flight make; then none at all.
        self._stopping = self._stopped = False
        self._ends_by: str | None = None

    # -- running and waiting -----------------------------------------------------

    async def run_cell(
        self,
        caller: Caller,
        source: str,
        *,
        kernel: str | None = None,
        progress: Progress | None = None,
        patience: Patience | None = None,
        relay: bool = False,
    ) -> Answer:
        """Submit one cell and wait for its first result; timers in its header come before `patience`.

        With `relay` what it says is kept for `api.relay_stream`, as it was written.
        """
        try:
            header = parse(source)
        except InvalidHeader as error:
            return _answered(refusals.refuse("invalid_cell_header", reason=str(error).rstrip(".")))
        if not (header.body(source) if header else without_order_mark(source)).strip():
            return _answered(refusals.refuse("empty_cell"))

        async def run(binding: Binding) -> Answer:
            self._sessions.check_free(caller, binding.kernel)
            self._refuse_after_death(caller, binding.kernel)
            return await self._run(caller, binding, source, header, progress, patience or Patience(), relay)

        return await self._use(caller, kernel, run, header, runs=True)

    async def wait(
        self,
        caller: Caller,
        *,
        execution: int | None = None,
        process: int | None = None,
        timeout_seconds: float = DEFAULT_SECONDS,
        silence_seconds: float = DEFAULT_SECONDS,
        watch: str | None = None,
        kernel: str | None = None,
        progress: Progress | None = None,
    ) -> Answer:
        """Wait for an execution or a watch to end; of an execution that has ended, its whole result again."""
        patience = Patience(timeout_seconds, silence_seconds)

        async def run(binding: Binding) -> Answer:
            if watch is not None:
                return await watch_waits.wait(binding.kernel, watch, execution, process, patience, progress)
            chosen = await choose(binding.kernel, execution, process)
            return await self._wait(caller, binding, chosen, patience, progress)

        return await self._use(caller, kernel, run)

    async def _run(
        self,
        caller: Caller,
        binding: Binding,
        source: str,
        header: Header | None,
        progress: Progress | None,
        patience: Patience,
        relay: bool,
    ) -> Answer:
        kernel = binding.kernel
        if header is not None:
            patience = Patience(header.wait or patience.timeout, header.silence or patience.silence)
        began = now()

        def describe() -> tuple[float, str]:
            running = kernel.life.mirror.running if kernel.life else None
            return now() - began, _last_line(running, binding)

        async with reporting(progress, describe):
            outcome = await kernel.run(
                source, caller.origin(), patience, lambda: self._refuse_after_death(caller, kernel), relay=relay
            )
        match outcome:
            case Busy():
                raise Refused(outcome_mapping.busy(caller, kernel, outcome))
            case NotTaken():
                raise Refused(outcome_mapping.not_taken(kernel, outcome, (await kernel.seen()).held_at))
            case Ran():
                return await self._ran(caller, outcome, header)

    async def _ran(self, caller: Caller, ran: Ran, header: Header | None) -> CellAnswer:
        chosen = Chosen(ran.life, of_view(ran.life, ran.view), ran.view)
        answer = self._cell_answer(chosen, ran.ended_by)
        answer.full_output = header is not None and header.full_output
        reply = ran.sent.reply
        body = reply.body if reply else None
        await self._bodies.fill(answer, chosen, body=body, displays=ran.view.displays, fields=caller.reads_fields)
        return answer

    async def _wait(
        self, caller: Caller, binding: Binding, chosen: Chosen, patience: Patience, progress: Progress | None
    ) -> CellAnswer:
        kernel, view, ended_by = binding.kernel, chosen.view, None
        if view is not None and view.running:
            target = view

            def describe() -> tuple[float, str]:
                return now() - target.submitted_at, _last_line(target, binding)

            async with reporting(progress, describe):
                ended_by = await kernel.follow(chosen.life, lambda: not target.running, patience)
            chosen = Chosen(chosen.life, of_view(chosen.life, target), target, chosen.older)
        answer = self._cell_answer(chosen, ended_by)
        answer.full_output = _wants_full_output(chosen.facts.source)
        await self._bodies.fill(answer, chosen, fields=caller.reads_fields)
        return answer

    def _cell_answer(self, chosen: Chosen, ended_by: str | None) -> CellAnswer:
        return CellAnswer(
            execution=chosen.facts,
            ended_by=ended_by,
            server_ends_by=self._ends_by,
            silent_seconds=inspection.silent_seconds(chosen),
            older_process=chosen.older,
        )

    # -- observing ---------------------------------------------------------------

    async def status(self, caller: Caller, *, kernel: str | None = None) -> Answer:
        """What is known of the kernel, at once."""
        return await self._use(caller, kernel, lambda binding: self._observing.status(caller, binding.kernel))

    async def execution_status(
        self,
        caller: Caller,
        *,
        execution: int | None = None,
        process: int | None = None,
        kernel: str | None = None,
    ) -> Answer:
        """What is known of one execution, at once."""

        async def look(binding: Binding) -> Answer:
            return await self._observing.execution_status(binding.kernel, execution, process)

        return await self._use(caller, kernel, look)

    async def read_output(
        self,
        caller: Caller,
        *,
        execution: int | None = None,
        process: int | None = None,
        stream: str = Stream.COMBINED,
        line_range: str | None = None,
        start_char: int | None = None,
        max_chars: int | None = None,
        kernel: str | None = None,
    ) -> Answer:
        """Lines of one stream."""

        async def read(binding: Binding) -> Answer:
            request = inspection.Reading(stream, line_range, max_chars, start_char)
            return await self._observing.read(binding.kernel, execution, process, request)

        return await self._use(caller, kernel, read)

    async def search_output(
        self,
        caller: Caller,
        *,
        query: str,
        execution: int | None = None,
        process: int | None = None,
        stream: str = Stream.COMBINED,
        query_mode: str = "auto",
        context_before: int = 0,
        context_after: int = 0,
        ignore_case: bool = False,
        max_chars: int | None = None,
        kernel: str | None = None,
    ) -> Answer:
        """Lines of one stream that match."""

        async def search(binding: Binding) -> Answer:
            request = inspection.Searching(
                stream, query, query_mode, context_before, context_after, ignore_case, max_chars
            )
            return await self._observing.search(binding.kernel, execution, process, request)

        return await self._use(caller, kernel, search)

    # -- ending ------------------------------------------------------------------

    async def interrupt(self, caller: Caller, *, execution: int | None = None, kernel: str | None = None) -> Answer:
        """Interrupt the running cell, or only the one named, which is the way to interrupt another's."""

        async def run(binding: Binding) -> Answer:
            self._sessions.check_free(caller, binding.kernel)
            return await interrupt_and_restart.interrupt(self._sessions, caller, binding.kernel, execution)

        return await self._use(caller, kernel, run)

    async def restart(self, caller: Caller, *, kernel: str | None = None) -> Answer:
        """Replace the process."""

        async def run(binding: Binding) -> Answer:
            self._sessions.check_free(caller, binding.kernel)
            return await interrupt_and_restart.restart(caller, binding.kernel, self.registry)

        return await self._use(caller, kernel, run)

    # -- around every call --------------------------------------------------------

    async def _use(
        self, caller: Caller, wanted: str | None, work: Work, header: Header | None = None, *, runs: bool = False
    ) -> Answer:
        """Bind the call to its kernel, do the work, add what the caller still has to be told."""
        if self._stopped or (self._stopping and caller.kernel is None):
            return _answered(refusals.refuse("server_stopping"))
        call = object()
        self._calls.add(call)
        self._idle.clear()
        try:
            try:
                binding = await self._sessions.bind(caller, wanted, header, runs=runs)
            except (Refused, TooManyKernels) as error:
                return _answered(outcome_mapping.refusal(None, error))
            with self._sessions.calling(caller, binding.kernel):
                try:
                    answer = await work(binding)
                    await account_for(binding.kernel, answer)
                except (Refused, KernelStartFailed, KernelClosed, RecordsGone, RecordsUnreadable) as error:
                    answer = outcome_mapping.refusal(binding.kernel, error, stopping=self._stopping)
            return self._told(caller, binding, answer)
        finally:
            self._calls.discard(call)
            if not self._calls:
                self._idle.set()

    def _told(self, caller: Caller, binding: Binding, answer: Answer) -> Answer:
        kernel = binding.kernel
        shown = _shown(answer)
        envelope = self._sessions.envelope(caller, kernel, shown)
        answer.kernel = kernel.facts()
        answer.notices = envelope.notices
        answer.binding, answer.lease_alert = binding.line, binding.alert

        def delivered() -> None:
            self._sessions.delivered(caller, kernel, envelope, shown)
            binding.delivered()

        answer.delivered = delivered
        answer.lost = lambda: self._sessions.lost(caller, kernel, envelope)
        return _answered(answer)

    def _refuse_after_death(self, caller: Caller, kernel: Kernel) -> None:
        """A session's first cell after a death it was not told of is not run (contract 5); people see it anyway."""
        if caller.person:
            return
        told = self._sessions.told(caller, kernel)
        died = [e for e in kernel.journal.deaths() if not (e.on_purpose or told.knows(e.index))]
        if died:
            kernel.start_again()
            raise Refused(refusals.kernel_died(died[-1].death, kernel.name, died[-1].lost))

    # -- the end of the server ------------------------------------------------------

    def ends_by(self, by: str) -> None:
        """Who or what has asked for the server's end, in words."""
        self._ends_by = by
        self.registry.ends_by(by)

    async def drain(self) -> None:
        """Take no more calls; those in flight get two seconds, then are answered as running."""
        self._stopping = True
        if not await self._all_answered(DRAIN_SECONDS):
            self.registry.answer_now()
            await self._all_answered(ANSWER_SECONDS)
        self._stopped = True

    async def close(self) -> None:
        """Drain, then end every kernel with all that it started."""
        await self.drain()
        await self.registry.close()

    async def _all_answered(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            return False
        return True


def _answered(answer: Answer) -> Answer:
    answer.now = now()
    return answer


def _shown(answer: Answer) -> Shown:
    """What the result says without any notice."""
    facts = getattr(answer, "execution", None)
    if facts is None:
        died = answer.facts.get("process") if isinstance(answer, Refusal) and answer.status == "kernel_died" else None
        return Shown(deaths=frozenset({died}) if isinstance(died, int) else frozenset())
    whole = isinstance(answer, CellAnswer) and facts.completed_at is not None
    deaths = frozenset({facts.process}) if facts.death is not None else frozenset()
    return Shown((facts.process, facts.serial), whole, deaths, facts.submitted_at)


def _last_line(running: View | None, binding: Binding) -> str:
    """The last line of a progress message; with it the kernel's name as long as the caller may not know it."""
    line = running.last_line if running else ""
    return f"{line} · Kernel: {binding.line}" if binding.line else line


def _wants_full_output(source: str) -> bool:
    try:
        header = parse(source)
    except InvalidHeader:  # a foreign client's cell
        return False
    return header is not None and header.full_output
