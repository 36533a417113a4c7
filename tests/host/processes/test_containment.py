"""Whoever is killed, nothing stays: no process of ours, none that a kernel started, no file.

The contract gives five seconds; a machine that runs much else beside these tests gets more.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from loommux_host.keeper.client import KeeperClient, KeeperRefused
from loommux_host.keeper.provisioner import ForkedByKeeper
from loommux_host.processes.cgroups import own_group
from tests.e2e.trees import below
from tests.host.real_processes import gone, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="subreapers are Linux's")
SERVER = Path(__file__).with_name("standin_server.py")
EVERYTHING = ["child=3", "daemon=3", "ready", "sleep"]
SECONDS = 15
GROUP = own_group()


class Server:
    """A stand-in server process, and what its kernels are."""

    def __init__(self, temporary: Path, *kernels: list[str], before: tuple[str, ...] = (), **job: bool) -> None:
        self.temporary = temporary
        self.process = subprocess.Popen(
            [*before, sys.executable, str(SERVER), json.dumps({"kernels": kernels, **job})],
            stdout=subprocess.PIPE,
            env=os.environ | {"TMPDIR": str(temporary)},
            start_new_session=True,
        )
        self.kernels: list[dict[str, Any]] = []
        while len(self.kernels) < len(kernels):
            said = self.said()
            if "kernel" in said:
                self.kernels.append(said)

    @property
    def pid(self) -> int:
        kernel = self.kernels[0]
        return psutil.Process(kernel["keeper"] or kernel["guard"]).ppid()

    def children(self) -> list[int]:
        """Of the server itself, zombies included, but for its keeper."""
        return [p.pid for p in psutil.Process(self.process.pid).children() if p.pid != self.kernels[0]["keeper"]]

    def said(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the server said nothing"
        return json.loads(line)

    def processes(self) -> list[int]:
        keepers = {k["keeper"] for k in self.kernels if k["keeper"]}
        return [p for k in self.kernels for p in (k["kernel"], k["init"], k["guard"], *k["started"])] + [*keepers]

    def no_process_of_kernels_left(self) -> bool:
        return all(gone(p) for p in self.processes() if p != self.kernels[0]["keeper"])

    def no_process_left(self) -> bool:
        return all(map(gone, self.processes()))

    def no_file_left(self) -> bool:
        connections = [Path(k["connection"]) for k in self.kernels]
        name = Path(self.kernels[0]["directory"]).parent.name
        groups = [] if GROUP is None else list(GROUP.glob(f"loommux-{name}-*"))
        return not list(self.temporary.iterdir()) and not groups and not any(c.exists() for c in connections)

    def expect_nothing(self) -> None:
        until(self.no_process_left, f"the end of {[p for p in self.processes() if not gone(p)]}")
        until(self.no_file_left, f"the end of {below(self.temporary)}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def temporary() -> Iterator[Path]:
    import shutil
    import tempfile

    path = Path(tempfile.mkdtemp(prefix="lm-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def starting(temporary: Path, **always: Any) -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def make(*kernels: list[str], **options: Any) -> Server:
        made.append(Server(temporary, *(kernels or [EVERYTHING]), **always | options))
        return made[-1]

    yield make
    for server in made:
        server.close()
    for server in made:
        server.expect_nothing()


@pytest.fixture(params=["spawned", "kept"])
def start(request: pytest.FixtureRequest, temporary: Path, private_jupyter: Path) -> Iterator[Callable[..., Server]]:
    """Everything here holds whether a keeper forks the init or not."""
    yield from starting(temporary, keeper=request.param == "kept")


@pytest.fixture
def start_kept(temporary: Path, private_jupyter: Path) -> Iterator[Callable[..., Server]]:
    yield from starting(temporary, keeper=True)


def kill(*pids: int) -> None:
    """All at once: none of them sees another's end, and has begun with what it does then."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


def test_a_killed_server_leaves_nothing(start: Callable[..., Server]) -> None:
    server = start()
    assert len(server.kernels[0]["started"]) == 6
    kill(server.pid)
    server.expect_nothing()


def test_a_server_with_two_kernels_leaves_nothing_of_either(start: Callable[..., Server]) -> None:
    server = start(EVERYTHING, EVERYTHING)
    kill(server.pid)
    server.expect_nothing()


@pytest.mark.parametrize("whom", ["init", "guard"])
def test_a_killed_init_is_a_death_that_the_server_is_told(start: Callable[..., Server], whom: str) -> None:
    server = start()
    kill(server.kernels[0][whom])
    died = server.said()["died"]
    assert (died["signal"], died["ended_processes"]) == ("SIGKILL", 6)
    assert server.no_process_of_kernels_left() or gone(server.kernels[0]["kernel"])
    assert not gone(server.pid)


