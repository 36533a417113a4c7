"""Servers under an account of their own, and what another account of the machine is let see of them.

`owner` is the account that runs the server, `stranger` one that has nothing to do with it. As root both are made up
(a number without an entry is an account for the system); otherwise the owner is whoever runs the tests, and there is no
stranger: `no_stranger` says why.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from tests.e2e.driving import COMMAND, GONE, MARK, Lines, Place

HERE = Path(__file__).parent
LISTENS = "0A"
FIRST_MADE_UP, LAST_MADE_UP = 40_000, 59_999


@dataclass
class Found:
    """What somebody was let see, by the kind of thing."""

    processes: dict[str, dict[str, str]]
    files: dict[str, str]
    unix: dict[str, str | None]
    ports: dict[str, str | None]
    everything: str

    @property
    def connected(self) -> list[str]:
        return [name for name, answer in {**self.unix, **self.ports}.items() if answer is not None]


@dataclass
class Accounts:
    """The two, the directories of the one, and the servers that were started."""

    owner: int
    stranger: int | None
    no_stranger: str
    home: Path
    temporary: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def place(self) -> Place:
        return Place(self.home, self.temporary, self.home / ".local" / "share" / "jupyter" / "runtime")

    def environment(self, **more: str) -> dict[str, str]:
        """A whole one, as a login gives it: nothing of the tests' own account."""
        base = {"HOME": str(self.home), "TMPDIR": str(self.temporary), "LANG": "C.UTF-8"}
        return base | {"PATH": os.environ["PATH"], MARK: str(self.owner), "HOSTS_SECRET": self.hosts_secret} | more

    @property
    def sees_all(self) -> bool:
        """Whether we can look into processes that are closed to their own account."""
        return os.getuid() == 0

    @property
    def hosts_secret(self) -> str:
        """A variable of the server's environment, as MCP hosts are given them."""
        return f"host-secret-{self.owner}"

    def as_account(self, account: int, *command: str) -> list[str]:
        if account == os.getuid():
            return list(command)
        return [sys.executable, "-I", str(HERE / "as_account.py"), str(account), *command]

    def run(
        self, *command: str, stdin: int | None = None, stdout: int | None = None, stderr: IO[bytes] | None = None,
        **environment: str,
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        """Start a program as the owner, in its home."""
        process = subprocess.Popen(
            self.as_account(self.owner, *command), stdin=stdin, stdout=stdout, stderr=stderr, cwd=self.home,
            env=self.environment(**environment),
        )  # fmt: skip
        self.started.append(process)
        return process

    def server(self, *flags: str, stdio: bool = True) -> Lines:
        pipe = subprocess.PIPE if stdio else subprocess.DEVNULL
        with (self.home / "stderr").open("ab") as errors:
            return Lines(self.run(*COMMAND, *flags, stdin=pipe, stdout=pipe, stderr=errors))

    @property
    def log(self) -> str:
        return (self.home / "stderr").read_text()

    def configure(self, text: str) -> None:
        directory = self.home / ".loommux"
        directory.mkdir(mode=0o700)
        (directory / "config.py").write_text(text)
        (directory / "config.py").chmod(0o600)
        self.give(directory, directory / "config.py")

    def give(self, *paths: Path) -> None:
        """Make the owner the owner of these."""
        for path in paths:
            os.chown(path, self.owner, self.owner if os.getuid() == 0 else -1)

    # -- what there is to look at ------------------------------------------------------------

    def processes(self) -> list[psutil.Process]:
        """Everything that lives of what was started here."""
        if self.stranger is not None:
            return [p for p in psutil.process_iter() if _uid(p) == self.owner and p.status() != psutil.STATUS_ZOMBIE]
        return [
            one for p in self.started if psutil.pid_exists(p.pid) and p.poll() is None
            for one in (psutil.Process(p.pid), *psutil.Process(p.pid).children(recursive=True))
        ]  # fmt: skip

    def sockets(self) -> tuple[list[str], list[int]]:
        """The names of their unix sockets, and the ports that they listen on; see `sees_all`."""
        inodes = {link.removeprefix("socket:[").rstrip("]") for p in self.processes() for link in _links(p.pid)}
        unix = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        names = [line[7] for line in unix if line[6] in inodes and len(line) > 7]
        tables = [Path("/proc/net") / name for name in ("tcp", "tcp6")]
        tcp = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
        listening = [line for line in tcp if line[3] == LISTENS and self._is_ours(line, inodes)]
        ports = [int(line[1].rpartition(":")[2], 16) for line in listening]
        return sorted(set(names)), sorted(ports)

    def _is_ours(self, line: list[str], inodes: set[str]) -> bool:
        return line[9] in inodes or (self.stranger is not None and int(line[7]) == self.owner)

    def look(self, account: int) -> Found:
        """Everything that the account is let see of it; the owner connects to nothing."""
        unix, ports = self.sockets() if account == self.stranger else ([], [])
        asked = {
            "pids": [p.pid for p in self.processes()],
            "directories": [str(self.home), str(self.temporary)],
            "unix": unix,
            "ports": ports,
        }
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "asked.json"
            file.write_text(json.dumps(asked))
            Path(directory).chmod(0o755)
            command = self.as_account(account, sys.executable, "-I", str(HERE / "stranger.py"), str(file))
            done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=100)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found.pop("uid") == account
        return Found(**found, everything=done.stdout)

    def end(self) -> list[str]:
        """End what was started; what is left of it after all is named."""
        for process in self.started:
            if process.stdin is not None:
                process.stdin.close()
            else:
                process.terminate()
        for process in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GONE)
            if process.stdout is not None:
                process.stdout.close()
        _, left = psutil.wait_procs(self.processes(), timeout=GONE)
        named = [f"{one.pid} {one.cmdline()}" for one in left]
        for one in left:
            one.kill()
        for process in self.started:
            process.wait(GONE)
        return named


