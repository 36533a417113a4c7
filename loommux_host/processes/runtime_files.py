"""Where a server's kernels keep their files, and who removes them.

Owns the server's private directory, one directory per kernel and per process in it, and
the kernels' connection files. Knows nothing of processes but whether a directory's owner
still lives: that is a lock on its ``owner`` file, which the system lets go with the last
process that holds it (the server, and every init of its kernels). Called by `launcher` and
by the composition root.

    <temporary directory>/loommux-<uid>/<server>/owner
                                       /c                        see `private_socket`
                                       /server.json              see `running_servers`
                                       /k-<id8>/s-1 ... s-5      sockets (ipc)
                                               /kernel.json      id, connection file
                                               /bin/             see `environment`
                                               /<process>/       launch.json, records, descriptors, log
                                                          p      socket for what forked children display
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_runtime_dir

from loommux_host.processes.cgroups import own_group
from loommux_host.processes.resource_limits import KernelLimits
from loommux_host.processes.transport_keys import encryption_keys
from loommux_kernel.shared.private_directories import make_again

#: Longest path of a unix socket, without the closing zero.
SOCKET_PATH_BYTES = 107
#: The longest: what forked children of a kernel's process number 9,999 display (`loommux_kernel.capture.iopub`).
LONGEST_BELOW_SERVER = len("/k-12345678/9999/p")
CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
CREATE_TRIES = 5
OWNER = "owner"
#: Processes of a kernel that ended whose files, records above all, stay (contract 7).
ENDED_KEPT = 3


class DirectoryRefused(Exception):
    """The directory for this user's servers cannot be trusted or cannot be made."""


class ServerDirectory:
    """The private directory of one server; `lock` is the descriptor that proves its life."""

    def __init__(self, path: Path, lock: int, group: Path | None, groups: Iterable[Path] = ()) -> None:
        self.path = path
        self.lock = lock
        self._groups = tuple(groups)
        #: Where its processes may have control groups; see `cgroups`.
        self.group = group
        #: What its processes may use; set before the first is started.
        self.limits = KernelLimits()

    def limit(self, limits: KernelLimits) -> None:
        """Hold its processes to that; noted where a next server finds it, should this one die."""
        self.limits = limits
        self.note_owner()

    def note_owner(self) -> None:
        """Write down whose directory this is."""
        text = json.dumps({"pid": os.getpid(), "groups": [str(group) for group in self.groups]}).encode()
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, text, 0)

    @property
    def groups(self) -> list[Path]:
        """Every control group that those of its processes are made in."""
        own = [] if self.group is None else [self.group]
        return list(dict.fromkeys([*own, *self.limits.parents, *self._groups]))

    def make_again(self) -> None:
        """Make it again, when somebody has removed it or its owner file. Raises `DirectoryRefused`, OSError."""
        make_again(self.path.parent.parent)
        for directory in (self.path.parent, self.path):
            _make_private(directory)
        if self.lock < 0 or (self.path / OWNER).exists():
            return
        lock = _lock(self.path / OWNER, create=True)
        if lock is not None:
            os.dup2(lock, self.lock, inheritable=os.get_inheritable(self.lock))
            os.close(lock)
            self.note_owner()

    def remove(self) -> None:
        """Remove everything in it, and the user's directory when no other server has one there."""
        if sys.platform == "win32":
            self._unlock()  # an open file cannot be removed there
        # By its owner file another finds what is left, should this process be killed meanwhile: so that goes last.
        with suppress(OSError):
            for path in [path for path in self.path.iterdir() if path.name != OWNER]:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            self.path.parent.rmdir()
        self._unlock()

    def _unlock(self) -> None:
        lock, self.lock = self.lock, -1
        if lock >= 0:
            os.close(lock)


def create_server_directory(temporary: Path | None = None) -> ServerDirectory:
    """A new private directory for this server. Raises `DirectoryRefused`."""
    base = _user_directory(temporary)
    for _ in range(CREATE_TRIES):
        _make_private(base)
        path = base / os.urandom(4).hex()
        try:
            path.mkdir(mode=0o700)
            lock = _lock(path / OWNER, create=True)
        except FileNotFoundError:
            continue  # another server ended and removed the user's directory, or this one as stale
        except OSError as error:
            raise DirectoryRefused(f"{path} cannot be made: {error.strerror}") from error
        if lock is not None:
            made = ServerDirectory(path, lock, own_group())
            made.note_owner()
            return made
    raise DirectoryRefused(f"{base}: cannot make a directory in it")


