"""What a server leaves for its successor: the notes by themselves, whose they may be, what time does to them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loommux_host.config import Config
from loommux_host.facts.results import Death
from loommux_host.kernels.journal import Journal
from loommux_host.leases.decisions import Standing, Why
from loommux_host.leases.policy import Mode, Policies, Policy, Scope
from loommux_host.leases.rules import Leases
from loommux_host.leases.state import Alone, KeptKernel, Lease
from loommux_host.processes import runtime_files as files_module
from loommux_host.processes.running_servers import boot_id
from loommux_host.processes.runtime_files import create_server_directory
from loommux_host.succession.lease_notes import RETURN_SECONDS, note_of, recalled
from loommux_host.succession.manifest import (
    VERSIONS,
    BindingNote,
    BoundNote,
    CallersNote,
    Identity,
    JournalNote,
    KernelNote,
    LeasingNote,
    ProcessNote,
    ToldNote,
)
from loommux_host.succession.restoration import journal_of, known_by, noticed_by
from loommux_host.succession.storage import IDENTITY, Damaged, encoded, read, write
from loommux_host.succession.takeover import inherit
from loommux_kernel.shared.protocol import Origin, OriginKind, State

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="only Linux has successors")]

POLICY = Policy.of(Config())
DEATH = Death(1, 3.0, "signal", signal="SIGKILL", left=((7, "sudo x"),))


def journal() -> Journal:
    made = Journal()
    made.notice(1, 1.0, "word", label="build", serial=2, number=1)
    made.ended(1, 2.0, 2, 1, State.KILLED, Origin(OriginKind.SESSION, "someone", "id"))
    made.died(DEATH, 1, on_purpose=False)
    return made


def kernel_note() -> KernelNote:
    kept = journal()
    notes = JournalNote(kept.index, kept.notices(), kept.ends(), kept.deaths(), *kept.let_go)
    processes = [ProcessNote(1, 10, 9, 1.0, None, DEATH), ProcessNote(2, 12, 11, 4.0, ("restart", "you", None))]
    return KernelNote("k1", "lab", None, False, 0.5, "/r/file.json", {"key": "secret"}, processes, notes)


def callers_note() -> CallersNote:
    entry = KeptKernel("k1", Scope.NAMED, POLICY, autoclose=True, alone=Alone("a", 12.5))
    entry.leases["a"] = Lease("a", POLICY, None, 1.0, 2.0, 3.0)
    entry.running["k1", (2, 5)] = "a"
    told = ToldNote("a", "k1", 3, [(1, 2, 4)], [(1, 2)])
    leasing = LeasingNote([POLICY], [note_of(entry)], [("a", "k1")], [], [("a", "label", None)])
    return CallersNote([told], [], BindingNote([BoundNote("a", "k1", None, False)]), leasing, {"s": {"x": 1}})


@pytest.mark.parametrize("note", [kernel_note(), callers_note()], ids=["kernel", "callers"])
def test_a_note_is_read_as_it_was_written_and_is_private(note: object, tmp_path: Path) -> None:
    write(tmp_path / "note.json", encoded(note))
    assert read(tmp_path / "note.json", type(note)) == note
    assert (tmp_path / "note.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["note.json"]


@pytest.mark.parametrize("how", ["cut", "shape", "mode", "link", "fifo"])
def test_a_note_that_is_damaged_or_not_ours_alone_is_not_believed(how: str, tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    write(path, encoded(kernel_note()))
    match how:
        case "cut":
            path.write_bytes(path.read_bytes()[:-20])
        case "shape":
            write(path, encoded({"id": 7}))
        case "mode":
            path.chmod(0o644)
        case "link":
            path.rename(tmp_path / "real")
            path.symlink_to(tmp_path / "real")
        case _:
            path.unlink()
            os.mkfifo(path, 0o600)
    with pytest.raises(Damaged, match=r"note\.json"):
        read(path, KernelNote)


@pytest.fixture
def short_temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setattr(files_module.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(files_module, "_usual_directories", list)
    monkeypatch.setattr(files_module, "SOCKET_PATH_BYTES", 300)
    yield tmp_path


@pytest.mark.parametrize("wrong", ["mode", "damaged", "workspace", "endpoint", "keeper"])
async def test_only_what_is_private_whole_and_left_for_us_is_taken(wrong: str, short_temporary: Path) -> None:
    config, said = Config(workspace=short_temporary), list[str]()
    left = create_server_directory()
    workspace = "/elsewhere" if wrong == "workspace" else str(short_temporary)
    endpoint = "127.0.0.1:2" if wrong == "endpoint" else "127.0.0.1:1"
    identity = Identity(VERSIONS, 1, 0.0, boot_id(), workspace, endpoint, str(config.kernel_python), "s")
    write(left.path / IDENTITY, encoded(identity) if wrong != "damaged" else b"{")
    if wrong == "mode":
        left.path.chmod(0o750)
    assert await inherit(config, "127.0.0.1:1", said.append) is None
    expected = {"mode": "can be entered by others", "damaged": "is damaged", "keeper": "so is their keeper"}
    assert [expected[wrong] in line for line in said] == [True] * (wrong in expected)
    assert left.path.exists()
    left.remove()


def test_a_journal_goes_on_and_says_what_is_no_news(tmp_path: Path) -> None:
    kept = journal_of(kernel_note().journal)
    assert (kept.index, kept.notices(), kept.ends(), kept.deaths()) == (
        3, journal().notices(), journal().ends(), journal().deaths(),
    )  # fmt: skip
    assert noticed_by(kept, 1).keys == ((2, "word", 1.0),)
    assert noticed_by(kept, 2).keys == ()
    assert not known_by(kept, 2)(record(2, State.KILLED))
    assert known_by(kept, 1)(record(2, State.KILLED))
    assert not known_by(kept, 1)(record(2, State.RUNNING))
    assert known_by(kept, 1)(record(1, State.COMPLETED, OriginKind.STARTUP))


def record(serial: int, state: State, kind: OriginKind = OriginKind.SESSION):
    from loommux_kernel.shared.record_types import ExecutionRecord

    return ExecutionRecord(
        serial=serial, number=serial, origin=Origin(kind, "x"), source="1", state=state, submitted_at=1.0,
        started_at=1.0, updated_at=1.0, completed_at=None if state is State.RUNNING else 2.0, ename=None,
        evalue=None, counts={}, late_lines=0, dropped=None,
    )  # fmt: skip


# -- leases ------------------------------------------------------------------------------------


@given(
    mode=st.sampled_from(Mode),
    standing=st.sampled_from([None, *Standing]),
    heard=st.floats(0, 90_000),
    away=st.floats(0, 200_000),
)
def test_nobody_loses_a_kernel_because_no_server_was_there(
    mode: Mode, standing: Standing | None, heard: float, away: float
) -> None:
    policy = Policy(1, mode, 4800, 86400, 15, 60, 60, 30)
    entry = KeptKernel("k1", Scope.PRIVATE, policy, autoclose=True)
    entry.leases["a"] = Lease("a", policy, standing if mode is Mode.CONNECTION else None, heard, heard, heard)
    now = heard + away
    leases = Leases()
    leases.kernel_recalled(recalled(note_of(entry), Policies(policy).pinned, now))
    due = leases.deadline()
    assert due is not None
    assert due >= now + RETURN_SECONDS - 1e-6
    assert leases.advance(now) == []


def test_a_stream_that_does_not_come_back_to_the_successor_is_a_client_that_has_left() -> None:
    policy = Policy(1, Mode.CONNECTION, 4800, 86400, 15, 60, 60, 30)
    entry = KeptKernel("k1", Scope.PRIVATE, policy, autoclose=True)
    entry.leases["a"] = Lease("a", policy, Standing.CONNECTED, 1.0, 1.0, 1.0)
    leases = Leases()
    leases.kernel_recalled(recalled(note_of(entry), Policies(policy).pinned, 100.0))
    released, retired = leases.advance(160.0)
    assert (released.kernel, getattr(released, "why", None)) == ("k1", Why.DISCONNECTED)
    assert retired.kernel == "k1"


def test_generations_of_the_policy_go_on_and_changed_settings_are_one_more() -> None:
    before = Policies(POLICY)
    before.change({"orphan_grace_seconds": 5.0})
    same, changed = Policies(POLICY), Policies(Policy.of(Config(orphan_grace_seconds=7.0)))
    same.recall(before.generations)
    assert (same.current.generation, same.current.orphan_grace_seconds) == (2, 5.0)
    changed.recall(before.generations)
    assert (changed.current.generation, changed.current.orphan_grace_seconds) == (3, 7.0)
    assert changed.pinned(2).orphan_grace_seconds == 5.0
