"""One kernel's life over processes in memory: run, wait, interrupt, restart, death."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from loommux_host.kernels.kernel import Kernel, Patience
from loommux_host.kernels.outcomes import Busy, KernelClosed, KernelStartFailed, NotTaken, Ran
from loommux_host.kernels.submission import Sent
from loommux_kernel.executions.gate import Execution
from loommux_kernel.shared.protocol import Origin, OriginKind, State, Stream, Submission
from loommux_kernel.shared.records.reader import RecordReader
from loommux_kernel.shared.records.start_note import Starting
from tests.host.memory_channel import MemoryCell
from tests.host.twins import QT, Launching, Script, fail, say, until

pytestmark = pytest.mark.anyio

ME = Origin(OriginKind.SESSION, "claude", "me")
SOON = Patience(20.0, 20.0)
AT_ONCE = Patience(0.05, 20.0)


@pytest.fixture
def launching(tmp_path: Path, script: Script) -> Launching:
    return Launching(tmp_path, {"hold": script.hold, "say": say, "fail": fail})


@pytest.fixture
async def kernel(launching: Launching) -> AsyncIterator[Kernel]:
    kernel = Kernel("id", "report-cleanup", launching)
    yield kernel
    if not kernel.closed:
        await kernel.close()
    assert launching.removed


def ran(outcome: object) -> Ran:
    assert isinstance(outcome, Ran), outcome
    return outcome


async def started(launching: Launching, script: Script) -> None:
    async with asyncio.timeout(10):
        await script.running.wait()


# -- running -------------------------------------------------------------------------


async def test_a_cell_runs_and_its_end_comes_with_the_reply(kernel: Kernel) -> None:
    outcome = ran(await kernel.run("say", ME, SOON))
    assert outcome.ended_by is None
    assert outcome.view.state is State.COMPLETED
    assert outcome.sent.reply is not None
    assert outcome.sent.reply.body == "say\n"
    failed = ran(await kernel.run("fail", ME, SOON))
    assert (failed.view.number, failed.view.state, failed.view.ename) == (2, State.ERROR, "ValueError")
    assert not kernel.facts().busy


async def test_a_busy_kernel_says_what_runs_and_runs_nothing(
    kernel: Kernel, launching: Launching, script: Script
) -> None:
    first = asyncio.ensure_future(kernel.run("hold", ME, SOON))
    await started(launching, script)
    outcome = await kernel.run("say", ME, SOON)
    assert isinstance(outcome, Busy)
    assert outcome.view is not None
    assert outcome.view.number == 1
    script.go.set()
    assert ran(await first).view.state is State.COMPLETED
    assert [r.source for r in RecordReader(kernel.lives()[0].records.path).executions()] == ["hold"]


async def test_of_two_cells_sent_together_one_runs_and_one_is_told(kernel: Kernel) -> None:
    await kernel.ready()
    for _ in range(50):
        outcomes = await asyncio.gather(kernel.run("a", ME, SOON), kernel.run("b", ME, SOON))
        assert [type(o) for o in outcomes] == [Ran, Busy]
        assert isinstance(outcomes[1], Busy)
        assert ran(outcomes[0]).view is outcomes[1].view
    assert ran(await kernel.run("last", ME, SOON)).view.number == 51


async def test_a_foreign_cell_that_comes_first_withdraws_the_submission(
    kernel: Kernel, launching: Launching, script: Script
) -> None:
    await kernel.ready()
    foreign = asyncio.ensure_future(launching.channel.foreign("hold", QT))
    mine = asyncio.ensure_future(kernel.run("say", ME, SOON))
    outcome = await mine
    assert isinstance(outcome, Busy)
    assert outcome.view is not None
    assert outcome.view.origin == QT
    script.go.set()
    await foreign
    assert ran(await kernel.run("say", ME, SOON)).view.number == 2


async def test_a_foreign_cell_nobody_heard_of_is_found_when_the_kernel_refuses(
    kernel: Kernel, launching: Launching
) -> None:
    await kernel.ready()
    launching.channel.lose = 2
    await launching.channel.foreign("say", QT)
    outcome = await kernel.run("say", ME, SOON)
    assert isinstance(outcome, Busy)
    assert outcome.view is not None
    assert outcome.view.origin == QT
    assert ran(await kernel.run("say", ME, SOON)).view.number == 2


async def test_a_cancelled_call_leaves_its_cell_running(kernel: Kernel, launching: Launching, script: Script) -> None:
    call = asyncio.ensure_future(kernel.run("hold", ME, SOON))
    await started(launching, script)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    life = await kernel.ready()
    running = life.mirror.running
    assert running is not None
    script.go.set()
    assert await kernel.follow(life, lambda: not running.running, SOON) is None
    assert running.state is State.COMPLETED


# -- the two timers --------------------------------------------------------------------


async def test_the_total_timer_ends_the_call_and_not_the_cell(kernel: Kernel, script: Script) -> None:
    outcome = ran(await kernel.run("hold", ME, Patience(0.05, 20.0)))
    assert outcome.ended_by == "timeout"
    assert outcome.view.running


async def test_silence_ends_the_call_and_is_reported_when_both_end_together(kernel: Kernel, script: Script) -> None:
    assert ran(await kernel.run("hold", ME, Patience(20.0, 0.05))).ended_by == "silence"
    life = await kernel.ready()
    assert await kernel.follow(life, lambda: False, Patience(0.05, 0.05)) == "silence"


async def test_output_puts_silence_off_and_a_notice_does_not(
    kernel: Kernel, launching: Launching, script: Script
) -> None:
    call = asyncio.ensure_future(kernel.run("hold", ME, Patience(20.0, 0.5)))
    await started(launching, script)
    assert script.cell is not None
    began = asyncio.get_running_loop().time()
    for _ in range(8):
        await asyncio.sleep(0.1)
        script.cell.print(".")
    printed = asyncio.get_running_loop().time()
    script.cell.notify("still here")
    assert ran(await call).ended_by == "silence"
    took = asyncio.get_running_loop().time() - began
    assert printed - began + 0.4 < took < printed - began + 5


async def test_a_wait_counts_silence_from_its_own_beginning(kernel: Kernel, script: Script) -> None:
    outcome = ran(await kernel.run("hold", ME, Patience(0.2, 20.0)))
    began = asyncio.get_running_loop().time()
    assert await kernel.follow(outcome.life, lambda: False, Patience(20.0, 0.2)) == "silence"
    assert asyncio.get_running_loop().time() - began >= 0.19


async def test_late_output_of_an_earlier_cell_counts_as_activity(
    kernel: Kernel, launching: Launching, script: Script
) -> None:
    early = ran(await kernel.run("say", ME, SOON)).view
    call = asyncio.ensure_future(kernel.run("hold", ME, Patience(20.0, 0.5)))
    await started(launching, script)
    await asyncio.sleep(0.4)
    launching.channel.printed(early.serial, early.number, "late\n")
    await asyncio.sleep(0.3)
    assert not call.done()
    assert ran(await call).ended_by == "silence"
    assert early.late_lines == 1


# -- lost news, a kernel that does not answer ---------------------------------------------


async def test_lost_events_are_made_up_for_from_the_store(kernel: Kernel, launching: Launching, script: Script) -> None:
    life = await kernel.ready()
    launching.channel.lose = 3
    task = asyncio.ensure_future(launching.channel.foreign("hold", QT))
    await started(launching, script)
    assert life.mirror.running is None
    launching.channel.noticed(None, None, "lost")
    launching.channel.noticed(None, None, "heard")
    await kernel.follow(life, lambda: life.mirror.running is None, AT_ONCE)
    launching.channel.noticed(None, None, "again")
    await until(lambda: life.mirror.running is not None)
    assert [e.text for e in kernel.journal.notices()].count("heard") == 1
    assert "lost" in [e.text for e in kernel.journal.notices()]
    script.go.set()
    await task


async def test_an_end_that_no_event_told_is_noticed_within_seconds(
    kernel: Kernel, launching: Launching, script: Script
) -> None:
    life = await kernel.ready()
    task = asyncio.ensure_future(launching.channel.foreign("hold", QT))
    await started(launching, script)
    running = life.mirror.running
    assert running is not None
    launching.channel.lose = 100
    script.go.set()
    await task
    assert await kernel.follow(life, lambda: not running.running, SOON) is None


async def test_a_kernel_that_does_not_answer_is_told_stale_and_recovers(
    kernel: Kernel, launching: Launching, script: Script
) -> None:
    ran(await kernel.run("hold", ME, AT_ONCE))
    life = await kernel.ready()
    assert life.stale_seconds is None
    launching.channel.answers.clear()
    await until(lambda: life.stale_seconds is not None)
    assert (life.stale_seconds or 0.0) >= 1.0
    assert kernel.state == "unresponsive"
    launching.channel.answers.set()
    await until(lambda: life.stale_seconds is None)
    assert kernel.state == "running"


async def test_an_idle_kernel_is_not_asked_anything(kernel: Kernel, launching: Launching) -> None:
    ran(await kernel.run("say", ME, SOON))
    await asyncio.sleep(1.2)
    before = list(launching.channel.requests)
    await asyncio.sleep(1.5)
    assert launching.channel.requests == before


# -- interrupt ------------------------------------------------------------------------------


async def test_an_interrupt_says_what_it_saw(kernel: Kernel, launching: Launching, script: Script) -> None:
    assert (await kernel.interrupt()).result == "idle"
    call = asyncio.ensure_future(kernel.run("hold", ME, SOON))
    await started(launching, script)
    assert (await kernel.interrupt(7)).result == "not_running"
    outcome = await kernel.interrupt(1)
    assert outcome.result == "interrupted"
    assert ran(await call).view.state is State.INTERRUPTED
    assert (await kernel.interrupt(1)).result == "not_running"
    assert (await kernel.interrupt()).result == "idle"


async def test_an_interrupt_without_a_number_that_comes_right_after_an_end_finds_nothing_running(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = await kernel.ready()

    async def of_a_cell_that_has_just_ended(name: str, content: Any, *, deadline: float) -> dict[str, Any]:
        return {"result": "not_running"}

    with monkeypatch.context() as patched:
        patched.setattr(life, "ask", of_a_cell_that_has_just_ended)
        assert (await kernel.interrupt()).result == "idle"


async def test_an_interrupt_that_does_not_land_is_only_sent(
    kernel: Kernel, launching: Launching, script: Script
) -> None:
    ran(await kernel.run("hold", ME, AT_ONCE))
    launching.channel.interrupts_land = False
    outcome = await kernel.interrupt()
    assert (outcome.result, outcome.answered) == ("interrupt_sent", True)
    launching.channel.answers.clear()
    outcome = await kernel.interrupt()
    assert (outcome.result, outcome.answered) == ("interrupt_sent", False)


# -- starting, death, restart ------------------------------------------------------------------


async def test_a_start_is_tried_twice_and_the_next_call_tries_again(kernel: Kernel, launching: Launching) -> None:
    launching.failures = 2
    with pytest.raises(KernelStartFailed) as failed:
        await kernel.run("say", ME, SOON)
    assert failed.value.log_tail == "last words"
    assert launching.starts == 2
    launching.failures = 1
    assert ran(await kernel.run("say", ME, SOON)).life.process.process == 1


async def test_many_calls_share_one_start(kernel: Kernel, launching: Launching) -> None:
    lives = await asyncio.gather(*(kernel.ready() for _ in range(20)))
    assert len(set(map(id, lives))) == 1
    assert launching.starts == 1


async def test_a_process_is_used_only_when_what_it_did_before_is_known(kernel: Kernel, launching: Launching) -> None:
    launching.on_start = lambda channel: channel.answers.clear()
    calls = [asyncio.ensure_future(kernel.run("say", ME, SOON)) for _ in range(2)]
    await until(lambda: bool(launching.processes) and "status" in launching.channel.requests)
    assert (kernel.life, kernel.state) == (None, "starting")
    assert (await kernel.interrupt()).result == "idle"
    launching.channel.answers.set()
    assert sorted(type(o).__name__ for o in await asyncio.gather(*calls)) == ["Busy", "Ran"]


async def test_closing_in_the_middle_of_a_start_leaves_no_process(kernel: Kernel, launching: Launching) -> None:
    launching.on_start = lambda channel: channel.answers.clear()
    call = asyncio.ensure_future(kernel.run("say", ME, SOON))
    await until(lambda: bool(launching.processes) and "status" in launching.channel.requests)
    await kernel.close()
    assert launching.process.exited.done()
    with pytest.raises(KernelClosed):
        await call


async def test_what_happened_before_anybody_listened_is_known(kernel: Kernel, launching: Launching) -> None:
    def early(channel: object) -> None:
        launching.channel.noticed(None, None, "10-env.py failed", "Startup")
        launching.channel.noticed(None, None, "20-env.py failed", "Startup")

    launching.on_start = early
    await kernel.ready()
    assert [e.text for e in kernel.journal.notices()] == ["10-env.py failed", "20-env.py failed"]
    launching.channel.noticed(None, None, "later")
    assert [e.text for e in kernel.journal.notices()][2:] == ["later"]


async def test_a_death_ends_every_wait_with_what_was_recorded(
    kernel: Kernel, launching: Launching, script: Script
) -> None:
    call = asyncio.ensure_future(kernel.run("hold", ME, SOON))
    await started(launching, script)
    life = await kernel.ready()
    running = life.mirror.running
    assert running is not None
    assert script.cell is not None
    script.cell.print("last words\n")
    wait = asyncio.ensure_future(kernel.follow(life, lambda: not running.running, SOON))
    launching.process.die(signal="SIGKILL", rss=3 << 30)
    outcome = ran(await call)
    assert await wait is None
    assert outcome.view.state is State.KILLED
    assert outcome.life.death is not None
    assert (outcome.life.death.cause, outcome.life.death.signal) == ("signal", "SIGKILL")
    assert RecordReader(life.records.path).tail(running.serial, Stream.COMBINED, 5) == ["last words"]
    [entry] = kernel.journal.deaths()
    assert (entry.lost, entry.on_purpose) == (1, False)
    assert kernel.state == "stopped"
    assert ran(await kernel.run("say", ME, SOON)).life.process.process == 2


async def test_a_submission_that_never_started_before_the_death_was_not_run(
    kernel: Kernel, launching: Launching, script: Script
) -> None:
    await kernel.ready()
    launching.channel.lose = 100
    asyncio.ensure_future(launching.channel.foreign("hold", QT))  # noqa: RUF006
    await started(launching, script)
    call = asyncio.ensure_future(kernel.run("say", ME, SOON))
    await asyncio.sleep(0.05)
    launching.process.die(code=4)
    outcome = await call
    assert isinstance(outcome, NotTaken)
    assert outcome.death is not None
    assert (outcome.death.cause, outcome.death.code) == ("exit", 4)


async def test_a_cell_that_started_unheard_before_the_death_is_known_as_killed(
    kernel: Kernel, launching: Launching, script: Script
) -> None:
    await kernel.ready()
    launching.channel.lose = 100
    call = asyncio.ensure_future(kernel.run("hold", ME, SOON))
    await started(launching, script)
    launching.process.die(code=4)
    assert ran(await call).view.state is State.KILLED


async def test_a_cell_the_kernel_does_not_take_is_withdrawn_when_the_call_ends(
    kernel: Kernel, launching: Launching
) -> None:
    await kernel.ready()
    async with launching.channel.turn:
        outcome = await kernel.run("say", ME, AT_ONCE)
        assert isinstance(outcome, NotTaken)
        assert outcome.withdrawn
    assert ran(await kernel.run("last", ME, SOON)).view.number == 1


async def test_a_cell_that_started_before_and_nobody_heard_of_is_told_when_the_call_ends(
    kernel: Kernel, launching: Launching, script: Script
) -> None:
    await kernel.ready()
    launching.channel.lose = 1
    task = asyncio.ensure_future(launching.channel.foreign("hold", QT))
    await started(launching, script)
    outcome = await kernel.run("say", ME, AT_ONCE)
    assert isinstance(outcome, Busy)
    assert outcome.view is not None
    assert outcome.view.source == "hold"
    script.go.set()
    await task
    assert [r.source for r in RecordReader(kernel.lives()[0].records.path).executions()] == ["hold"]


async def test_of_a_cell_that_keeps_the_kernel_from_telling_its_note_tells(
    kernel: Kernel, launching: Launching
) -> None:
    await kernel.ready()
    held = launching.channel
    held.answers.clear()
    async with held.turn:
        call = asyncio.ensure_future(kernel.run("native", ME, AT_ONCE))
        await until(lambda: kernel.life is not None and kernel.life.pending is not None)
        assert kernel.life is not None
        assert kernel.life.pending is not None
        submission = kernel.life.pending.submission
        note = Execution(1, 1, ME, submission.id, "native", submission.submitted_at, submission.submitted_at)
        Starting(launching.directory).note(note)
        assert ran(await call).view.number == 1
        busy = await kernel.run("say", ME, AT_ONCE)
        assert isinstance(busy, Busy)
        interrupted = await kernel.interrupt()
        assert (interrupted.result, interrupted.answered) == ("interrupt_sent", False)
    held.answers.set()


async def test_restarting_an_idle_kernel_lets_it_leave_in_order(kernel: Kernel, launching: Launching) -> None:
    ran(await kernel.run("say", ME, SOON))
    done = await kernel.restart("session claude", "me")
    assert done.old is not None
    assert done.old.death is not None
    assert (done.old.death.cause, done.old.death.by, done.old.death.code) == ("restart", "session claude", 0)
    assert (done.new.process.process, done.killed) == (2, None)
    assert "quit" in launching.processes[0].channel.requests
    [entry] = kernel.journal.deaths()
    assert (entry.on_purpose, entry.not_for) == (True, "me")


async def test_restarting_a_busy_kernel_ends_it_at_once(kernel: Kernel, launching: Launching, script: Script) -> None:
    call = asyncio.ensure_future(kernel.run("hold", ME, SOON))
    await started(launching, script)
    first, second = await asyncio.gather(kernel.restart(), kernel.restart())
    assert first is second
    assert first.killed is not None
    assert first.killed.state is State.KILLED
    assert ran(await call).view is first.killed
    assert "quit" not in launching.processes[0].channel.requests


async def test_restarting_works_without_a_process(kernel: Kernel, launching: Launching) -> None:
    done = await kernel.restart()
    assert (done.old, done.new.process.process) == (None, 1)
    launching.process.die(code=1)
    done = await kernel.restart()
    assert done.new.process.process == 2


async def test_cells_sent_during_a_restart_run_in_the_new_process(kernel: Kernel) -> None:
    await kernel.ready()
    restart = asyncio.ensure_future(kernel.restart())
    await asyncio.sleep(0)
    outcome = ran(await kernel.run("say", ME, SOON))
    assert outcome.life.process.process == 2
    await restart


async def test_records_of_the_last_three_ended_processes_stay(kernel: Kernel, launching: Launching) -> None:
    await kernel.ready()
    for _ in range(5):
        await kernel.restart()
    assert [life.process.process for life in kernel.lives()] == [6, 5, 4, 3]
    await asyncio.sleep(0)
    assert launching.discarded == [1, 2]


async def test_a_closed_kernel_starts_nothing(kernel: Kernel, launching: Launching) -> None:
    await kernel.ready()
    await kernel.close()
    with pytest.raises(KernelClosed):
        await kernel.run("say", ME, SOON)
    with pytest.raises(KernelClosed):
        await kernel.restart()
    assert launching.starts == 1


async def test_a_name_is_told_to_the_process(kernel: Kernel, launching: Launching) -> None:
    await kernel.ready()
    kernel.rename("report")
    await asyncio.sleep(0.01)
    assert "rename" in launching.channel.requests
    assert kernel.facts().name == "report"


async def test_what_was_told_is_reported_to_the_process_a_little_later(kernel: Kernel, launching: Launching) -> None:
    life = await kernel.ready()
    for serial in (1, 2, 2):
        life.told(serial)
    assert "told" not in launching.channel.requests
    await until(lambda: launching.channel.told == [1, 2])
    assert launching.channel.requests.count("told") == 1


def test_a_submission_is_decided_once() -> None:
    assert not Sent(Submission("s", 0, ME, 1.0), "x").decided


async def test_answer_now_ends_every_waiting_call(kernel: Kernel, launching: Launching, script: Script) -> None:
    call = asyncio.ensure_future(kernel.run("hold", ME, SOON))
    await started(launching, script)
    kernel.answer_now()
    assert ran(await call).ended_by == "shutdown"


async def test_a_cell_that_prints_while_it_is_followed_stays_one_cell(kernel: Kernel, launching: Launching) -> None:
    async def chatter(cell: MemoryCell) -> None:
        for n in range(100):
            cell.print(f"{n}\n")
            await asyncio.sleep(0)

    launching.codes["chatter"] = chatter
    outcome = ran(await kernel.run("chatter", ME, SOON))
    assert outcome.view.counts.lines == 100