def taken_over(path: Path, lock: int) -> ServerDirectory:
    """The directory of a dead server that is ours from now on; `lock` is what its keeper has held."""
    return ServerDirectory(path, lock, own_group(), _groups_of(path))


def stale_server_directories() -> list[ServerDirectory]:
    """The directories of this user's servers that are dead, locked: nobody else cleans them up."""
    base = _user_directory()
    if not base.is_dir():
        return []
    _make_private(base)
    found = []
    for path in base.iterdir():
        with suppress(OSError):  # killed before it had an owner; one that is being made is made again
            path.rmdir()
        with suppress(FileNotFoundError):  # removed meanwhile
            lock = _lock(path / OWNER, create=False)
            if lock is not None:
                found.append(ServerDirectory(path, lock, None, _groups_of(path)))
    return found


def server_directories(temporary: Path | None = None) -> list[Path]:
    """The directories of this user's servers, living or dead, also where a long temporary directory is not used."""
    bases = {_user_directory(temporary), *([] if temporary else _usual_directories())}
    found: list[Path] = []
    for base in sorted(base for base in bases if base.is_dir()):
        _make_private(base)
        found += sorted(base.iterdir())
    return found


class KernelFiles:
    """The files of one kernel: they stay the same, its processes come and go."""

    def __init__(self, server: ServerDirectory, kernel_id: str, name: str, transport: str = "ipc") -> None:
        self.server = server
        self.kernel_id = kernel_id
        self._begun = False
        short = kernel_id[:8]
        self.directory = server.path / f"k-{short}"
        self.connection_file = _where_clients_look(self.directory) / f"kernel-loommux-{slug(name)}-{short}.json"
        self._connection = self._endpoints(transport) | {
            "key": os.urandom(32).hex(),
            "signature_scheme": "hmac-sha256",
            "transport": transport,
            "kernel_name": "",
            "loommux_server": str(server.path),
        }
        if transport == "tcp":
            self._connection |= encryption_keys()

    @classmethod
    def of(
        cls, server: ServerDirectory, kernel_id: str, connection_file: Path, connection: dict[str, Any]
    ) -> KernelFiles:
        """Those of a kernel that was taken over, in a directory that is ours now."""
        made = cls.__new__(cls)
        made.server, made.kernel_id, made._begun = server, kernel_id, True
        made.directory = server.path / f"k-{kernel_id[:8]}"
        made.connection_file, made._connection = connection_file, connection
        return made

    @property
    def never_begun(self) -> bool:
        """Whether no process of the kernel was ever to be started: then nothing of it is on disk."""
        return not self._begun

    @property
    def connection(self) -> dict[str, Any]:
        """What stands in the connection file."""
        return self._connection

    def add_process(self, number: int) -> Path:
        """The directory of a new process, with the connection file in place beside it.

        Nothing is made before: a disk or a limit that is in the way is that of a start.
        """
        try:
            self.server.make_again()
        except DirectoryRefused as error:
            raise PermissionError(str(error)) from None
        self._begun = True
        self.note_identity()
        path = self.directory / str(number)
        path.mkdir(mode=0o700, exist_ok=True)  # a try before may have had no descriptor to remove it with
        (path / "descriptors").mkdir(mode=0o700, exist_ok=True)
        self.write_connection_file()
        return path

    def note_identity(self) -> None:
        """Say in the kernel's directory which kernel it is, for whoever cleans up after this server."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        identity = {"kernel_id": self.kernel_id, "connection_file": str(self.connection_file)}
        (self.directory / "kernel.json").write_text(json.dumps(identity))

    def group(self, number: int) -> Path | None:
        """The control group for a process, where there may be one; the name tells whose it is."""
        parent = self.server.group
        return parent and parent / self.group_name(number)

    def group_name(self, number: int) -> str:
        """What the control groups of a process are called."""
        return f"loommux-{self.server.path.name}-{self.directory.name}-{number}"

    def records(self, number: int) -> Path:
        """The record store of a process."""
        return self.directory / str(number) / "records.sqlite"

    @property
    def profile(self) -> Path:
        """Where IPython keeps what `%store` is given, for all processes of the kernel."""
        return self.directory / "ipython"

    def discard_process(self, number: int) -> None:
        """Remove what is left of a process: its records, its log."""
        shutil.rmtree(self.directory / str(number), ignore_errors=True)

    def remove(self) -> None:
        """Remove everything; the kernel has no process any more."""
        with suppress(OSError):  # gone, or never made; a later server finds what could not be removed
            self.connection_file.unlink()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _endpoints(self, transport: str) -> dict[str, Any]:
        if transport == "ipc":
            return {"ip": str(self.directory / "s")} | {f"{c}_port": i for i, c in enumerate(CHANNELS, 1)}
        return {"ip": "127.0.0.1"} | dict(zip((f"{c}_port" for c in CHANNELS), _free_ports(len(CHANNELS)), strict=True))

    def write_connection_file(self) -> None:
        """Anew for each process: a kernel that exits in order may have removed it."""
        text = json.dumps(self._connection, indent=1)
        self.connection_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            if self.connection_file.read_text() == text:
                return
        beside = self.connection_file.with_suffix(".new")
        beside.touch(mode=0o600)
        beside.write_text(text)
        beside.replace(self.connection_file)


def _where_clients_look(otherwise: Path) -> Path:
    """Jupyter's runtime directory; where that cannot be written (a read-only home), `otherwise`.

    There a client finds it by the whole path, which `status` tells.
    """
    directory = Path(jupyter_runtime_dir())
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return otherwise
    return directory if os.access(directory, os.W_OK) else otherwise


def slug(name: str) -> str:
    """The part of a connection file's name that people recognise (contract 11)."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-") or "kernel"


