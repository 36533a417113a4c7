"""A server killed together with all that guards its kernels, and the next one, which finds what they left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterable

import anyio
import psutil
import pytest

from tests.e2e.driving import COMMAND, Agent, Place, StartLines, serving, until
from tests.e2e.http_driving import Session, start, web
from tests.e2e.oracle import is_alive
from tests.e2e.servers.test_adoption import free_port

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="what is killed here are the guards that Linux has"),
]
STALE = 6
#: Daemons that have left the kernel's session: one of its own, and one that left its parent besides.
STRAYS = "import os\nos.system('setsid sleep 977 & setsid -f sleep 977')"
NOBODY = 65534


def kill(processes: Iterable[psutil.Process]) -> None:
    """All at once: none of them sees another's end, and has begun with what it does then."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def kill_all_but(place: Place, spared: Iterable[psutil.Process] = ()) -> list[psutil.Process]:
    """Every process of the servers there but what is spared, and the strays, which are returned."""
    found = set(place.processes()) - set(spared)
    strays = [p for p in found if p.name() == "sleep"]
    kill(found - set(strays))
    return strays


async def use_and_kill(place: Place, transport: str, lines: StartLines, port: str) -> list[psutil.Process]:
    """Have `STALE` kernels at work, and kill all that is theirs; what they have left."""
    before = place.processes()
    if transport == "stdio":
        for server in [lines() for _ in range(STALE)]:
            assert (await (await server.open()).cell(STRAYS)).startswith("In [1]")
        await are_there(place, before)
        return kill_all_but(place, before)
    async with web(place, "--port", port) as server, server.http() as http:
        for _ in range(STALE):
            assert "In [1]" in (await (await Session.open(http)).cell(STRAYS)).text
        await are_there(place, before)
        return kill_all_but(place, before)


async def are_there(place: Place, spared: Iterable[psutil.Process], count: int = 2 * STALE) -> None:
    """The strays: a shell may not have become the program yet when its cell has ended."""

    async def all_of_them() -> bool:
        return sum(p.name() == "sleep" for p in set(place.processes()) - set(spared)) == count

    await until(all_of_them)


@contextlib.asynccontextmanager
async def next_server(place: Place, transport: str, port: str) -> AsyncIterator[Agent]:
    if transport == "stdio":
        async with serving(place) as agent:
            yield agent
    else:
        async with web(place, "--port", port) as server, server.agent() as agent:
            yield agent


@pytest.mark.case("X03")
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_the_next_server_ends_what_is_left_and_nothing_of_its_own_or_of_others(
    place: Place, lines: StartLines, transport: str
) -> None:
    port = free_port()
    async with serving(place) as neighbour:
        await neighbour.run("import subprocess; mine = subprocess.Popen(['sleep', '978'], start_new_session=True)")
        strays = await use_and_kill(place, transport, lines, port)
        assert len(strays) == 2 * STALE
        async with next_server(place, transport, port) as agent:
            assert "\nOut[1]: 42" in await agent.run("6 * 7")

            async def ended() -> bool:
                return not any(map(is_alive, strays))

            await until(ended)
            assert "\nOut[2]: 42" in await agent.run("6 * 7")
            assert "process 1," in await agent.text("status")
        assert (await neighbour.run("mine.poll() is None")).endswith("Out[2]: True")
    assert "WARNING" not in place.log()


@pytest.mark.case("X03")
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_one_that_was_killed_while_it_started_is_no_harm_to_the_next(
    place: Place, lines: StartLines, transport: str
) -> None:
    port = free_port()
    for after in (0.1, 0.15, 0.2, 0.25, 0.3):
        process = start(place, "--port", port) if transport == "http" else lines().process
        await anyio.sleep(after)  # the moment is what is tested
        kill_all_but(place)
        await asyncio.to_thread(process.wait)
    async with next_server(place, transport, port) as agent:
        assert "\nOut[1]: 42" in await agent.run("6 * 7")
        assert "process 1," in await agent.text("status")


@pytest.mark.case("X03")
@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="only root can be another user")
async def test_a_user_without_privileges_finds_what_was_left_too(place: Place, lines: StartLines) -> None:
    for path in (place.workspace, place.temporary, place.runtime):
        os.chown(path, NOBODY, NOBODY)
    # May read everything, since an interpreter may lie in root's own directory; and nothing else.
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    user += ["--bounding-set=-all,+dac_read_search", "--inh-caps=-all,+dac_read_search"]
    command = [*user, "--ambient-caps=+dac_read_search", *COMMAND]
    place.more["HOME"] = str(place.temporary)
    for _ in range(2):
        server = await lines(command=command).open()
        assert (await server.cell(STRAYS)).startswith("In [1]")
        await are_there(place, (), 2)
        strays = kill_all_but(place)
        assert {p.uids().effective for p in strays} == {NOBODY}
    server = await lines(command=command).open()
    assert (await server.cell("import os; os.getuid()")).endswith(f"Out[1]: {NOBODY}")

    async def ended() -> bool:
        return [p for p in place.processes() if p.name() == "sleep"] == []

    await until(ended)
    assert (await server.cell("6 * 7")).endswith("Out[2]: 42")
