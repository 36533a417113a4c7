"""Record stores that are damaged, stand still or cannot be finished: what is said then, and what is not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from loommux_host.facts.results import Answer, CellAnswer, Refusal
from loommux_host.kernels import record_reads
from loommux_host.kernels.channel import RequestFailed
from loommux_host.kernels.record_files import RecordFiles
from loommux_host.kernels.record_reads import RecordsUnreadable, read_latest, reading
from loommux_kernel.executions.gate import Execution
from loommux_kernel.shared.protocol import Counts, Origin, OriginKind, Reply, State, Submission
from loommux_kernel.shared.records.start_note import Starting
from tests.host.memory_channel import MemoryChannel
from tests.host.twins import ME, Script, Server, say, server, until

pytestmark = pytest.mark.anyio

SESSION = Origin(OriginKind.SESSION, "claude", "me")


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Server]:
    made = server(tmp_path, {"hold": Script().hold, "say": say})
    yield made
    await made.service.close()


@pytest.fixture
def unfinished(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record_reads, "finish", fails)


def note(directory: Path, serial: int, at: float, source: str = "say") -> None:
    starting = Starting(directory)
    starting.note(Execution(serial, serial, SESSION, "s", source, at, at))
    starting.close()


def damaged(directory: Path) -> RecordFiles:
    directory.mkdir(exist_ok=True)
    path = directory / "records.sqlite"
    path.write_bytes(b"this is no database " * 500)
    return RecordFiles(path)


async def dies_with_a_cell_on_its_way(at: Server, begun: bool) -> Answer:
    await at.kernel.ready()
    channel = at.launching.channel
    channel.lose = 100
    async with channel.turn:
        call = asyncio.ensure_future(at.service.run_cell(ME, "say"))
        await until(lambda: at.kernel.life is not None and at.kernel.life.pending is not None)
        assert at.kernel.life is not None and at.kernel.life.pending is not None
        submission = at.kernel.life.pending.submission
        if begun:
            starting = Starting(at.launching.directory)
            at_ = submission.submitted_at
            starting.note(Execution(1, 1, submission.origin, submission.id, "say", at_, at_))
            starting.close()
        at.launching.process.die(code=4)
        return await call


@pytest.mark.usefixtures("unfinished")
async def test_of_records_that_cannot_be_finished_the_note_tells_that_the_cell_had_begun(at: Server) -> None:
    answer = await dies_with_a_cell_on_its_way(at, begun=True)
    assert isinstance(answer, CellAnswer)
    assert answer.execution is not None
    assert (answer.execution.number, answer.execution.state) == (1, State.KILLED)


@pytest.mark.usefixtures("unfinished")
async def test_without_records_and_note_it_is_not_said_that_nothing_was_run(at: Server) -> None:
    answer = await dies_with_a_cell_on_its_way(at, begun=False)
    assert isinstance(answer, Refusal)
    assert answer.status == "kernel_died"
    assert "Nothing was run" not in answer.message
    assert "not known" in answer.message


async def test_with_records_that_do_not_have_it_the_cell_was_not_run(at: Server) -> None:
    answer = await dies_with_a_cell_on_its_way(at, begun=False)
    assert isinstance(answer, Refusal)
    assert "Nothing was run: send it again" in answer.message


def test_a_damaged_store_has_its_own_exception(tmp_path: Path) -> None:
    with pytest.raises(RecordsUnreadable), reading(damaged(tmp_path)):
        pass


def test_of_a_damaged_store_the_note_is_what_is_known_and_it_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = damaged(tmp_path)
    assert read_latest(path, 0) == ([], [])
    note(tmp_path, 3, 10.0)
    records, notices = read_latest(path, 0)
    assert [(record.serial, record.state) for record in records] == [(3, State.RUNNING)]
    assert notices == []
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_a_call_that_needs_a_damaged_store_is_refused_by_its_own_word(at: Server, tmp_path: Path) -> None:
    await at.service.run_cell(ME, "say")
    assert at.kernel.life is not None
    at.kernel.life.records = damaged(tmp_path / "damaged")
    await at.kernel.life.mend()
    answer = await at.service.read_output(ME, execution=1)
    assert isinstance(answer, Refusal)
    assert answer.status == "records_unreadable"
    waited = await at.service.wait(ME, execution=1)
    assert isinstance(waited, CellAnswer)
    assert (waited.body, waited.body_omitted) == (None, "output_unreadable")


async def test_output_that_the_store_has_not_taken_is_not_no_output(
    at: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = MemoryChannel.execute

    async def stalled(self: MemoryChannel, source: str, submission: Submission) -> Reply:
        self.lose = 100
        reply = await execute(self, source, submission)
        return replace(reply, counts=Counts(), body=None, recorded=False)

    monkeypatch.setattr(MemoryChannel, "execute", stalled)
    for answer in (await at.service.run_cell(ME, "say"), await at.service.wait(ME, execution=1)):
        assert isinstance(answer, CellAnswer)
        assert (answer.body, answer.body_omitted) == (None, "output_unreadable")
    assert at.kernel.life is not None
    await at.kernel.life.mend()
    answer = await at.service.wait(ME, execution=1)
    assert isinstance(answer, CellAnswer)
    assert (answer.body, answer.body_omitted) == ("say\n", None)


@pytest.mark.case("N03", "X08")
async def test_a_cell_whose_records_are_gone_has_run_all_the_same(at: Server, tmp_path: Path) -> None:
    await at.service.run_cell(ME, "say")
    assert at.kernel.life is not None
    at.kernel.life.records.close()
    at.kernel.life.records = RecordFiles(tmp_path / "nowhere" / "records.sqlite")
    waited = await at.service.wait(ME, execution=1)
    assert isinstance(waited, CellAnswer)
    assert waited.execution is not None
    assert (waited.execution.state, waited.body, waited.body_omitted) == (State.COMPLETED, None, "output_gone")
    read = await at.service.read_output(ME, execution=1)
    assert isinstance(read, Refusal)
    assert read.status == "records_gone"
    assert "never ran" not in read.message
    assert "What ran there has run all the same" in read.message


@pytest.mark.case("X08")
async def test_of_a_death_whose_records_and_note_are_gone_it_is_not_said_that_nothing_was_run(
    at: Server, tmp_path: Path
) -> None:
    await at.kernel.ready()
    assert at.kernel.life is not None
    at.kernel.life.records.close()
    at.kernel.life.records = RecordFiles(tmp_path / "nowhere" / "records.sqlite")
    answer = await dies_with_a_cell_on_its_way(at, begun=False)
    assert isinstance(answer, Refusal)
    assert answer.status == "kernel_died"
    assert "Nothing was run" not in answer.message
    assert "not known" in answer.message


async def test_a_reply_that_says_nothing_of_the_cell_leaves_open_whether_it_has_run(
    at: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def garbled(self: MemoryChannel, source: str, submission: Submission) -> Reply:
        raise RequestFailed("no word of it")

    monkeypatch.setattr(MemoryChannel, "execute", garbled)
    answer = await at.service.run_cell(ME, "say")
    assert isinstance(answer, Refusal)
    assert "was not run" not in answer.message
    assert "Whether the cell has begun, or will, is not known" in answer.message


async def test_a_kernel_that_is_closed_while_a_call_waits_for_it_is_not_called_a_server_that_stops(at: Server) -> None:
    call = asyncio.ensure_future(at.service.run_cell(ME, "say"))
    await asyncio.sleep(0)
    await at.kernel.close("recycle")
    answer = await call
    assert isinstance(answer, Refusal)
    assert answer.status == "kernel_not_found"
    assert "it was closed while this call waited for its process, so nothing was run" in answer.message
