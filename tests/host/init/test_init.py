"""The init and its guard: what they end, when, and what they say about it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from loommux_host.init.descendants import descendants, marked
from loommux_host.processes.spawn import INIT
from tests.host.real_processes import gone, standin, until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no init on Windows")
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")


class Guarded:
    """A stand-in kernel below an init, with this test as its owner."""

    def __init__(self, directory: Path, *acts: str, **facts: object) -> None:
        self.directory = directory / "k-1" / "1"
        self.directory.mkdir(parents=True)
        self.connection = directory / "connection.json"
        self.connection.touch()
        reading, writing = os.pipe()
        (self.directory / "launch.json").write_text(json.dumps({"ready_fd": writing}))
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(30)
        words = {
            "owner": os.getpid(), "id": "an-id", "cwd": directory, "pass": writing, "hold": "", "oom": 300,
            "dir": directory / "k-1", "connection": self.connection, "group": "",
        } | facts  # fmt: skip
        command = standin(*acts)(self.directory / "launch.json")
        with theirs, (self.directory / "log").open("ab") as log:
            self.guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(INIT), *(f"{k}={v}" for k, v in words.items()), "--", *command],
                stdin=theirs.fileno(), stdout=log, stderr=log, pass_fds=(writing,), start_new_session=True,
            )  # fmt: skip
        os.close(writing)
        self.ready = reading
        self._lines = self.socket.makefile("r")
        _, kernel, init = self.said("started")
        self.kernel, self.init = int(kernel), int(init)

    def said(self, name: str) -> list[str]:
        """The next thing it says, which must be this."""
        words = self._lines.readline().split()
        assert words and words[0] == name, (words, self.log())
        self._over = name == "ended"
        return words

    def until_ready(self) -> None:
        assert os.read(self.ready, 10) == b"{}\n", self.log()

    def tell(self, line: str) -> None:
        self.socket.sendall(line.encode() + b"\n")

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def started(self) -> list[int]:
        return [int(line) for line in (self.directory / "pids").read_text().split()]

    def let_go(self) -> None:
        self.socket.close()
        self._lines.close()

    def close(self) -> None:
        os.close(self.ready)
        with contextlib.suppress(OSError, ValueError):  # let go, or ended, by the test
            if not self._over:
                self.tell("end")
            while not self._over and (line := self._lines.readline()) and not line.startswith("ended"):
                pass
            self.tell("leave")
        self.let_go()
        try:
            self.guard.wait(20)
        finally:
            self.guard.kill()
            self.guard.wait()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Callable[..., Guarded]]:
    made: list[Guarded] = []

    def make(*acts: str, **facts: object) -> Guarded:
        made.append(Guarded(tmp_path, *acts, **facts))
        return made[-1]

    before = {p.pid for p in psutil.Process().children(recursive=True)}
    yield make
    for one in made:
        one.close()
    left = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
    assert not left, f"processes left: {left}"


def test_its_start_waits_for_no_slow_import() -> None:
    slow = ["enum", "re", "typing", "functools", "collections", "contextlib", "ctypes", "signal", "json", "pathlib"]
    code = (
        f"import sys; sys.path.append({str(INIT.parent.parent.parent)!r}); import loommux_host.init.roles as r;"
        f"r.become_subreaper(); print([m for m in {slow} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("act", "code"), [("leave=4", 4), ("leave=0", 0), ("kill=9", -9), ("kill=11", -11), ("kill=6", -6)]
)
def test_it_tells_how_the_kernel_ended(guarded: Callable[..., Guarded], act: str, code: int) -> None:
    kernel = guarded(act)
    before = time.time()
    _, told, rss, at = kernel.said("exit")
    assert int(told) == code
    assert int(rss) > 1 << 20
    assert abs(float(at) - before) < 10
    assert kernel.said("ended")[1] == "0"


@linux
def test_it_tells_the_memory_that_the_kernel_or_its_children_reached(guarded: Callable[..., Guarded]) -> None:
    kernel = guarded("memory=100", "ready", "kill=9")
    assert int(kernel.said("exit")[2]) > 100 << 20


@linux
def test_children_daemons_and_orphans_end_with_the_kernel_and_are_counted(guarded: Callable[..., Guarded]) -> None:
    kernel = guarded("child=10", "daemon=10", "ready", "leave=1")
    kernel.said("exit")
    assert kernel.said("ended")[1] == "20"
    assert all(map(gone, kernel.started()))


@linux
def test_a_deaf_kernel_in_c_with_fifty_children_ends_when_told(guarded: Callable[..., Guarded]) -> None:
    kernel = guarded("deaf", "child=25", "daemon=25", "ready", "hold")
    kernel.until_ready()
    kernel.tell("end")
    assert kernel.said("exit")[1] == "-9"
    assert kernel.said("ended")[1] == "50"
    assert gone(kernel.kernel)
    assert all(map(gone, kernel.started()))


@linux
def test_what_forks_all_the_time_does_not_get_away(guarded: Callable[..., Guarded]) -> None:
    kernel = guarded("storm=2", "comet=2", "ready", "sleep")
    kernel.until_ready()
    before = time.monotonic()
    kernel.tell("end")
    kernel.said("exit")
    ended = kernel.said("ended")
    assert time.monotonic() - before < 5
    assert int(ended[1]) >= 4
    assert len(ended) == 3, f"left: {ended[3:]}"
    until(lambda: not descendants(kernel.guard.pid), seconds=1)


def test_a_signal_reaches_the_kernel_alone(guarded: Callable[..., Guarded]) -> None:
    kernel = guarded("child", "ready", "sleep")
    kernel.until_ready()
    kernel.tell(f"signal {int(signal.SIGTERM)}")
    assert kernel.said("exit")[1] == str(-signal.SIGTERM)
    assert kernel.said("ended")[1] == "1"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGTSTP])
def test_stray_signals_change_nothing(guarded: Callable[..., Guarded], number: int) -> None:
    kernel = guarded("ready", "sleep")
    kernel.until_ready()
    os.kill(kernel.init, number)
    os.kill(kernel.guard.pid, number)
    kernel.tell(f"signal {int(signal.SIGCONT)}")
    kernel.tell("end")
    assert kernel.said("exit")[1] == "-9"
    kernel.said("ended")


@linux
@pytest.mark.parametrize("whom", ["init", "guard"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_when_one_of_the_two_is_ended_the_other_ends_everything(
    guarded: Callable[..., Guarded], whom: str, number: int
) -> None:
    kernel = guarded("child=3", "daemon=3", "ready", "sleep")
    kernel.until_ready()
    os.kill(kernel.init if whom == "init" else kernel.guard.pid, number)
    assert kernel.said("exit")[1] == "-9"
    assert kernel.said("ended")[1] == "6"
    assert all(map(gone, [kernel.kernel, *kernel.started()]))


@linux
def test_an_init_that_is_stopped_is_replaced_by_its_guard(guarded: Callable[..., Guarded]) -> None:
    kernel = guarded("child", "daemon", "ready", "sleep")
    kernel.until_ready()
    os.kill(kernel.init, signal.SIGSTOP)
    kernel.guard.terminate()
    assert kernel.said("exit")[1] == "-9"
    assert kernel.said("ended")[1] == "2"
    assert gone(kernel.init)


def test_a_guard_that_is_stopped_does_not_stay(guarded: Callable[..., Guarded]) -> None:
    kernel = guarded("daemon", "ready", "sleep")
    kernel.until_ready()
    kernel.guard.send_signal(signal.SIGSTOP)
    kernel.let_go()
    until(lambda: gone(kernel.kernel) and all(map(gone, kernel.started())))
    kernel.guard.wait(15)


def test_the_end_of_the_thread_that_started_a_kernel_changes_nothing(guarded: Callable[..., Guarded]) -> None:
    with ThreadPoolExecutor(1) as one_thread:
        kernel = one_thread.submit(guarded, "ready", "sleep").result()
    kernel.until_ready()
    kernel.tell("signal 0")
    kernel.tell(f"signal {int(signal.SIGTERM)}")
    assert kernel.said("exit")[1] == str(-signal.SIGTERM)
    kernel.said("ended")


def test_the_files_of_a_living_owner_are_its_own(guarded: Callable[..., Guarded]) -> None:
    kernel = guarded("ready", "sleep")
    kernel.until_ready()
    kernel.let_go()
    kernel.guard.wait(15)
    assert gone(kernel.kernel)
    assert kernel.connection.exists()
    assert (kernel.directory / "launch.json").exists()


def test_after_the_end_the_guard_stays_until_it_is_told_to_leave(guarded: Callable[..., Guarded]) -> None:
    kernel = guarded("leave=0")
    kernel.said("exit")
    kernel.said("ended")
    until(lambda: gone(kernel.init))
    assert kernel.guard.poll() is None
    kernel.tell("leave")
    assert kernel.guard.wait(10) == 0


def test_a_command_that_cannot_be_run_is_named_in_the_log(tmp_path: Path, guarded: Callable[..., Guarded]) -> None:
    kernel = guarded("ready", cwd=tmp_path / "missing")
    assert kernel.said("exit")[1] == "127"
    kernel.said("ended")
    assert "missing" in kernel.log()
    assert "No such file" in kernel.log()


@linux
def test_descendants_are_found_where_the_system_does_not_list_children(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60; true"], start_new_session=True) as shell:
        until(lambda: len(descendants(shell.pid)) == 1)
        listed = descendants(shell.pid)
        monkeypatch.setattr(os.path, "exists", lambda path: False)
        assert descendants(shell.pid) == listed
        assert set(listed.values()) == {shell.pid}
        os.killpg(shell.pid, signal.SIGKILL)


def test_without_subreapers_processes_are_found_by_session_and_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    by_session = subprocess.Popen(["sleep", "60"], start_new_session=True)
    by_mark = subprocess.Popen(["sleep", "60"], env={"LOOMMUX_KERNEL_ID": "a-mark"})
    neither = subprocess.Popen(["sleep", "60"])
    try:
        listing = "".join(
            f"{p.pid} S sleep 60 {'LOOMMUX_KERNEL_ID=a-mark' if p is by_mark else ''}\n"
            for p in (by_session, by_mark, neither)
        )
        monkeypatch.setattr(os, "popen", lambda command: __import__("io").StringIO(listing))
        assert set(marked(by_session.pid, "a-mark", set())) == {by_session.pid, by_mark.pid}
        assert set(marked(by_session.pid, "a-mark", {by_mark.pid})) == {by_session.pid}
    finally:
        for process in (by_session, by_mark, neither):
            process.kill()
            process.wait()
