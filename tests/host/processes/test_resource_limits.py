"""What a kernel may use: where the system can see to it, what it does then, and what is said where it cannot."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from loommux_host.keeper.supervisor import KeeperSupervisor
from loommux_host.processes.kernel_process import KernelProcess
from loommux_host.processes.launcher import Launcher, clean_up_after_dead_servers
from loommux_host.processes.resource_limits import Groups, KernelLimits, Write, find
from loommux_host.processes.runtime_files import KernelFiles, ServerDirectory, create_server_directory
from tests.host.real_processes import Settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has control groups")
MEMORY = 256 << 20
#: Says that it is ready, waits for a line's worth of time, then takes twice what it may.
GREEDY = (
    "import json, os, sys, time\n"
    "os.write(json.load(open(sys.argv[1]))['ready_fd'], b'{}\\n')\n"
    "while not os.path.exists(sys.argv[1] + '.go'): time.sleep(0.01)\n"
    "taken = [bytearray(b'x') * (16 << 20) for _ in range(32)]\n"
    "time.sleep(60)\n"
)


def enforceable() -> bool:
    found = find(MEMORY, 0.5)
    return not found.obstacles and bool(found.writes)


@pytest.fixture
def server(private_jupyter: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerDirectory]:
    with tempfile.TemporaryDirectory(prefix="lm-", dir="/tmp") as short:
        monkeypatch.setenv("TMPDIR", short)
        monkeypatch.setattr(tempfile, "tempdir", None)
        made = create_server_directory()
        yield made
        made.remove()


@pytest.mark.skipif(not enforceable(), reason="no control groups for memory and processors may be made here")
@pytest.mark.parametrize("kept", [False, True])
def test_a_kernel_that_reaches_its_limit_is_ended_and_that_is_said_with_the_number(
    server: ServerDirectory, kept: bool, tmp_path: Path
) -> None:
    async def run() -> None:
        limits = find(MEMORY, 0.5)
        server.limit(limits)
        keeping = KeeperSupervisor(server, lambda: Path("/no/kernel"), tmp_path, None, ()) if kept else None
        launcher = Launcher(
            Settings(), command=lambda launch: [sys.executable, "-c", GREEDY, str(launch)],
            provisioner=keeping.provisioner if keeping else None,
        )  # fmt: skip
        files = KernelFiles(server, uuid.uuid4().hex, "k")
        process = await launcher.start(files, "k", 1, tmp_path, "session")
        groups = [write.parent / files.group_name(1) for write in limits.writes]
        for group in groups:
            assert str(process.pid) in (group / "cgroup.procs").read_text().split()
            assert str(process.init_pid) not in (group / "cgroup.procs").read_text().split()
        quotas = [g / f for g in groups for f in ("cpu.max", "cpu.cfs_quota_us") if (g / f).exists()]
        assert quotas[0].read_text().split()[0] == "50000"
        (files.directory / "1" / "launch.json.go").touch()
        told = await asyncio.wait_for(process.wait(), 60)
        assert (told.signal, told.reason) == ("SIGKILL", "it had reached its memory limit of 256.0 MiB")
        assert told.max_rss_bytes is not None
        assert told.max_rss_bytes < 2 * MEMORY
        assert not any(group.exists() for group in groups)
        await launcher.retire(files)
        if keeping is not None:
            await keeping.close()

    asyncio.run(run())


@pytest.mark.skipif(not enforceable(), reason="no control groups for memory and processors may be made here")
def test_a_kernel_killed_by_somebody_else_has_reached_no_limit(server: ServerDirectory, tmp_path: Path) -> None:
    async def run() -> KernelProcess:
        server.limit(find(MEMORY, None))
        launcher = Launcher(Settings(), command=lambda launch: [sys.executable, "-c", GREEDY, str(launch)])
        files = KernelFiles(server, uuid.uuid4().hex, "k")
        process = await launcher.start(files, "k", 1, tmp_path, "session")
        psutil.Process(process.pid).kill()
        told = await asyncio.wait_for(process.wait(), 60)
        assert (told.signal, told.reason) == ("SIGKILL", None)
        await launcher.retire(files)
        return process

    asyncio.run(run())


@pytest.mark.skipif(not enforceable(), reason="no control groups for memory and processors may be made here")
def test_the_groups_of_a_dead_server_are_removed_by_the_next(server: ServerDirectory) -> None:
    import os

    dead = create_server_directory()
    limits = find(MEMORY, 0.5)
    dead.limit(limits)
    left = [parent / f"loommux-{dead.path.name}-k-1-1" for parent in limits.parents]
    for group in left:
        group.mkdir()
    os.close(dead.lock)
    clean_up_after_dead_servers()
    assert not any(group.exists() for group in left)


# -- where it cannot be done: as a system would show it ------------------------------------------


@pytest.fixture
def system(tmp_path: Path) -> Callable[..., Groups]:
    """A system with these mounts and groups."""

    def make(mounts: str, own: str) -> Groups:
        (tmp_path / "mounts").write_text(mounts.replace("ROOT", str(tmp_path)))
        (tmp_path / "cgroup").write_text(own)
        return Groups(tmp_path)

    return make


def a_group(path: Path, **files: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name.replace("_", ".", 1)).write_text(text)


V2 = "cgroup2 ROOT/v2 cgroup2 rw 0 0\n"


def test_without_control_groups_the_reason_is_given_and_nothing_is_written(system: Callable[..., Groups]) -> None:
    found = find(MEMORY, 1.5, system("proc /proc proc rw 0 0\n", ""))
    assert found.writes == ()
    assert found.obstacles == (
        "kernel_memory_limit_bytes is not enforced: there is no control group (v2) here",
        "kernel_cpu_limit is not enforced: there is no control group (v2) here",
    )


def test_nothing_that_was_not_asked_for_is_an_obstacle(system: Callable[..., Groups]) -> None:
    assert find(None, None, system("", "")) == KernelLimits()


def test_in_a_group_of_our_own_v2_does_it(system: Callable[..., Groups], tmp_path: Path) -> None:
    group = tmp_path / "v2" / "user" / "run.scope"
    a_group(group, cgroup_controllers="cpu memory\n", cgroup_subtree_control="cpu memory\n", cgroup_procs="1\n")
    found = find(MEMORY, 1.5, system(V2, "0::/user/run.scope\n"))
    assert found.obstacles == ()
    assert found.writes == (
        Write(group, "memory.max", str(MEMORY)),
        Write(group, "memory.swap.max", "0", required=False),
        Write(group, "cpu.max", "150000 100000"),
    )
    assert found.told("loommux-x").splitlines()[0] == f"{group}/loommux-x\tmemory.max\t{MEMORY}\t!"


def test_a_missing_controller_is_named_with_what_helps(system: Callable[..., Groups], tmp_path: Path) -> None:
    a_group(tmp_path / "v2" / "session", cgroup_controllers="pids\n", cgroup_subtree_control="", cgroup_procs="1\n")
    [obstacle] = find(MEMORY, None, system(V2, "0::/session\n")).obstacles
    assert "has no memory controller" in obstacle
    assert "systemd-run --user --scope -p Delegate=yes loommux" in obstacle


def test_v1_does_it_where_v2_has_no_controllers(system: Callable[..., Groups], tmp_path: Path) -> None:
    a_group(tmp_path / "v2", cgroup_controllers="\n", cgroup_subtree_control="", cgroup_procs="1\n")
    a_group(tmp_path / "memory" / "box")
    mounts = V2 + "cgroup ROOT/memory cgroup rw,relatime,memory 0 0\n"
    found = find(MEMORY, None, system(mounts, "4:memory:/box\n0::/\n"))
    assert found.obstacles == ()
    assert [w.file for w in found.writes] == ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
    assert found.parents == (tmp_path / "memory" / "box",)