@pytest.mark.parametrize("whom", ["init", "guard"])
def test_server_and_init_killed_at_once_leave_nothing(start: Callable[..., Server], whom: str) -> None:
    server = start()
    kill(server.pid, server.kernels[0][whom])
    server.expect_nothing()


def test_init_and_guard_killed_at_once_leave_nothing_to_a_server_that_is_a_subreaper(
    start: Callable[..., Server],
) -> None:
    server = start(subreaper=True)
    kill(server.kernels[0]["init"], server.kernels[0]["guard"])
    died = server.said()["died"]
    assert (died["signal"], died["ended_processes"]) == ("SIGKILL", 6)
    assert server.no_process_of_kernels_left()
    assert not server.children(), "not even a zombie"
    server.process.kill()
    start(["ready", "sleep"], clean=True)  # nobody was there to remove the files


@pytest.mark.parametrize("whom", ["init", "guard"])
def test_a_server_that_is_a_subreaper_keeps_no_zombies(start: Callable[..., Server], whom: str) -> None:
    server = start(subreaper=True, retire=True)
    kill(server.kernels[0][whom])
    assert server.said()["died"]["ended_processes"] == 6
    assert server.said() == {"retired": True}
    assert not server.children()
    server.process.kill()
    start(["ready", "sleep"], clean=True)  # without a kernel there is no guard to remove the server's directory


def test_what_all_three_leave_the_next_server_finds(start: Callable[..., Server], temporary: Path) -> None:
    server = start(["child=3", "ready", "sleep"])
    kernel = server.kernels[0]
    kill(server.pid, kernel["guard"], kernel["init"])
    until(lambda: gone(kernel["kernel"]), "the kernel's own end")
    following = start(["ready", "sleep"], clean=True)
    assert all(map(gone, kernel["started"]))
    assert not Path(kernel["connection"]).exists() or kernel["connection"] == following.kernels[0]["connection"]
    assert len(list(temporary.glob("loommux-*/*"))) == 1, "the following server's"
    kill(following.pid)
    following.expect_nothing()


def test_a_stopped_server_keeps_its_kernels_until_it_is_killed(start: Callable[..., Server]) -> None:
    server = start()
    os.kill(server.pid, signal.SIGSTOP)
    kernel = psutil.Process(server.kernels[0]["kernel"])
    assert kernel.is_running()
    kill(server.pid)
    server.expect_nothing()


def test_a_stopped_init_does_not_save_anything_from_the_servers_end(start: Callable[..., Server]) -> None:
    server = start()
    os.kill(server.kernels[0]["init"], signal.SIGSTOP)
    kill(server.pid)
    server.expect_nothing()


def test_a_stopped_guard_does_not_save_anything_from_the_servers_end(start: Callable[..., Server]) -> None:
    server = start()
    os.kill(server.kernels[0]["guard"], signal.SIGSTOP)
    kill(server.pid)
    server.expect_nothing()


def test_the_files_of_a_kernel_without_a_process_go_with_the_server(start: Callable[..., Server]) -> None:
    server = start(["ready", "leave=4"])
    assert server.said()["died"]["code"] == 4
    assert Path(server.kernels[0]["connection"]).exists()
    kill(server.pid)
    server.expect_nothing()


SUBREAPER = "import ctypes,subprocess,sys;ctypes.CDLL(None).prctl(36,1,0,0,0);sys.exit(subprocess.call(sys.argv[1:]))"
VANISHING = "import subprocess,sys;subprocess.Popen(sys.argv[1:])"


def test_another_subreaper_above_changes_nothing(start: Callable[..., Server]) -> None:
    server = start(before=(sys.executable, "-c", SUBREAPER))
    kill(server.pid)
    server.expect_nothing()


def test_a_launcher_that_vanishes_takes_nothing_with_it(start: Callable[..., Server]) -> None:
    server = start(before=(sys.executable, "-c", VANISHING))
    assert server.process.wait(SECONDS) == 0
    pid = server.pid
    assert psutil.Process(server.kernels[0]["kernel"]).is_running()
    assert not any(map(gone, server.kernels[0]["started"]))
    kill(pid)
    server.expect_nothing()


def test_what_forks_all_the_time_ends_with_a_killed_server(start: Callable[..., Server]) -> None:
    server = start(["comet=2", "storm=1", "daemon", "ready", "sleep"])
    guard = psutil.Process(server.kernels[0]["guard"])
    kill(server.pid)
    server.expect_nothing()
    assert not guard.is_running() or guard.status() == psutil.STATUS_ZOMBIE
    assert not [p for p in psutil.process_iter() if server.kernels[0]["directory"] in command(p)]


def command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


# -- the keeper ------------------------------------------------------------------------


