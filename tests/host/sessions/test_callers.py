"""Callers: which kernel a call works in, who is there, what the leases are told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from loommux_host.facts.refusals import Refused
from loommux_host.facts.results import CellAnswer, Notice
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.registry import Registry
from loommux_host.sessions.callers import AWAY_KEPT, Binding, Caller, OneKernel, Sessions
from loommux_host.sessions.envelope import Shown
from loommux_kernel.shared.header import Header, parse
from tests.host.twins import ME, OTHER, QT, Launching, Script, Server, say, server

pytestmark = pytest.mark.anyio


@dataclass
class Leases:
    """What the leases were told, in order."""

    told_of: list[tuple[Any, ...]] = field(default_factory=list)

    def call_began(self, caller: Caller, kernel: Kernel) -> object:
        self.told_of.append(("call began", caller.id))
        return caller.id

    def call_ended(self, call: object, answered: bool) -> None:
        self.told_of.append(("call ended" if answered else "call cut off", call))

    def held_alone(self, caller: Caller, kernel: Kernel) -> None:
        return None

    def cell_started(self, kernel: Kernel, cell: tuple[int, int], caller: str | None) -> None:
        self.told_of.append(("started", cell, caller))

    def cell_ended(self, kernel: Kernel, cell: tuple[int, int]) -> None:
        self.told_of.append(("ended", cell))

    def told(self, kernel: Kernel, cell: tuple[int, int]) -> None:
        self.told_of.append(("told", cell))


@pytest.fixture
async def at(tmp_path: Path, script: Script) -> AsyncIterator[Server]:
    made = server(tmp_path, {"say": say, "hold": script.hold})
    yield made
    script.go.set()
    await made.service.close()


@contextmanager
def refused() -> Iterator[list[str]]:
    status: list[str] = []
    with pytest.raises(Refused) as caught:
        yield status
    status.append(caught.value.refusal.status)


async def test_over_stdio_every_call_works_in_the_one_kernel(at: Server) -> None:
    for wanted in (None, at.kernel.name, at.kernel.id, f"/{at.kernel.name}"):
        binding = await at.sessions.bind(ME, wanted, None, runs=True)
        assert binding.kernel is at.kernel
    with refused() as status:
        await at.sessions.bind(ME, "other", None, runs=False)
    assert status == ["kernel_not_found"]


async def test_attaching_where_one_is_changes_nothing_and_elsewhere_there_is_nothing(at: Server) -> None:
    here, there = (parse(f"%%loommux --attach {name}\n1") for name in (at.kernel.name, "other"))
    assert (await at.sessions.bind(ME, None, here, runs=True)).line is None
    with refused():
        await at.sessions.bind(ME, None, there, runs=True)


async def test_a_caller_is_there_during_a_call_and_for_a_minute(at: Server) -> None:
    assert not at.sessions.present(ME.id)
    await at.sessions.bind(ME, None, None, runs=False)
    with at.sessions.calling(ME, at.kernel):
        at.time[0] += 1000
        assert at.sessions.present(ME.id)
    at.time[0] += 59
    assert at.sessions.present(ME.id)
    at.time[0] += 2
    assert not at.sessions.present(ME.id)


async def test_a_stream_makes_a_caller_be_there(at: Server) -> None:
    at.sessions.presence(ME.id).streams += 1
    at.time[0] += 1000
    assert at.sessions.present(ME.id)


async def test_what_ends_after_its_kernel_leaves_nothing_of_its_caller(at: Server) -> None:
    await at.sessions.bind(ME, None, None, runs=False)
    with at.sessions.calling(ME, at.kernel):
        sent = at.sessions.envelope(ME, at.kernel, Shown())
        at.sessions.forget_kernel(at.kernel)
    lost = at.sessions.envelope(ME, at.kernel, Shown())
    at.sessions.delivered(ME, at.kernel, sent, Shown())
    at.sessions.lost(ME, at.kernel, lost)
    assert not at.sessions._told
    assert not at.sessions._present


async def test_of_callers_without_a_session_those_longest_away_are_forgotten(at: Server) -> None:
    async def call(caller: Caller) -> None:
        await at.sessions.bind(caller, None, None, runs=False)
        with at.sessions.calling(caller, at.kernel):
            at.time[0] += 1

    await call(ME)
    for n in range(AWAY_KEPT + 5):
        await call(Caller(f"modern {n}", str(n), modern=True))
    assert len(at.sessions._present) == len(at.sessions._told) == AWAY_KEPT + 1
    assert ME.id in at.sessions._present
    assert "modern 4" not in at.sessions._present
    assert "modern 5" in at.sessions._present


async def test_a_caller_that_joins_later_is_not_told_of_what_was_before(tmp_path: Path) -> None:
    launching = Launching(tmp_path, {"say": say})
    registry = Registry(lambda id, name: launching)
    kernel = registry.open("shared").kernel

    class Joining(OneKernel):
        async def bind(self, caller: Caller, wanted: str | None, header: Header | None, *, runs: bool) -> Binding:
            return Binding(kernel, fresh=caller is OTHER)

    sessions = Sessions(registry, Joining(registry, kernel))
    await kernel.ready()
    launching.channel.noticed(None, None, "before")
    await launching.channel.foreign("say", QT)
    launching.channel.printed(1, 1, "late\n")
    for caller, told in ((ME, ["before", "1 more line after its end"]), (OTHER, [])):
        await sessions.bind(caller, None, None, runs=False)
        notices = sessions.envelope(caller, kernel, Shown()).notices
        assert [n.text for n in notices][:2] == told
    launching.channel.noticed(None, None, "after")
    assert sessions.envelope(OTHER, kernel, Shown()).notices == [Notice("after")]
    sessions.forget(OTHER.id)
    assert not sessions.present(OTHER.id)
    await registry.close()


async def test_the_leases_hear_of_calls_cells_and_what_was_told(tmp_path: Path) -> None:
    leases = Leases()
    made = server(tmp_path, {"say": say}, leases=leases)
    answer = await made.service.run_cell(ME, "say")
    assert isinstance(answer, CellAnswer)
    await made.launching.channel.foreign("say", QT)
    answer.delivered()
    cell, foreign = (1, 1), (1, 2)
    assert leases.told_of == [
        ("call began", "me"),
        ("started", cell, "me"),
        ("ended", cell),
        ("call ended", "me"),
        ("started", foreign, None),
        ("ended", foreign),
        ("told", cell),
    ]
    await made.service.close()