def kernels_in(server: Path) -> list[dict[str, str]]:
    """What the kernels of a dead server left: ``kernel_id``, ``connection_file``."""
    found = []
    for path in server.glob("k-*/kernel.json"):
        with suppress(FileNotFoundError, ValueError):
            found.append(json.loads(path.read_text()))
    return found


def remove_stale_connection_files() -> None:
    """Connection files of servers whose directory is gone (a reboot empties the temporary directory)."""
    for path in Path(jupyter_runtime_dir()).glob("kernel-loommux-*.json"):
        with suppress(FileNotFoundError, ValueError):
            server = json.loads(path.read_text()).get("loommux_server")
            if server and not Path(server).exists():
                path.unlink(missing_ok=True)


def _groups_of(server: Path) -> list[Path]:
    with suppress(ValueError, AttributeError, TypeError):
        return [Path(group) for group in json.loads((server / OWNER).read_text()).get("groups", ())]
    return []  # killed before it had written that, or another version's


def _user_directory(temporary: Path | None = None) -> Path:
    """Short enough for sockets: a long temporary directory is not used on POSIX."""
    if sys.platform == "win32":
        return (temporary or Path(tempfile.gettempdir())) / "loommux"
    name = f"loommux-{os.getuid()}"
    base = (temporary or Path(tempfile.gettempdir())) / name
    longest = len(os.fsencode(base)) + len("/12345678") + LONGEST_BELOW_SERVER
    return base if longest <= SOCKET_PATH_BYTES else Path("/tmp") / name


def _usual_directories() -> list[Path]:
    """Where a server has its directory that was started without this process's TMPDIR."""
    return [] if sys.platform == "win32" else [Path("/tmp") / f"loommux-{os.getuid()}"]


def _make_private(path: Path) -> None:
    """Make the user's directory, or see that the one there is theirs and nobody else's."""
    try:
        path.mkdir(mode=0o700)
        return
    except FileExistsError:
        pass
    except OSError as error:
        raise DirectoryRefused(f"{path} cannot be made: {error.strerror}") from error
    if sys.platform == "win32":
        return  # below the user's own profile
    with suppress(FileNotFoundError):  # removed meanwhile; whoever needs it tries again
        check_private(path)


def check_private(path: Path) -> None:
    """See that a directory is this user's alone (POSIX). Raises `DirectoryRefused`, FileNotFoundError."""
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode):
        raise DirectoryRefused(f"{path} is not a directory; remove it")
    if facts.st_uid != os.getuid():
        raise DirectoryRefused(
            f"{path} belongs to user {facts.st_uid}, not to this one; set TMPDIR to another directory"
        )
    if facts.st_mode & 0o077:
        raise DirectoryRefused(f"{path} can be entered by others; run: chmod 700 {path}")


def _lock(path: Path, *, create: bool) -> int | None:
    """Lock an owner file; None when its owner lives."""
    fd = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on at the moment; taken together, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