@contextlib.contextmanager
def two_accounts() -> Iterator[Accounts]:
    base = Path(tempfile.mkdtemp(prefix="lm-", dir="/tmp"))  # not the tests' own, which is closed to others
    base.chmod(0o755)
    owner, stranger, why = os.getuid(), None, "needs root, to start programs under two other accounts"
    if owner == 0:
        owner, stranger = _unused(), _unused()
        tried = subprocess.run(
            [sys.executable, "-I", str(HERE / "as_account.py"), str(stranger), sys.executable, "-c", "import json"],
            capture_output=True, text=True, cwd="/",
        )  # fmt: skip
        if tried.returncode != 0:
            owner, stranger, why = (
                0,
                None,
                f"another account cannot run {sys.executable}: {tried.stderr.strip()[-300:]}",
            )
    made = Accounts(owner, stranger, why, base / "home", base / "tmp")
    made.home.mkdir(mode=0o755)
    made.home.chmod(0o755)
    made.temporary.mkdir()
    made.temporary.chmod(0o1777)  # as the system's own is
    (made.home / "stderr").touch()
    made.give(made.home, made.home / "stderr")
    try:
        yield made
        left = made.end()
        assert not left, f"processes left: {left}\n{made.log}"
        files = [str(p) for p in (*made.temporary.rglob("*"), *made.home.glob(".local/share/jupyter/runtime/*"))]
        assert not files, f"files left: {files}\n{made.log}"
    finally:
        made.end()
        shutil.rmtree(base)


def _unused() -> int:
    """The number of an account that nobody has."""
    while True:
        number = random.randint(FIRST_MADE_UP, LAST_MADE_UP)
        if not any(_uid(process) == number for process in psutil.process_iter()):
            return number


def _uid(process: psutil.Process) -> int | None:
    with contextlib.suppress(psutil.Error):
        return process.uids().real
    return None


def _links(pid: int) -> list[str]:
    """Where its descriptors lead; of a process that is closed to us, nothing."""
    links = []
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"/proc/{pid}/fd/{name}"))  # noqa: PTH115
    return links
