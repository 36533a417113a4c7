"""Files, environment, start, end and death of a kernel's process, as the host sees them."""

# ruff: noqa: ASYNC110, ASYNC240
from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from loommux_host.keeper.supervisor import KeeperSupervisor
from loommux_host.processes import runtime_files as files_module
from loommux_host.processes.cgroups import own_group
from loommux_host.processes.environment import kernel_environment
from loommux_host.processes.kernel_process import KernelProcess, read_log
from loommux_host.processes.launcher import (
    DirectoryRefused,
    Launcher,
    ServerDirectory,
    StartFailed,
    clean_up_after_dead_servers,
)
from loommux_host.processes.runtime_files import SOCKET_PATH_BYTES, KernelFiles, create_server_directory, slug
from loommux_kernel.shared.protocol import Origin, OriginKind, State, Stream
from loommux_kernel.shared.records.writer import RecordWriter
from tests.host.real_processes import Settings, gone, standin

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="inits are POSIX's")]
linux = pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")


class Bench:
    """Starts stand-in kernels, and retires those of a test that failed."""

    def __init__(self, server: ServerDirectory, workspace: Path, keeping: KeeperSupervisor | None) -> None:
        self.server, self.workspace, self.keeping = server, workspace, keeping
        self._made: list[tuple[Launcher, KernelFiles]] = []

    def files(self) -> KernelFiles:
        return KernelFiles(self.server, str(uuid.uuid4()), "A Kernel")

    def launcher(self, *acts: str, **options: object) -> Launcher:
        if self.keeping is not None:
            options = {"provisioner": self.keeping.provisioner} | options
        return Launcher(Settings(), command=standin(*acts), **options)  # pyright: ignore[reportArgumentType]

    async def start(self, launcher: Launcher, files: KernelFiles, number: int = 1) -> KernelProcess:
        self._made.append((launcher, files))
        return await launcher.start(files, "A Kernel", number, self.workspace, "session-of-the-server")

    async def close(self) -> None:
        for launcher, files in self._made:
            await launcher.retire(files)
        if self.keeping is not None:
            await self.keeping.close()


@pytest.fixture
def server(private_jupyter: Path, short_temporary: Path) -> Iterator[ServerDirectory]:
    made = create_server_directory()
    yield made
    made.remove()
    assert not list(short_temporary.iterdir())


@pytest.fixture(params=["spawned", pytest.param("kept", marks=linux)])
async def bench(request: pytest.FixtureRequest, server: ServerDirectory, tmp_path: Path) -> AsyncIterator[Bench]:
    """Everything here holds whether a keeper forks the init or not; the stand-ins are commands of their own to it."""
    this = psutil.Process()
    before = {p.pid for p in this.children(recursive=True)}
    fds = this.num_fds()
    keeping = (
        KeeperSupervisor(server, lambda: Path("/no/kernel"), tmp_path, None, ()) if request.param == "kept" else None
    )
    made = Bench(server, tmp_path, keeping)
    yield made
    await made.close()
    left = [p for p in this.children(recursive=True) if p.pid not in before]
    assert not left, f"processes left: {left}"
    assert this.num_fds() <= fds


# -- files -----------------------------------------------------------------------


def test_the_servers_directory_is_private_short_and_gone_at_the_end(short_temporary: Path) -> None:
    server = create_server_directory()
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.path.parent.stat().st_mode) == 0o700
    files = KernelFiles(server, "12345678-9", "x")
    assert len(os.fsencode(files.directory / "9999" / "p")) <= SOCKET_PATH_BYTES
    files.remove()
    server.remove()
    assert not list(short_temporary.iterdir())


def test_a_long_temporary_directory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(files_module.tempfile, "gettempdir", lambda: str(long))
    server = create_server_directory()
    assert server.path.is_relative_to("/tmp")
    server.remove()
    assert not list(long.iterdir())


@pytest.mark.parametrize("fault", ["loose", "file", "link"])
def test_a_directory_that_others_could_have_made_is_refused(short_temporary: Path, fault: str) -> None:
    path = short_temporary / f"loommux-{os.getuid()}"
    if fault == "loose":
        path.mkdir()
        path.chmod(0o755)
    elif fault == "file":
        path.touch()
    else:
        path.symlink_to("/tmp")
    with pytest.raises(DirectoryRefused, match=str(path)):
        create_server_directory()


