"""Events of a real kernel get lost on the way: what the server says stays true."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
import zmq

from loommux_host.config import Config
from loommux_host.facts.results import CellAnswer, ExecutionStatusAnswer
from loommux_host.kernels.channel import Channel, OnEvent, ZmqChannel
from loommux_host.kernels.process_factory import ProcessFactory
from loommux_host.kernels.registry import Registry
from loommux_host.processes.launcher import KernelFiles, Launcher, create_server_directory
from loommux_host.processes.process_protocol import Process
from loommux_host.sessions.callers import OneKernel, Sessions
from loommux_host.token_counting.vocabulary import SHIPPED
from loommux_host.usecases.inspection import Place
from loommux_host.usecases.result_bodies import Bodies
from loommux_host.usecases.service import Service
from loommux_kernel.shared.protocol import Event, State
from tests.host.usecases.test_service_real import ME, Server, of

pytestmark = pytest.mark.anyio
LOST = 0.3


class LossyChannel(ZmqChannel):
    """Loses some events, always the same ones in a row of chances."""

    lost = 0

    async def open(self, on_event: OnEvent) -> None:
        chance = Random(30)

        def some(event: Event) -> None:
            if chance.random() < LOST:
                LossyChannel.lost += 1
            else:
                on_event(event)

        await super().open(some)


class LossyLaunching(ProcessFactory):
    def connect(self, process: Process) -> Channel:
        return LossyChannel(zmq.Context.instance(), self._files.connection_file, self._session)


@pytest.fixture
async def at(tmp_path: Path, private_jupyter: Path) -> AsyncIterator[Server]:
    LossyChannel.lost = 0
    directory, config = create_server_directory(tmp_path), Config(workspace=tmp_path)
    launcher = Launcher(config)
    registry = Registry(lambda id, name: LossyLaunching(launcher, KernelFiles(directory, id, name), config, "server"))
    kernel = registry.open("lossy", private=True).kernel
    sessions = Sessions(registry, OneKernel(registry, kernel))
    place = Place(str(tmp_path), "launch_cwd", lambda: (Path(sys.executable), ""))
    service = Service(registry, sessions, Bodies(SHIPPED.within_limit), place)
    yield Server(service, kernel)
    await service.close()
    directory.remove()


def known(answer: CellAnswer | ExecutionStatusAnswer) -> tuple[int | None, State]:
    assert answer.execution is not None
    return answer.execution.number, answer.execution.state


async def test_with_three_events_of_ten_lost_every_result_and_state_is_true(at: Server) -> None:
    for n in range(1, 31):
        answer = await at.run(f"print('line', {n}); {n}")
        assert (*known(answer), answer.body) == (n, State.COMPLETED, f"line {n}\nOut[{n}]: {n}\n")
    failed = await at.run("1/0")
    assert known(failed) == (31, State.ERROR)
    assert LossyChannel.lost > 10


async def test_with_events_lost_a_long_cell_is_waited_for_and_ends_as_it_ended(at: Server) -> None:
    for n in range(1, 6):
        source = f"%%loommux --wait 0.05 --silence 0.05\nimport time\nfor i in range(3): time.sleep(0.2); print({n}, i)"
        began = await at.run(source)
        assert known(began) == (n, State.RUNNING)
        looked = of(ExecutionStatusAnswer, await at.service.execution_status(ME, execution=n))
        assert known(looked)[0] == n
        async with asyncio.timeout(30):
            ended = of(CellAnswer, await at.service.wait(ME, execution=n, timeout_seconds=25, silence_seconds=25))
        assert (*known(ended), ended.body) == (n, State.COMPLETED, "".join(f"{n} {i}\n" for i in range(3)))