def test_a_killed_keeper_ends_its_kernels_and_the_server_is_told_why(start_kept: Callable[..., Server]) -> None:
    server = start_kept()
    kill(server.kernels[0]["keeper"])
    died = server.said()["died"]
    assert (died["signal"], died["ended_processes"]) == ("SIGKILL", 6)
    assert "keeper" in died["reason"]
    until(server.no_process_left, "the end of everything but the server")
    assert Path(server.kernels[0]["directory"]).exists(), "its records are the server's still"
    kill(server.process.pid)
    start_kept(["ready", "sleep"], clean=True)  # nobody was there to remove the files


@pytest.mark.parametrize("whom", ["server", "init", "guard"])
@pytest.mark.parametrize("grace", [None, 60.0])
def test_a_keeper_and_another_killed_at_once_leave_nothing(
    start_kept: Callable[..., Server], whom: str, grace: float | None
) -> None:
    server = start_kept(grace=grace)
    kernel = server.kernels[0]
    kill(kernel["keeper"], server.process.pid if whom == "server" else kernel[whom])
    if whom != "server":
        assert server.said()["died"]["ended_processes"] == 6
        until(server.no_process_left, "the end of everything but the server")
        server.process.kill()
        start_kept(["ready", "sleep"], clean=True)


def test_a_stopped_keeper_does_not_save_anything_from_the_end_of_a_server_without_successor(
    start_kept: Callable[..., Server],
) -> None:
    server = start_kept()
    keeper = server.kernels[0]["keeper"]
    os.kill(keeper, signal.SIGSTOP)
    kill(server.pid)
    until(lambda: all(gone(p) for p in server.processes() if p != keeper), "the end of the kernels")
    os.kill(keeper, signal.SIGCONT)


def test_a_keeper_that_waits_for_a_successor_keeps_everything_for_that_long(start_kept: Callable[..., Server]) -> None:
    server = start_kept(grace=1.5)
    kernel = server.kernels[0]
    kill(server.pid)
    began = time.monotonic()
    until(lambda: gone(server.process.pid), "the server's end")
    assert not any(map(gone, [kernel["kernel"], kernel["keeper"], *kernel["started"]]))
    assert Path(kernel["connection"]).exists()
    server.expect_nothing()
    assert time.monotonic() - began >= 1.4


def adopted(server: Server, work: Callable[[KeeperClient, ForkedByKeeper], Awaitable[None]]) -> None:
    """Kill a server, take over its keeper, with its only kernel, for as long as `work` takes; then end the keeper."""

    server.process.kill()
    server.process.wait()

    async def adopt() -> None:
        client = await KeeperClient.take_over(Path(server.kernels[0]["directory"]).parent)
        [kept] = await client.kernels()

        async def keeper() -> KeeperClient:
            return client

        made = ForkedByKeeper(keeper, handed_on=True)
        kernel = server.kernels[0]
        await made.take_over(client, kept, kernel["id"], kernel["kernel"], kernel["init"])
        await work(client, made)
        await made.cleanup()
        assert await client.kernels() == []
        await client.end()
        client.close()
        os.close(client.lock)  # the directory is nobody's now

    asyncio.run(adopt())


def test_a_successor_signals_and_ends_what_it_took_over(start_kept: Callable[..., Server]) -> None:
    server = start_kept(grace=60.0)

    async def work(client: KeeperClient, made: ForkedByKeeper) -> None:
        with pytest.raises(KeeperRefused, match="owned"):
            await KeeperClient.take_over(Path(server.kernels[0]["directory"]).parent)
        assert await made.poll() is None
        await made.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(made.wait(), SECONDS) == -signal.SIGTERM
        assert made.ending is not None
        assert made.ending.ended == 6

    adopted(server, work)
    start_kept(["ready", "sleep"], clean=True)  # a successor that ends in order removes the files itself


def test_a_death_while_nobody_was_there_is_told_to_the_successor(start_kept: Callable[..., Server]) -> None:
    server = start_kept(["ready", "sleep=0.5", "leave=4"], grace=60.0)
    server.process.kill()
    until(lambda: gone(server.kernels[0]["kernel"]), "the kernel's end")

    async def work(client: KeeperClient, made: ForkedByKeeper) -> None:
        assert await asyncio.wait_for(made.wait(), SECONDS) == 4

    adopted(server, work)
    start_kept(["ready", "sleep"], clean=True)


def test_a_keeper_whose_successor_dies_too_waits_again(start_kept: Callable[..., Server]) -> None:
    server = start_kept(grace=1.5)
    server.process.kill()
    server.process.wait()
    directory = Path(server.kernels[0]["directory"]).parent
    code = (
        "import asyncio, os, sys; from pathlib import Path; from loommux_host.keeper.client import KeeperClient\n"
        "async def own():\n"
        "    await KeeperClient.take_over(Path(sys.argv[1])); os.kill(os.getpid(), 9)\n"
        "asyncio.run(own())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(directory)], capture_output=True, timeout=30)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not gone(server.kernels[0]["kernel"])
    server.expect_nothing()
