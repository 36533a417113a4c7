"""The use-cases over kernels in memory: what each answers, refuses and tells whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loommux_host.facts.results import (
    CellAnswer,
    ExecutionStatusAnswer,
    InterruptAnswer,
    Notice,
    ReadAnswer,
    Refusal,
    RestartAnswer,
    SearchAnswer,
    StatusAnswer,
)
from loommux_host.sessions.callers import Caller
from loommux_host.usecases import result_bodies
from loommux_host.usecases.execution_selection import Chosen
from loommux_kernel.shared.protocol import Counts, State, Stream
from tests.host.answers import of, refused
from tests.host.memory_channel import HELD_AT, MemoryCell, MemoryProcessInfo
from tests.host.twins import ME, OTHER, PERSON, QT, Script, Server, fail, say, server, until

pytestmark = pytest.mark.anyio


async def long(cell: MemoryCell) -> State | None:
    """Prints more than comes with a reply, and less than the limit of the tests."""
    cell.print("".join(f"line {n}\n" for n in range(1, 1001)))
    return None


async def longer(cell: MemoryCell) -> State | None:
    """Prints more than the limit of the tests."""
    cell.print("".join(f"line {n}\n" for n in range(1, 5001)))
    return None


async def noticing(cell: MemoryCell) -> State | None:
    cell.notify("past 2 GiB")
    return None


@pytest.fixture
async def at(tmp_path: Path, script: Script) -> AsyncIterator[Server]:
    full = "%%loommux --full-output\nlonger"
    codes = {
        "hold": script.hold, "say": say, "fail": fail, "long": long, "longer": longer, full: longer,
        "%%loommux --wait 0.1\nhold": script.hold, "noticing": noticing,
    }  # fmt: skip
    made = server(tmp_path, codes)
    yield made
    script.go.set()
    await made.service.close()


async def running(
    at: Server, script: Script, source: str = "%%loommux --wait 0.1\nhold", caller: Caller = ME
) -> CellAnswer:
    """A cell that goes on."""
    answer = of(CellAnswer, await at.service.run_cell(caller, source))
    assert script.running.is_set()
    return answer


# -- run_cell ------------------------------------------------------------------------


async def test_a_result_carries_the_execution_its_output_and_the_kernel(at: Server) -> None:
    answer = of(CellAnswer, await at.service.run_cell(ME, "say"))
    assert answer.body == "say\n"
    assert answer.execution is not None
    assert (answer.execution.number, answer.execution.state) == (1, State.COMPLETED)
    assert answer.execution.origin == ME.origin()
    assert answer.kernel is not None
    assert (answer.kernel.name, answer.kernel.process, answer.kernel.busy) == ("report-cleanup", 1, False)
    assert answer.notices == []
    assert answer.now >= (answer.execution.completed_at or 0)


async def test_a_python_error_is_a_state_and_no_refusal(at: Server) -> None:
    answer = of(CellAnswer, await at.service.run_cell(ME, "fail"))
    assert answer.execution is not None
    assert (answer.execution.state, answer.execution.ename) == (State.ERROR, "ValueError")


@pytest.mark.parametrize("blank", ["", " \n\t\n", "%%loommux --wait 3\n\n"])
async def test_a_blank_cell_is_refused(at: Server, blank: str) -> None:
    assert refused(await at.service.run_cell(ME, blank))[0] == "empty_cell"


@pytest.mark.parametrize("header", ["--wait x", "--wait 0", "--nope", "positional", "--create"])
async def test_a_bad_header_is_refused_before_anything_runs(at: Server, header: str) -> None:
    assert refused(await at.service.run_cell(ME, f"%%loommux {header}\nsay"))[0] == "invalid_cell_header"
    assert at.kernel.lives() == [] or at.kernel.lives()[0].mirror.recent is None


async def test_busy_says_whose_cell_runs(at: Server, script: Script) -> None:
    await running(at, script)
    status, message = refused(await at.service.run_cell(ME, "say"))
    assert status == "busy"
    assert message.startswith("In [1] of report-cleanup has run for ")
    assert message.endswith("sent by this session. Nothing was run. Use wait(), or interrupt(execution=1).")
    _, message = refused(await at.service.run_cell(OTHER, "say"))
    assert "sent by session claude-11111111" in message


async def test_a_running_cell_is_answered_with_its_last_lines(at: Server, script: Script) -> None:
    answer = await running(at, script)
    assert (answer.body, answer.body_omitted, answer.ended_by) == (None, "running", "timeout")
    assert script.cell is not None
    script.cell.print("".join(f"{n}\n\n" for n in range(9)))
    answer = of(CellAnswer, await at.service.wait(ME, timeout_seconds=0.01))
    assert answer.recent == ["4", "5", "6", "7", "8"]
    assert answer.silent_seconds is not None
    assert "flush" in at.launching.channel.requests


async def test_larger_output_is_fetched_when_it_can_be_within_the_limit(at: Server) -> None:
    answer = of(CellAnswer, await at.service.run_cell(ME, "long"))
    assert answer.body is not None
    assert answer.body.endswith("line 1000\n")


async def test_output_over_the_limit_is_omitted_with_its_last_lines(at: Server) -> None:
    answer = of(CellAnswer, await at.service.run_cell(ME, "longer"))
    assert (answer.body, answer.body_omitted) == (None, "token_limit_exceeded")
    assert answer.tail == [f"line {n}" for n in range(4981, 5001)]
    assert answer.execution is not None
    assert answer.execution.counts.lines == 5000


async def test_full_output_is_given_also_by_a_later_wait(at: Server) -> None:
    for answer in (
        await at.service.run_cell(ME, "%%loommux --full-output\nlonger"),
        await at.service.wait(ME),
    ):
        cell = of(CellAnswer, answer)
        assert cell.full_output
        assert cell.body is not None
        assert cell.body.endswith("line 5000\n")


async def test_a_cell_for_another_kernel_goes_to_this_one_which_forwards_it(at: Server) -> None:
    for name in ("report-cleanup", "other"):
        at.launching.codes[f"%%loommux --kernel {name}\nsay"] = say
        of(CellAnswer, await at.service.run_cell(ME, f"%%loommux --kernel {name}\nsay"))


async def test_over_stdio_there_is_only_one_kernel_to_attach_to(at: Server) -> None:
    status, message = refused(await at.service.run_cell(ME, "%%loommux --attach other\nsay"))
    assert status == "kernel_not_found"
    assert "report-cleanup" in message
    of(CellAnswer, await at.service.run_cell(ME, f"%%loommux --attach {at.kernel.id}\nsay"))
    for options in ("--alone", "--create --keep", "--create --autoclose"):
        status, message = refused(await at.service.run_cell(ME, f"%%loommux --attach {at.kernel.id} {options}\nsay"))
        assert status == "invalid_cell_header" and "a server over stdio has one client" in message


# -- selecting -------------------------------------------------------------------------


async def test_without_a_number_the_running_then_the_most_recent_execution_is_meant(at: Server, script: Script) -> None:
    assert refused(await at.service.wait(ME))[0] == "execution_not_found"
    await at.service.run_cell(ME, "say")
    await running(at, script)
    answer = of(ExecutionStatusAnswer, await at.service.execution_status(ME))
    assert answer.execution is not None
    assert (answer.execution.number, answer.execution.state) == (2, State.RUNNING)
    script.go.set()
    assert of(CellAnswer, await at.service.wait(ME)).execution == (
        of(ExecutionStatusAnswer, await at.service.execution_status(ME, execution=2)).execution
    )
    first = of(CellAnswer, await at.service.wait(ME, execution=1))
    assert first.body == "say\n"


async def test_a_process_without_executions_gives_the_last_of_the_one_before_and_says_so(at: Server) -> None:
    await at.service.run_cell(ME, "say")
    await at.service.restart(ME)
    answer = of(ReadAnswer, await at.service.read_output(ME))
    assert answer.execution is not None
    assert (answer.execution.process, answer.older_process, answer.lines) == (1, True, ["say"])


async def test_a_number_that_another_process_has_is_hinted_at(at: Server) -> None:
    for _ in range(3):
        await at.service.run_cell(ME, "say")
    await at.service.restart(ME)
    await at.service.run_cell(ME, "say")
    status, message = refused(await at.service.wait(ME, execution=3))
    assert status == "execution_not_found"
    assert message.startswith("In [3] does not exist; the most recent is In [1]. Process 1, which ended by restart")
    assert message.endswith("has In [3]: pass process=1.")
    old = of(CellAnswer, await at.service.wait(ME, execution=3, process=1))
    assert (old.body, old.older_process) == ("say\n", False)
    assert refused(await at.service.wait(ME, process=7))[0] == "process_not_found"


async def test_a_call_right_behind_a_submission_means_that_cell(at: Server, script: Script) -> None:
    await at.service.run_cell(ME, "say")
    call = asyncio.ensure_future(at.service.run_cell(ME, "hold"))
    life = await at.kernel.ready()
    while life.pending is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    answer = of(ExecutionStatusAnswer, await at.service.execution_status(ME))
    assert answer.execution is not None
    assert answer.execution.number == 2
    script.go.set()
    await call


# -- waiting ---------------------------------------------------------------------------


async def test_waiting_ends_with_the_cell_and_gives_its_whole_result_again_and_again(
    at: Server, script: Script
) -> None:
    await running(at, script)
    wait = asyncio.ensure_future(at.service.wait(ME, timeout_seconds=20, silence_seconds=20))
    await asyncio.sleep(0)
    assert script.cell is not None
    script.cell.print("done\n")
    script.go.set()
    for answer in (await wait, await at.service.wait(ME), await at.service.wait(OTHER, execution=1)):
        assert of(CellAnswer, answer).body == "done\n"


async def test_progress_is_sent_while_a_call_waits_and_its_failure_harms_nobody(
    at: Server, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loommux_host.kernels.wait_timers.PROGRESS_SECONDS", 0.05)
    sent: list[tuple[float, str]] = []

    async def progress(elapsed: float, last_line: str) -> None:
        sent.append((elapsed, last_line))
        if len(sent) == 1:
            raise OSError("the client is gone")

    call = asyncio.ensure_future(at.service.run_cell(ME, "hold", progress=progress))
    await script.running.wait()
    assert script.cell is not None
    script.cell.print("waiting for port 5173\n")
    await until(lambda: bool(sent) and sent[-1][1] == "waiting for port 5173")
    script.go.set()
    await call
    assert sent[-1][0] > 0


# -- looking ----------------------------------------------------------------------------


async def test_status_answers_at_once_while_the_kernel_does_not(at: Server, script: Script) -> None:
    await at.service.run_cell(ME, "noticing")
    await at.launching.channel.foreign("say", QT)
    await running(at, script)
    at.launching.channel.answers.clear()
    await until(lambda: at.kernel.facts().stale_seconds is not None)
    answer = of(StatusAnswer, await at.service.status(ME))
    assert answer.kernel is not None
    assert answer.kernel.stale_seconds is not None
    assert answer.kernel.stale_seconds >= 1
    assert answer.state == "unresponsive"
    assert answer.current is not None
    assert answer.current.number == 3
    assert [e.number for e in answer.last_five] == [3, 2, 1]
    assert answer.last_notices == [Notice("past 2 GiB", "In [1]")]
    assert answer.others == ["qtconsole"]
    assert answer.attach_command is not None
    assert answer.attach_command.endswith(" --existing /connection.json")
    status = of(ExecutionStatusAnswer, await at.service.execution_status(ME))
    assert status.silent_seconds is not None


async def test_notices_of_an_earlier_process_say_so(at: Server) -> None:
    await at.service.run_cell(ME, "noticing")
    assert of(StatusAnswer, await at.service.status(ME)).last_notices == [Notice("past 2 GiB", "In [1]")]
    await at.service.restart(ME)
    [first, *_] = of(StatusAnswer, await at.service.status(ME)).last_notices
    assert first == Notice("past 2 GiB", "process 1, In [1]")


async def test_status_says_what_keeps_an_idle_kernel_from_running_cells(at: Server) -> None:
    await at.service.run_cell(ME, "say")
    assert of(StatusAnswer, await at.service.status(ME)).held_at is None
    async with at.launching.channel.turn:
        answer = of(StatusAnswer, await at.service.status(ME))
        assert (answer.current, answer.held_at) == (None, HELD_AT)
    assert of(StatusAnswer, await at.service.status(ME)).held_at is None


async def test_status_before_anything_ran_says_what_there_is(at: Server) -> None:
    answer = of(StatusAnswer, await at.service.status(ME))
    assert (answer.state, answer.current, answer.last_five) == ("starting", None, [])
    assert (answer.workspace, answer.workspace_resolution, answer.python) == ("/work", "launch_cwd", "/usr/bin/python3")


async def test_lines_are_read_by_range(at: Server) -> None:
    await at.service.run_cell(ME, "long")
    answer = of(ReadAnswer, await at.service.read_output(ME, line_range="20:22", max_chars=5))
    assert (answer.first, answer.last, answer.total.lines) == (20, 22, 1000)
    assert answer.lines == [f"line …[{n} chars omitted]" for n in (2, 2, 2)]
    assert (answer.line_range, answer.max_chars) == ("20:22", 5)


async def test_of_more_lines_than_a_result_carries_only_the_ends_are_held(at: Server) -> None:
    async def huge(cell: MemoryCell) -> State | None:
        cell.print("".join(f"line {n:06d}\n" for n in range(1, 60_001)))
        return None

    at.launching.codes["huge"] = huge
    await at.service.run_cell(ME, "huge")
    for line_range, first, count in ((None, 1, 60_000), ("1000:50000", 1000, 49_001)):
        answer = of(ReadAnswer, await at.service.read_output(ME, line_range=line_range))
        assert answer.lines[0] == f"line {first:06d}"
        assert 200_000 < sum(len(line) + 1 for line in answer.lines) < 250_000
        assert answer.tail is not None
        assert (len(answer.tail), answer.tail[-1]) == (500, f"line {first + count - 1:06d}")
        assert answer.size == Counts(count, count * 12, count * 12)
    small = of(ReadAnswer, await at.service.read_output(ME, line_range="1000:11000"))
    assert (len(small.lines), small.tail, small.size) == (10_001, None, None)


async def test_reading_does_not_wait_for_a_kernel_that_does_not_answer(at: Server, script: Script) -> None:
    await running(at, script)
    assert script.cell is not None
    script.cell.print("here\n")
    at.launching.channel.answers.clear()
    async with asyncio.timeout(2):
        assert of(ReadAnswer, await at.service.read_output(ME)).lines == ["here"]


async def test_lines_are_found(at: Server) -> None:
    await at.service.run_cell(ME, "long")
    answer = of(SearchAnswer, await at.service.search_output(ME, query="line 77", query_mode="literal"))
    assert answer.interpretation == "literal"
    assert answer.result is not None
    assert answer.result.matching_lines == 11
    assert answer.result.rows[0] == (77, "M", "line 77")


async def test_bad_values_are_refused_by_name(at: Server) -> None:
    await at.service.run_cell(ME, "say")
    for answer, name in (
        (await at.service.read_output(ME, stream="out"), "stream"),
        (await at.service.read_output(ME, line_range="x"), "line_range"),
        (await at.service.read_output(ME, max_chars=0), "max_chars"),
        (await at.service.search_output(ME, query="x", query_mode="glob"), "query_mode"),
        (await at.service.search_output(ME, query="x", context_before=-1), "context_before"),
        (await at.service.search_output(ME, query="(", query_mode="regex"), "query"),
    ):
        status, message = refused(answer)
        assert (status, name in message) == ("invalid_argument", True), message


async def test_a_bad_pattern_costs_its_own_call_alone(at: Server) -> None:
    async def trap(cell: MemoryCell) -> State | None:
        cell.print("a" * 70 + "b\n")
        return None

    at.launching.codes["trap"] = trap
    await at.service.run_cell(ME, "trap")
    bad = [asyncio.ensure_future(at.service.search_output(ME, query="(a|aa)+$", query_mode="regex")) for _ in range(4)]
    await asyncio.sleep(0.05)
    began = asyncio.get_running_loop().time()
    of(ReadAnswer, await at.service.read_output(ME))
    of(CellAnswer, await at.service.run_cell(ME, "say"))
    assert asyncio.get_running_loop().time() - began < 1.5
    for answer in await asyncio.gather(*bad):
        assert refused(answer)[0] == "query_too_expensive"


async def test_structured_results_carry_the_single_streams(tmp_path: Path) -> None:
    async def both(cell: MemoryCell) -> State | None:
        cell.print("out\n")
        cell.print("err\n", Stream.STDERR)
        return None

    made = server(tmp_path, {"both": both}, structured=True)
    answer = of(CellAnswer, await made.service.run_cell(ME, "both"))
    assert answer.streams == {Stream.STDOUT: "out\n", Stream.STDERR: "err\n", Stream.RESULT: ""}
    await made.service.close()


# -- interrupting ------------------------------------------------------------------------


async def test_ones_own_cell_is_interrupted_without_its_number(at: Server, script: Script) -> None:
    await running(at, script)
    answer = of(InterruptAnswer, await at.service.interrupt(ME))
    assert answer.result == "interrupted"
    assert answer.execution is not None
    assert answer.execution.state is State.INTERRUPTED
    assert of(InterruptAnswer, await at.service.interrupt(ME)).result == "idle"
    assert of(InterruptAnswer, await at.service.interrupt(ME, execution=9)).result == "not_running"


async def test_the_cell_of_someone_who_is_still_there_is_interrupted_only_by_number_and_the_owner_is_told(
    at: Server, script: Script
) -> None:
    await running(at, script)
    at.time[0] += 59
    status, message = refused(await at.service.interrupt(OTHER))
    assert status == "not_yours"
    assert "sent by session claude-11111111" in message
    assert of(InterruptAnswer, await at.service.interrupt(OTHER, execution=1)).result == "interrupted"
    told = of(CellAnswer, await at.service.wait(ME)).notices
    assert told == [Notice("In [1] was interrupted by session claude-22222222")]


async def test_the_cell_of_someone_who_left_a_minute_ago_may_be_interrupted(at: Server, script: Script) -> None:
    await running(at, script)
    at.time[0] += 61
    assert of(InterruptAnswer, await at.service.interrupt(OTHER)).result == "interrupted"


async def test_an_open_call_makes_its_caller_be_there(at: Server, script: Script) -> None:
    call = asyncio.ensure_future(at.service.run_cell(ME, "hold"))
    await script.running.wait()
    at.time[0] += 600
    assert refused(await at.service.interrupt(OTHER))[0] == "not_yours"
    script.go.set()
    await call


async def test_people_are_never_refused(at: Server, script: Script) -> None:
    await running(at, script)
    assert of(InterruptAnswer, await at.service.interrupt(PERSON)).result == "interrupted"
    assert [n.text for n in of(StatusAnswer, await at.service.status(ME)).notices] == [
        "In [1] was interrupted by the console"
    ]


@pytest.mark.parametrize(("heard", "result"), [(10.0, "not_yours"), (100.0, "interrupted")])
async def test_a_foreign_cell_belongs_to_its_client_while_that_is_heard(
    at: Server, script: Script, heard: float, result: str
) -> None:
    await at.kernel.ready()
    task = asyncio.ensure_future(at.launching.channel.foreign("hold", QT))
    await script.running.wait()
    life = at.kernel.life
    assert life is not None
    assert life.mirror.running is not None
    at.launching.channel.clients = [{"client": QT.client, "label": "qtconsole", "heard_seconds": heard}]
    answer = await at.service.interrupt(ME)
    assert (answer.status if isinstance(answer, Refusal) else of(InterruptAnswer, answer).result) == result
    script.go.set()
    await task


async def test_processes_out_of_reach_are_listed(at: Server, script: Script) -> None:
    await running(at, script)
    at.launching.channel.children = {"pending_children": [], "left_children": [77, 78]}
    at.launching.process.children = [MemoryProcessInfo(77, "sleep 1000"), MemoryProcessInfo(79, "make")]
    answer = of(InterruptAnswer, await at.service.interrupt(ME))
    assert answer.survivors == [(77, "sleep 1000")]
    assert (answer.ended_processes, answer.still_alive) == (0, [])


async def test_processes_are_said_to_have_ended_only_when_they_have(at: Server, script: Script) -> None:
    await running(at, script)
    at.launching.channel.children = {"pending_children": [77, 78, 80], "left_children": []}
    children = at.launching.process.children = [MemoryProcessInfo(77, "stuck"), MemoryProcessInfo(80, "slow")]
    asyncio.get_running_loop().call_later(0.3, children.pop)
    answer = of(InterruptAnswer, await at.service.interrupt(ME))
    assert (answer.result, answer.ended_processes, answer.still_alive) == ("interrupted", 2, [(77, "stuck")])


# -- restart and death --------------------------------------------------------------------


async def test_a_restart_says_what_it_ended_and_is_no_death(at: Server, script: Script) -> None:
    await running(at, script)
    at.launching.channel.clients = [{"client": "qt", "label": "qtconsole", "heard_seconds": 1.0}]
    answer = of(RestartAnswer, await at.service.restart(ME))
    assert (answer.old_process, answer.new_process, answer.old_pid, answer.new_pid) == (1, 2, 1001, 1002)
    assert answer.ended_execution is not None
    assert answer.ended_execution.state is State.KILLED
    assert answer.attached_clients == ["qtconsole"]
    assert answer.notices == []
    of(CellAnswer, await at.service.run_cell(ME, "say"))


async def test_another_session_is_told_of_a_restart_and_its_cell_runs(at: Server) -> None:
    of(CellAnswer, await at.service.run_cell(OTHER, "say"))
    of(RestartAnswer, await at.service.restart(ME))
    answer = of(CellAnswer, await at.service.run_cell(OTHER, "say"))
    [notice] = answer.notices
    assert notice.text.startswith("Process 1 ended by restart (session claude-11111111) at ")


async def test_a_death_is_told_once_to_each_session_and_its_first_cell_is_not_run(at: Server) -> None:
    for caller in (ME, OTHER):
        of(CellAnswer, await at.service.run_cell(caller, "say"))
    at.launching.process.die(signal="SIGSEGV")
    await until(lambda: at.kernel.state == "stopped")
    status, message = refused(await at.service.run_cell(ME, "say"))
    assert status == "kernel_died"
    assert message.startswith("process 1 of report-cleanup ended by SIGSEGV at ")
    answer = of(CellAnswer, await at.service.run_cell(ME, "say"))
    assert answer.execution is not None
    assert (answer.execution.process, answer.execution.number) == (2, 1)
    looked = of(StatusAnswer, await at.service.status(OTHER))
    assert [n.text.split(" at ")[0] for n in looked.notices][:1] == ["Process 1 ended by SIGSEGV"]
    of(CellAnswer, await at.service.run_cell(OTHER, "say"))


@pytest.mark.parametrize("turns", range(8))
async def test_a_cell_sent_in_the_moment_of_a_death_is_never_run_in_the_new_process(at: Server, turns: int) -> None:
    of(CellAnswer, await at.service.run_cell(ME, "say"))
    at.launching.process.die(code=4)
    for _ in range(turns):
        await asyncio.sleep(0)
    assert refused(await at.service.run_cell(ME, "say"))[0] == "kernel_died"
    answer = of(CellAnswer, await at.service.run_cell(ME, "say"))
    assert answer.execution is not None
    assert (answer.execution.process, answer.execution.number) == (2, 1)


async def test_a_death_in_the_middle_of_a_cell_is_its_result_and_needs_no_telling(at: Server, script: Script) -> None:
    call = asyncio.ensure_future(at.service.run_cell(ME, "hold"))
    await script.running.wait()
    at.launching.process.die(signal="SIGKILL", rss=2 << 30)
    answer = of(CellAnswer, await call)
    assert answer.execution is not None
    assert answer.execution.state is State.KILLED
    assert answer.execution.death is not None
    assert answer.execution.death.max_rss_bytes == 2 << 30
    assert answer.notices == []
    of(CellAnswer, await at.service.run_cell(ME, "say"))


@pytest.mark.parametrize("how", ["its process dies", "it completes"])
async def test_a_cell_that_ends_while_its_call_is_answered_is_not_said_to_run(
    at: Server, script: Script, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    loop, recent = asyncio.get_running_loop(), result_bodies._recent

    async def end() -> None:
        if how == "its process dies":
            at.launching.process.die(code=4)
            await until(lambda: at.kernel.state == "stopped")
        else:
            script.go.set()
            await until(lambda: at.kernel.life is not None and not at.kernel.life.busy)

    def after_its_end(chosen: Chosen) -> list[str]:
        lines = recent(chosen)
        asyncio.run_coroutine_threadsafe(end(), loop).result(20)
        return lines

    monkeypatch.setattr(result_bodies, "_recent", after_its_end)
    answer = of(CellAnswer, await at.service.run_cell(ME, "%%loommux --wait 0.1\nhold"))
    assert answer.execution is not None
    died = how == "its process dies"
    assert answer.execution.state is (State.KILLED if died else State.COMPLETED)
    assert (answer.execution.death is not None) == died
    assert (answer.body_omitted, answer.ended_by, answer.notices) == (None, None, [])
    assert answer.body is not None


async def test_a_result_that_was_never_handed_over_leaves_its_death_untold(at: Server, script: Script) -> None:
    call = asyncio.ensure_future(at.service.run_cell(ME, "hold"))
    await script.running.wait()
    at.launching.process.die(code=4)
    assert isinstance(await call, CellAnswer)
    assert refused(await at.service.run_cell(ME, "say"))[0] == "kernel_died"


async def test_a_kernel_that_cannot_start_is_refused_with_its_log_and_tried_again(tmp_path: Path) -> None:
    made = server(tmp_path, {"say": say})
    made.launching.failures = 2
    status, message = refused(await made.service.run_cell(ME, "say"))
    assert status == "kernel_start_failed"
    assert "it did not get ready" in message
    assert message.endswith("last words")
    of(CellAnswer, await made.service.run_cell(ME, "say"))
    await made.service.close()


# -- notices --------------------------------------------------------------------------------


async def test_each_session_has_each_notice_once_also_while_a_cell_runs(at: Server, script: Script) -> None:
    of(StatusAnswer, await at.service.status(OTHER))
    assert of(CellAnswer, await at.service.run_cell(ME, "noticing")).notices == [Notice("past 2 GiB")]
    await running(at, script)
    assert script.cell is not None
    script.cell.notify("half way")
    assert of(CellAnswer, await at.service.wait(ME, timeout_seconds=0.01)).notices == [Notice("half way")]
    assert of(CellAnswer, await at.service.wait(ME, timeout_seconds=0.01)).notices == []
    answer = of(StatusAnswer, await at.service.status(OTHER))
    assert answer.notices[:2] == [Notice("past 2 GiB", "In [1]"), Notice("half way", "In [2]")]
    assert answer.notices[2].text.startswith("1 cell was run by others since your last result: In [1] (completed")


async def test_late_output_is_told(at: Server) -> None:
    of(CellAnswer, await at.service.run_cell(ME, "say"))
    at.launching.channel.printed(1, 1, "a\nb\n")
    assert of(StatusAnswer, await at.service.status(ME)).notices == [Notice("2 more lines after its end", "In [1]")]
    assert of(CellAnswer, await at.service.wait(ME)).body == "say\na\nb\n"


# -- the end of the server --------------------------------------------------------------------


async def test_on_shutdown_waiting_calls_are_answered_as_running_and_new_ones_refused(
    at: Server, script: Script
) -> None:
    call = asyncio.ensure_future(at.service.run_cell(ME, "hold"))
    await script.running.wait()
    began = asyncio.get_running_loop().time()
    closing = asyncio.ensure_future(at.service.close())
    answer = of(CellAnswer, await call)
    assert 1.5 < asyncio.get_running_loop().time() - began < 4
    assert (answer.ended_by, answer.body_omitted) == ("shutdown", "running")
    assert refused(await at.service.status(ME))[0] == "server_stopping"
    await closing
    assert at.launching.removed


async def test_on_shutdown_a_cell_that_ends_in_time_gives_its_result(at: Server, script: Script) -> None:
    call = asyncio.ensure_future(at.service.run_cell(ME, "hold"))
    await script.running.wait()
    closing = asyncio.ensure_future(at.service.close())
    await asyncio.sleep(0.1)
    script.go.set()
    answer = of(CellAnswer, await call)
    assert answer.execution is not None
    assert answer.execution.state is State.COMPLETED
    await closing


async def test_a_cancelled_call_leaves_the_cell_and_the_counts_right(at: Server, script: Script) -> None:
    call = asyncio.ensure_future(at.service.run_cell(ME, "hold"))
    await script.running.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not at.sessions.presence(ME.id).open_calls
    script.go.set()
    answer = of(CellAnswer, await at.service.wait(ME))
    assert answer.execution is not None
    assert answer.execution.state is State.COMPLETED