def test_a_disk_that_takes_no_directory_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *, create: bool) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files_module, "_lock", full)
    with pytest.raises(DirectoryRefused, match="cannot be made: No space left on device"):
        create_server_directory()


@pytest.mark.skipif(os.name == "nt" or os.getuid() != 0, reason="only root can make another's directory")
def test_a_foreign_directory_is_refused(short_temporary: Path) -> None:
    path = short_temporary / f"loommux-{os.getuid()}"
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)
    with pytest.raises(DirectoryRefused, match="user 12345"):
        create_server_directory()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Report Cleanup", "report-cleanup"),
        ("../..//etc", "etc"),
        ("ünï", "n"),
        ("日本", "kernel"),
        ("a" * 50, "a" * 40),
        ("x" * 39 + " y", "x" * 39),
    ],
)
def test_a_connection_file_is_named_after_its_kernel(name: str, expected: str) -> None:
    assert slug(name) == expected


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_the_connection_file_is_private_and_the_same_for_every_process(
    server: ServerDirectory, private_jupyter: Path, transport: str
) -> None:
    files = KernelFiles(server, "00000001-2", "My Kernel", transport)
    files.add_process(1)
    [path] = private_jupyter.iterdir()
    assert path.name == "kernel-loommux-my-kernel-00000001.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = json.loads(path.read_text())
    assert first["transport"] == transport
    assert len({first[f"{c}_port"] for c in ("shell", "iopub", "stdin", "control", "hb")}) == 5
    assert len(first["key"]) == 64
    path.unlink()
    files.add_process(2)
    assert json.loads(path.read_text()) == first
    files.remove()
    assert not list(private_jupyter.iterdir())


def test_a_process_directory_goes_alone(server: ServerDirectory) -> None:
    files = KernelFiles(server, "00000001-2", "My Kernel")
    first, second = files.add_process(1), files.add_process(2)
    files.discard_process(1)
    assert not first.exists()
    assert second.exists()
    files.remove()


def test_what_dead_servers_left_is_removed_and_living_ones_are_spared(
    short_temporary: Path, private_jupyter: Path
) -> None:
    living, dead = create_server_directory(), create_server_directory()
    for server, kernel_id in ((living, "11111111-x"), (dead, "22222222-x")):
        KernelFiles(server, kernel_id, "x").add_process(1)
    rebooted = private_jupyter / "kernel-loommux-y-33333333.json"
    rebooted.write_text(json.dumps({"loommux_server": str(short_temporary / "no-more")}))
    foreign = private_jupyter / "kernel-loommux-z-44444444.json"
    foreign.write_text("{}")
    os.close(dead.lock)
    clean_up_after_dead_servers()
    assert not dead.path.exists()
    assert (living.path / "k-11111111" / "1").is_dir()
    assert {p.name for p in private_jupyter.iterdir()} == {"kernel-loommux-x-11111111.json", foreign.name}
    living.remove()
    for path in private_jupyter.iterdir():
        path.unlink()


