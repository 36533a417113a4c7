"""Which execution a call means (contract 3): the selection rule, and what is known of it.

Answers from the mirrors where they know, else from the record stores. Called by `service`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from loommux_host.facts.refusals import Refused, execution_not_found, process_not_found
from loommux_host.facts.results import Answer, CellAnswer, Death, ExecutionFacts, ExecutionStatusAnswer
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.mirror import View
from loommux_host.kernels.process_life import Life
from loommux_host.kernels.record_files import RecordFiles
from loommux_host.kernels.record_reads import RecordsBehind, RecordsGone, RecordsUnreadable, in_thread, reading
from loommux_kernel.shared.protocol import Counts, State, Stream
from loommux_kernel.shared.record_types import ExecutionRecord
from loommux_kernel.shared.records.reader import LOST, RecordReader


@dataclass(frozen=True)
class Chosen:
    """An execution. `view` is None when only the store knows it; `older`: of an earlier process, unasked."""

    life: Life
    facts: ExecutionFacts
    view: View | None = None
    older: bool = False


async def choose(kernel: Kernel, number: int | None, process: int | None) -> Chosen:
    """In [`number`], or without one the running, then the most recent. Raises `Refused`."""
    await kernel.accounted()
    lives = kernel.lives()
    if process is not None:
        lives = [life for life in lives if life.process.process == process]
        if not lives:
            raise Refused(process_not_found(process, kernel.name, _numbers(kernel)))
    await named(kernel)
    if number is not None:
        return await _numbered(lives, number, process)
    for life in lives:
        view = life.mirror.running or life.mirror.recent
        if view is not None:
            return Chosen(life, of_view(life, view), view, older=life is not lives[0])
    raise Refused(execution_not_found(None, None, process=process))


def of_view(life: Life, view: View) -> ExecutionFacts:
    return _facts(life, view, view.counts)


def of_record(life: Life, record: ExecutionRecord) -> ExecutionFacts:
    return _facts(life, record, record.counts.get(Stream.COMBINED, Counts()))


def _facts(life: Life, known: View | ExecutionRecord, counts: Counts) -> ExecutionFacts:
    return ExecutionFacts(
        serial=known.serial,
        number=known.number,
        process=life.process.process,
        origin=known.origin,
        source=known.source,
        state=known.state,
        submitted_at=known.submitted_at,
        started_at=known.started_at,
        updated_at=known.updated_at,
        completed_at=known.completed_at,
        counts=counts,
        kernel_pid=life.pid,
        ename=known.ename,
        evalue=known.evalue,
        late_lines=known.late_lines,
        death=life.death if known.state is State.KILLED else None,
        dropped=known.dropped,
    )


def taken_in(reader: RecordReader, chosen: Chosen) -> ExecutionRecord | None:
    """Its record, which ends with its output if it has ended; None of one that runs and has none yet.

    Raises `RecordsBehind` for one that has ended when its record has not, and may yet: its process lives.
    """
    record = reader.by_serial(chosen.facts.serial)
    if chosen.facts.state is State.RUNNING or (record is not None and record.state is not State.RUNNING):
        return record
    if chosen.life.alive:
        raise RecordsBehind(chosen.life.records.path)
    return record and replace(record, state=chosen.facts.state, completed_at=chosen.facts.completed_at, dropped=LOST)


async def account_for(kernel: Kernel, answer: Answer) -> None:
    """Add how the process of a killed cell ended: that can become known a moment after the cell's own end."""
    facts = answer.execution if isinstance(answer, CellAnswer | ExecutionStatusAnswer) else None
    if facts is None or facts.state is not State.KILLED or facts.death is not None:
        return
    await kernel.accounted()
    deaths = [life.death for life in kernel.lives() if life.process.process == facts.process]
    assert isinstance(answer, CellAnswer | ExecutionStatusAnswer)
    answer.execution = replace(facts, death=deaths[0] if deaths else None)


async def named(kernel: Kernel) -> None:
    """A cell that was sent a moment ago is the one that is meant, as soon as it has started."""
    life = kernel.life
    if life is not None and life.pending is not None:
        await kernel.settle(life, life.pending)


async def _numbered(lives: list[Life], number: int, process: int | None) -> Chosen:
    recent = following = None
    if lives:
        life = lives[0]
        view = life.mirror.by_number(number)
        if view is not None:
            return Chosen(life, of_view(life, view), view)
        record = await in_thread(_record, life.records, number)
        if record is not None:
            return Chosen(life, of_record(life, record))
        recent = life.mirror.recent
        following = life.process.process if len(lives) > 1 else None
    elsewhere = None if process is not None else await _elsewhere(lives[1:], number)
    asked = recent.number if recent else None
    raise Refused(execution_not_found(number, asked, elsewhere, process, following=following))


async def _elsewhere(lives: list[Life], number: int) -> Death | None:
    """The end of the newest earlier process that has In [`number`]."""
    for life in lives:
        with contextlib.suppress(RecordsGone, RecordsUnreadable):  # then it cannot be named
            if life.mirror.by_number(number) or await in_thread(_record, life.records, number):
                return life.death
    return None


def _record(files: RecordFiles, number: int) -> ExecutionRecord | None:
    with reading(files) as reader:
        return reader.by_number(number)


def _numbers(kernel: Kernel) -> list[int]:
    return sorted(life.process.process for life in kernel.lives())