@pytest.mark.case("X03")
def test_a_removal_that_was_cut_off_is_finished_by_the_next_server(
    short_temporary: Path, private_jupyter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = create_server_directory()
    KernelFiles(dead, "22222222-x", "x").add_process(1)

    def cut_off(path: Path, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(files_module.shutil, "rmtree", cut_off)
        dead.remove()
    os.close(dead.lock)
    (dead.path.parent / "12345678").mkdir()  # of a server that was killed before it had an owner
    clean_up_after_dead_servers()
    assert not dead.path.parent.exists()


# -- environment -------------------------------------------------------------------


def environment(tmp_path: Path, inherited: dict[str, str], **options: object) -> dict[str, str]:
    given = {"python": Path(sys.executable), "kernel_id": "id", "kernel_name": "name", "control_url": None} | options
    return kernel_environment(inherited, programs=tmp_path / "bin", **given)  # pyright: ignore[reportArgumentType]


def test_the_environment_says_who_the_kernel_is_and_keeps_programs_plain(tmp_path: Path) -> None:
    made = environment(tmp_path, {"HOME": "/h", "TERM": "xterm", "PAGER": "less"}, control_url="http://c")
    assert made["HOME"] == "/h"
    expected = {
        "LOOMMUX_KERNEL_ID": "id", "LOOMMUX_KERNEL_NAME": "name", "LOOMMUX_CONTROL_URL": "http://c",
        "NO_COLOR": "1", "PY_COLORS": "0", "PYTHONUNBUFFERED": "1", "PAGER": "cat", "GIT_PAGER": "cat",
        "SYSTEMD_PAGER": "cat", "GIT_EDITOR": "true", "TERM": "dumb",
    }  # fmt: skip
    assert expected.items() <= made.items()


def test_what_confuses_is_removed(tmp_path: Path) -> None:
    gone = [
        "CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "LOOMMUX_KERNEL_ID_OLD", "LOOMMUX_CONTROL_URL", "IPYTHONDIR",
        "JUPYTER_CONFIG_DIR", "JUPYTER_CONFIG_PATH", "JPY_PARENT_PID", "JPY_SESSION_NAME", "PYTHONSTARTUP",
        "PYTHONINSPECT",
    ]  # fmt: skip
    kept = ["PYTHONPATH", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "JUPYTER_RUNTIME_DIR", "LANG"]
    made = environment(tmp_path, dict.fromkeys([*gone, *kept], "1"))
    assert not set(gone) & set(made)
    assert set(kept) <= set(made)


def test_no_variable_holds_the_servers_token(tmp_path: Path) -> None:
    made = environment(tmp_path, {"A": "t0ken", "B": "Bearer t0ken", "C": "c"}, secrets=["t0ken", ""])
    assert "A" not in made
    assert "B" not in made
    assert made["C"] == "c"


def a_virtual_environment(path: Path, *programs: str) -> Path:
    (path / "bin").mkdir(parents=True)
    (path / "pyvenv.cfg").touch()
    for name in programs:
        (path / "bin" / name).write_text(f"#!/bin/sh\necho {path.name}-{name} $@\n")
        (path / "bin" / name).chmod(0o755)
    return path / "bin" / "python"


def says(command: str, made: dict[str, str]) -> str:
    import subprocess

    done = subprocess.run(["/bin/sh", "-c", command], env=made, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


def test_python_and_pip_are_the_kernels_own(tmp_path: Path) -> None:
    other = a_virtual_environment(tmp_path / "a", "python", "pip")
    own = a_virtual_environment(tmp_path / "b c", "python", "python3", "pip", "pip3")
    inherited = {"PATH": f"{other.parent}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(tmp_path / "a")}
    made = environment(tmp_path, inherited, python=own)
    assert made["VIRTUAL_ENV"] == str(tmp_path / "b c")
    assert says("python x; pip y", made) == "b c-python x\nb c-pip y"


def test_an_environment_without_pip_never_reaches_anothers(tmp_path: Path) -> None:
    other = a_virtual_environment(tmp_path / "a", "python", "pip")
    own = a_virtual_environment(tmp_path / "b", "python")
    made = environment(tmp_path, {"PATH": f"{other.parent}{os.pathsep}/bin"}, python=own)
    assert says("pip install x", made) == "b-python -m pip install x"


def test_an_interpreter_among_other_programs_does_not_move_them(tmp_path: Path) -> None:
    own = a_virtual_environment(tmp_path / "usr", "python3.99", "tool").with_name("python3.99")
    (tmp_path / "usr" / "pyvenv.cfg").unlink()
    preferred = a_virtual_environment(tmp_path / "local", "tool")
    path = f"{preferred.parent}{os.pathsep}{own.parent}{os.pathsep}/bin"
    made = environment(tmp_path, {"PATH": path, "VIRTUAL_ENV": "/elsewhere"}, python=own)
    assert says("tool; python x; pip y", made) == "local-tool\nusr-python3.99 x\nusr-python3.99 -m pip y"
    assert "VIRTUAL_ENV" not in made


def test_another_interpreter_does_not_get_the_servers_packages(tmp_path: Path) -> None:
    own = a_virtual_environment(tmp_path / "b", "python")
    servers = f"{sys.prefix}/lib/python3/site-packages"
    inherited = {"PYTHONPATH": os.pathsep.join([servers, "/project/src"]), "PYTHONHOME": sys.prefix}
    made = environment(tmp_path, inherited, python=own)
    assert made["PYTHONPATH"] == "/project/src"
    assert "PYTHONHOME" not in made


# -- a process ----------------------------------------------------------------------


@linux
async def test_a_kernel_has_nothing_of_the_servers_but_what_it_is_given(bench: Bench) -> None:
    files, launcher = bench.files(), bench.launcher("facts", "ready", "sleep")
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with socket.socket() as inheritable:
        inheritable.set_inheritable(True)
        process = await bench.start(launcher, files)
    signal.signal(signal.SIGHUP, ignored)
    facts = json.loads((files.directory / "1" / "facts").read_text())
    assert facts["pid"] == process.pid == facts["sid"]
    assert facts["ppid"] == process.init_pid
    assert facts["cwd"] == str(bench.workspace)
    assert facts["terminal"] is False
    assert facts["stdin"] == ""
    fds = facts["fds"]
    assert fds.pop("0") == "/dev/null"
    assert fds.pop("1") == fds.pop("2") == process.launch.log
    assert fds.pop(str(process.launch.ready_fd)).startswith("pipe:")
    assert list(fds.values()) in ([], [f"/proc/{process.pid}/fd"])
    assert facts["oom"] == min(1000, int(Path("/proc/self/oom_score_adj").read_text()) + 300)
    assert signal.SIGHUP not in facts["ignored"]
    assert facts["blocked"] == []
    assert facts["environment"]["LOOMMUX_KERNEL_ID"] == files.kernel_id
    await process.end(grace=0)
    await launcher.retire(files)


@pytest.mark.skipif(own_group() is None, reason="no control groups may be made here")
async def test_where_it_may_be_a_kernel_has_a_control_group_that_goes_with_it(bench: Bench) -> None:
    files, launcher = bench.files(), bench.launcher("ready", "sleep=0.2", "daemon", "child", "sleep")
    process = await bench.start(launcher, files)
    group = files.group(1)
    assert group is not None
    pids = files.directory / "1" / "pids"
    async with asyncio.timeout(30):
        while not pids.exists() or len(pids.read_text().split()) < 2:
            await asyncio.sleep(0.01)
    assert {str(process.pid), *pids.read_text().split()} == set((group / "cgroup.procs").read_text().split())
    told = await process.end(grace=0)
    assert told.ended_processes == 2
    assert not group.exists()
    await launcher.retire(files)


async def test_a_launch_file_says_where_everything_is(bench: Bench) -> None:
    files, launcher = bench.files(), bench.launcher("ready", "sleep", control_url="http://control")
    process = await bench.start(launcher, files, 3)
    launch = process.launch
    assert launch.read(files.directory / "3" / "launch.json") == launch
    assert stat.S_IMODE((files.directory / "3" / "launch.json").stat().st_mode) == 0o600
    assert (launch.process, launch.server_session, launch.kernel_name) == (3, "session-of-the-server", "A Kernel")
    assert launch.connection_file == str(files.connection_file)
    assert launch.control_url == "http://control"
    assert Path(launch.descriptors).is_dir()
    await process.end(grace=0)
    await launcher.retire(files)


async def test_a_new_process_gets_what_the_records_of_those_before_it_leave_of_the_budget(bench: Bench) -> None:
    launcher, files = bench.launcher("ready", "sleep=60"), bench.files()
    first = await bench.start(launcher, files)
    assert first.launch.records_budget_bytes == Settings.records_budget_bytes
    await first.end(grace=0)
    writer = RecordWriter.open(files.records(1), 1 << 30, print)
    writer.begin(1, 1, Origin(OriginKind.SESSION, "session", "caller"), "source", 1.0, 1.0)
    writer.text(1, Stream.STDOUT, "some line\n" * 10_000)
    writer.end(1, State.COMPLETED, 2.0, None, None)
    writer.close()
    second = await bench.start(launcher, files, 2)
    assert 90_000 < Settings.records_budget_bytes - second.launch.records_budget_bytes < 200_000
    await second.end(grace=0)


@pytest.mark.parametrize(
    ("act", "code", "name"), [("leave=4", 4, None), ("kill=9", None, "SIGKILL"), ("kill=15", None, "SIGTERM")]
)
async def test_every_waiter_is_told_the_same_death(bench: Bench, act: str, code: int | None, name: str | None) -> None:
    files, launcher = bench.files(), bench.launcher("child=2", "write=last words", "ready", act)
    process = await bench.start(launcher, files)
    one, other = await asyncio.wait_for(asyncio.gather(process.wait(), process.wait()), 30)
    assert one is other
    assert (one.code, one.signal, one.ended_processes, one.log_tail) == (code, name, 2, "last words")
    assert one.faults is None
    assert one.max_rss_bytes is not None
    assert await process.descendants() == []
    await launcher.retire(files)


async def test_a_fatal_signal_comes_with_the_stacks(bench: Bench) -> None:
    files, launcher = bench.files(), bench.launcher("ready", "fault")
    process = await bench.start(launcher, files)
    told = await asyncio.wait_for(process.wait(), 30)
    assert told.signal == "SIGSEGV"
    assert told.faults is not None
    assert told.faults.startswith("Fatal Python error: Segmentation fault")
    assert "in fault" in told.faults
    await launcher.retire(files)


async def test_an_idle_kernel_that_was_asked_gets_its_time(bench: Bench) -> None:
    files, launcher = bench.files(), bench.launcher("daemon=3", "ready", "sleep=0.3", "leave=0")
    process = await bench.start(launcher, files)
    told = await asyncio.wait_for(process.end(grace=20), 30)
    assert (told.code, told.ended_processes) == (0, 3)
    await launcher.retire(files)


async def test_a_busy_kernel_is_ended_at_once_whatever_it_does(bench: Bench) -> None:
    files, launcher = bench.files(), bench.launcher("deaf", "child=5", "daemon=5", "ready", "hold")
    process = await bench.start(launcher, files)
    told = await asyncio.wait_for(process.end(grace=0), 30)
    assert (told.signal, told.ended_processes) == ("SIGKILL", 10)
    await launcher.retire(files)


@linux
async def test_an_init_that_does_not_answer_cannot_hold_up_the_end(bench: Bench) -> None:
    files, launcher = bench.files(), bench.launcher("daemon=2", "ready", "sleep")
    process = await bench.start(launcher, files)
    assert process.init_pid is not None
    guard = psutil.Process(process.init_pid).ppid()
    os.kill(process.init_pid, signal.SIGSTOP)
    told = await asyncio.wait_for(process.end(grace=0), 30)
    assert (told.signal, told.ended_processes) == ("SIGKILL", 2)
    assert not gone(guard)
    await launcher.retire(files)


@linux
async def test_without_init_and_guard_the_host_ends_what_it_can_find(bench: Bench) -> None:
    files, launcher = bench.files(), bench.launcher("child=3", "ready", "sleep")
    process = await bench.start(launcher, files)
    assert process.init_pid is not None
    init = psutil.Process(process.init_pid)
    guard = init.parent()
    assert guard is not None
    guard.suspend()  # or it might tell of the init's end before it is killed itself
    init.kill()
    guard.kill()
    told = await asyncio.wait_for(process.wait(), 30)
    assert (told.code, told.signal) == (None, None), "nobody saw it"
    pids = [int(line) for line in (files.directory / "1" / "pids").read_text().split()]
    assert all(map(gone, [process.pid, *pids]))
    await launcher.retire(files)


async def test_descendants_are_listed_daemons_included(bench: Bench) -> None:
    files, launcher = bench.files(), bench.launcher("child", "daemon", "ready", "sleep")
    process = await bench.start(launcher, files)
    found = await process.descendants()
    pids = [int(line) for line in (files.directory / "1" / "pids").read_text().split()]
    assert {info.pid: info.command for info in found} == dict.fromkeys(pids, "sleep 60")
    assert {info.session == process.pid for info in found} == {True, False}
    assert all(abs(info.started_at - process.started_at) < 60 for info in found)
    await process.end(grace=0)
    await launcher.retire(files)


async def test_a_signal_is_for_the_kernel_alone(bench: Bench) -> None:
    files, launcher = bench.files(), bench.launcher("child", "ready", "sleep")
    process = await bench.start(launcher, files)
    await process.signal(signal.SIGTERM)
    told = await asyncio.wait_for(process.wait(), 30)
    assert (told.signal, told.ended_processes) == ("SIGTERM", 1)
    await process.signal(signal.SIGTERM)
    await launcher.retire(files)


# -- failures ------------------------------------------------------------------------


async def test_a_start_that_fails_shows_the_end_of_its_own_log(bench: Bench) -> None:
    lines = "\n".join(f"line {i}" for i in range(30))
    files, launcher = bench.files(), bench.launcher("child", f"write={lines}", "leave=3")
    with pytest.raises(StartFailed, match="exited with code 3 before it was ready") as failed:
        await bench.start(launcher, files)
    assert failed.value.log_tail.splitlines() == [f"line {i}" for i in range(10, 30)]
    await launcher.retire(files)


async def test_a_start_that_takes_too_long_fails_and_leaves_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loommux_host.processes.launcher.READY_SECONDS", 0.5)
    files, launcher = bench.files(), bench.launcher("write=hm", "sleep")
    with pytest.raises(StartFailed, match="not ready after") as failed:
        await bench.start(launcher, files)
    assert failed.value.log_tail in ("hm", "")
    await launcher.retire(files)


async def test_a_place_that_cannot_be_written_is_a_start_that_failed(bench: Bench) -> None:
    files = bench.files()
    files.directory.touch()
    with pytest.raises(StartFailed, match=r"no process could be made: .*File exists"):
        await bench.start(bench.launcher("ready"), files)
    files.directory.unlink()


async def test_where_jupyters_directory_cannot_be_made_the_connection_file_is_beside_the_processes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_way = bench.workspace / "file"
    in_the_way.touch()
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(in_the_way / "runtime"))
    files = bench.files()
    assert files.connection_file.parent == files.directory
    launcher = bench.launcher("ready", "sleep")
    process = await bench.start(launcher, files)
    assert files.connection_file.is_file()
    await process.end(grace=0)
    await launcher.retire(files)
    assert not files.directory.exists()


async def test_startup_files_get_their_own_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loommux_host.processes.launcher.READY_SECONDS", 0.0)
    startup = bench.workspace / "startup"
    startup.mkdir()
    (startup / "10-slow.py").touch()
    files, launcher = bench.files(), bench.launcher("ready", "sleep")
    process = await launcher.start(files, "x", 1, bench.workspace, "session", startup)
    assert process.launch.startup == str(startup)
    await process.end(grace=0)
    await launcher.retire(files)


async def test_an_interpreter_that_is_not_there_is_named(bench: Bench) -> None:
    files = bench.files()
    launcher = Launcher(Settings(), command=lambda launch: ["/no/such/python", str(launch)])
    with pytest.raises(StartFailed) as failed:
        await bench.start(launcher, files)
    assert "/no/such/python" in failed.value.log_tail
    await launcher.retire(files)


@pytest.mark.case("E08")
async def test_an_interpreter_without_ipykernel_is_told_what_to_install(bench: Bench) -> None:
    files = bench.files()
    launcher = bench.launcher("write=ModuleNotFoundError: No module named 'ipykernel'", "leave=1")
    with pytest.raises(StartFailed, match=r"-m pip install 'ipykernel>=7.4,<8'"):
        await bench.start(launcher, files)
    await launcher.retire(files)


async def test_a_cancelled_start_leaves_nothing(bench: Bench) -> None:
    files, launcher = bench.files(), bench.launcher("daemon", "sleep")
    starting = asyncio.create_task(bench.start(launcher, files))
    pids = files.directory / "1" / "pids"
    async with asyncio.timeout(30):
        while not pids.exists() and not starting.done():
            await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert gone(int(pids.read_text()))
    await launcher.retire(files)


@linux
async def test_a_start_that_is_cancelled_before_the_init_has_answered_leaves_nothing_and_ends_soon(
    bench: Bench,
) -> None:
    files, launcher = bench.files(), bench.launcher("daemon", "sleep")
    starting = asyncio.create_task(bench.start(launcher, files))

    def is_awaited() -> bool:
        return any(task.get_name() == f"init of {files.kernel_id}" for task in asyncio.all_tasks())

    async with asyncio.timeout(30):
        while not is_awaited():
            await asyncio.sleep(0)
    starting.cancel()
    async with asyncio.timeout(4):  # less than the enforcer waits
        with pytest.raises(asyncio.CancelledError):
            await starting
    await launcher.retire(files)


# -- many ---------------------------------------------------------------------------


async def test_restarts_leave_descriptors_and_processes_where_they_were(bench: Bench) -> None:
    files, launcher = bench.files(), bench.launcher("child", "daemon", "ready", "sleep")
    this = psutil.Process()
    counts: list[tuple[int, int]] = []
    for number in range(1, 13):
        process = await bench.start(launcher, files, number)
        counts.append((this.num_fds(), len(this.children(recursive=True))))
        await process.end(grace=0)
        files.discard_process(number)
    assert len(set(counts[1:])) == 1, counts
    await launcher.retire(files)


async def test_sixty_four_kernels_run_side_by_side(bench: Bench) -> None:
    launcher = bench.launcher("ready", "sleep")
    kernels = [KernelFiles(bench.server, str(uuid.uuid4()), f"kernel {i}") for i in range(64)]
    processes = await asyncio.gather(*(bench.start(launcher, files) for files in kernels))
    assert len({p.pid for p in processes}) == 64
    ended = await asyncio.gather(*(p.end(grace=0) for p in processes))
    assert {e.signal for e in ended} == {"SIGKILL"}
    await asyncio.gather(*(launcher.retire(files) for files in kernels))


# -- jupyter_client's interface --------------------------------------------------------


async def test_any_provisioner_can_start_the_kernels(bench: Bench) -> None:
    def local(files: KernelFiles, process: int) -> LocalProvisioner:
        return LocalProvisioner(kernel_id=files.kernel_id)

    files, launcher = bench.files(), bench.launcher("ready", "sleep", provisioner=local)
    process = await bench.start(launcher, files)
    assert psutil.Process(process.pid).ppid() == os.getpid()
    told = await asyncio.wait_for(process.end(grace=0), 30)
    assert told.signal == "SIGKILL"
    await launcher.retire(files)


async def test_jupyter_client_can_manage_a_plain_kernel_through_an_init(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from jupyter_client.provisioning.factory import KernelProvisionerFactory

    from loommux_host.processes.jupyter_provisioner import InitProvisioner

    def make(self: object, kernel_id: str, spec: KernelSpec, parent: object) -> InitProvisioner:
        return InitProvisioner(kernel_id=kernel_id, kernel_spec=spec, parent=parent)

    monkeypatch.setattr(KernelProvisionerFactory, "create_provisioner_instance", make)
    monkeypatch.setattr(KernelProvisionerFactory, "is_provisioner_available", lambda self, spec: True)
    manager = AsyncKernelManager(transport="ipc", ip=str(bench.workspace / "s"))
    manager._kernel_spec = KernelSpec(
        argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], language="python"
    )
    await manager.start_kernel(cwd=str(bench.workspace))
    client = manager.client()
    client.start_channels()
    await client.wait_for_ready(timeout=60)
    client.execute("1")
    reply = await client.get_shell_msg(timeout=60)
    assert reply["content"]["status"] == "ok"
    assert await manager.is_alive()
    assert manager.provisioner is not None
    first = await manager.provisioner.get_provisioner_info()
    await manager.restart_kernel(now=True)
    await client.wait_for_ready(timeout=60)
    second = await manager.provisioner.get_provisioner_info()
    assert first["pid"] != second["pid"]
    assert gone(first["pid"])
    client.stop_channels()
    await manager.shutdown_kernel(now=True)
    assert not await manager.is_alive()


def test_the_end_of_a_log_is_read_without_reading_it_all(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (1 << 20) + b"\n\xff\nlast\n")
    tail, faults = read_log(path)
    assert tail.splitlines()[-1] == "last"
    assert faults is None
    assert read_log(tmp_path / "missing") == ("", None)
    assert read_log(tmp_path) == ("", None)  # what cannot be read keeps no death from being told
