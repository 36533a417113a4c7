"""The keeper: forks the init and the kernel of every start from a process with the imports done.

One for a server, started by `supervisor` as ``python enter.py --keeper …`` with the kernels'
interpreter. It holds no user code, no ZMQ context and no thread. It serves one *owner*, the
server, over a connection that it was born with:

* ``launch``: fork a guard (which forks the init, which forks the kernel) that reports to the
  socket that comes along. Forked warm, or given to an interpreter of its own (*exec*) when a
  fork would not be the same (`exec_reasons`); the answer says which, and why.
* ``kernels`` gives the sockets of kernels to a new owner; ``forget`` lets one go.
* ``end`` ends the keeper in order.

When the owner dies, the keeper of a stdio server ends at once. That of an HTTP server keeps
everything for a while: it listens on a socket in the server's directory, and whoever connects
and says ``own`` first is the next owner; nobody else is, as long as that connection stands.
However the keeper ends, inits and guards see it and end everything.

Knows nothing of cells, records or Jupyter. An idle keeper sleeps in one call.
"""
# ruff: noqa: PTH118

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback

from loommux_host.init.descendants import remove_files
from loommux_host.init.system_calls import close_process
from loommux_host.keeper.exec_reasons import at_start, why_exec
from loommux_host.keeper.forked_child import Newborn, Origins, be_guard
from loommux_host.keeper.preload import Preloaded
from loommux_host.keeper.wire import SOCKET_NAME, VERSION, Frames, Message, send

#: How long an owner may take to take in an answer.
SEND_SECONDS = 5.0
#: How many may wait to become the owner.
BACKLOG = 16


#: Whoever stops a service or a job signals all its processes; the owner decides what that means for us.
UNHEARD = ("SIGTERM", "SIGINT", "SIGHUP")


class Kept:
    """One kernel process for the owner's successor: its socket."""

    def __init__(self, descriptor: int, guard: int) -> None:
        self.descriptor, self.guard = descriptor, guard


class Connection:
    """Somebody who talks to us."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.frames = Frames()
        sock.settimeout(SEND_SECONDS)

    def close(self) -> None:
        self.frames.close()
        self.sock.close()


class Keeper:
    """The state of a keeper. `grace` is None for a server whose kernels nobody may take over."""

    def __init__(self, directory: str, owner: int, grace: float | None, lock: int) -> None:
        self._directory, self._grace, self._lock = directory, grace, lock
        self._origins = Origins()
        self._preloaded = Preloaded()
        self._began_with = at_start(dict(os.environ))
        self._kept: dict[str, Kept] = {}
        self._owner: Connection | None = Connection(socket.socket(fileno=owner))
        self._others: dict[int, Connection] = {}
        self._deadline: float | None = None
        self._poll = select.poll()
        self._poll.register(owner, select.POLLIN)
        self._listener = self._listen() if grace is not None else None

    def run(self) -> str:
        """Serve until nobody needs us; returns in the forked kernels alone, with their launch file."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards are not waited for: their sockets tell
        for name in UNHEARD:
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        self._origins.title(["loommux-keeper", self._directory], "loommux-keeper")
        os.chdir("/")
        self._preloaded.run()
        self._say_warm()
        try:
            while self._owner is not None or self._deadline is not None:
                self._step()
        except Newborn as born:
            return born.launch
        remove_files(f"{self._directory}/-", "")
        os._exit(0)

    def _say_warm(self) -> None:
        why = self._preloaded.obstacle()
        if self._owner is not None:
            with contextlib.suppress(OSError):  # it has died meanwhile, which the next step sees
                send(self._owner.sock, {"of": 0, "why": why})

    def _step(self) -> None:
        wait = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        ready = self._poll.poll(None if wait is None else wait * 1000)
        if not ready and self._deadline is not None and time.monotonic() >= self._deadline:
            self._deadline = None
        for fd, _ in ready:
            if self._listener is not None and fd == self._listener.fileno():
                self._accept(self._listener)
            elif self._owner is not None and fd == self._owner.sock.fileno():
                self._hear(self._owner)
            elif fd in self._others:
                self._hear(self._others[fd])

    # -- who is there --------------------------------------------------------------------

    def _listen(self) -> socket.socket:
        path = os.path.join(self._directory, SOCKET_NAME)
        listener = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 - of a keeper that was killed
        listener.bind(path)
        os.umask(before)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        self._poll.register(listener, select.POLLIN)
        return listener

    def _listen_again(self, locks: list[int]) -> None:
        """The directory was removed and made again: so is our socket in it, and its lock is another."""
        if self._listener is not None:
            self._poll.unregister(self._listener)
            self._listener.close()
            self._listener = self._listen()
        if locks and self._lock >= 0:
            os.dup2(locks[0], self._lock, os.get_inheritable(self._lock))

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return  # gone already
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] != os.getuid():
            sock.close()
            return
        self._others[sock.fileno()] = Connection(sock)
        self._poll.register(sock, select.POLLIN)

    def _hear(self, connection: Connection) -> None:
        try:
            alive = connection.frames.read(connection.sock)
            for message, descriptors in connection.frames.messages():
                self._handle(connection, message, descriptors)
        except (OSError, ValueError, KeyError):
            traceback.print_exc()
            alive = False
        if not alive:
            self._lost(connection)

    def _lost(self, connection: Connection) -> None:
        self._poll.unregister(connection.sock)
        self._others.pop(connection.sock.fileno(), None)
        connection.close()
        if connection is self._owner:
            self._owner = None
            if self._grace is not None:
                self._deadline = time.monotonic() + self._grace

    # -- what is asked -------------------------------------------------------------------

    def _handle(self, connection: Connection, message: Message, descriptors: list[int]) -> None:
        answer, passed = self._answer(connection, message, descriptors)
        for fd in descriptors:  # not in a `finally`: a newborn passes here on its way out, and has other descriptors
            os.close(fd)
        send(connection.sock, {"of": message["id"], **answer}, passed)

    def _answer(self, connection: Connection, message: Message, descriptors: list[int]) -> tuple[Message, list[int]]:
        if message["do"] == "own":
            return self._own(connection, message)
        if connection is not self._owner:
            return {"refused": "not the owner"}, []
        match message["do"]:
            case "launch":
                return self._launch(message, descriptors), []
            case "forget":
                self._forget(message["name"])
                return {}, []
            case "kernels":
                return self._kernels()
            case "listen":
                self._listen_again(descriptors)
                return {}, []
            case "end":
                with contextlib.suppress(OSError):
                    send(connection.sock, {"of": message["id"]})
                os._exit(0)
            case unknown:
                return {"refused": f"unknown request {unknown}"}, []

    def _own(self, connection: Connection, message: Message) -> tuple[Message, list[int]]:
        """The exclusive lock: one owner, for as long as its connection stands. It gets the directory's lock."""
        if message["version"] != VERSION:
            return {"refused": f"this keeper speaks version {VERSION}, not {message['version']}"}, []
        if self._owner is not None and self._owner is not connection:
            return {"refused": "owned"}, []
        self._others.pop(connection.sock.fileno(), None)
        self._owner, self._deadline = connection, None
        self._grace = message.get("grace", self._grace)
        return {"pid": os.getpid()}, [self._lock] if self._lock >= 0 else []

    def _kernels(self) -> tuple[Message, list[int]]:
        names = list(self._kept)
        kernels = [{"name": n, "guard": self._kept[n].guard} for n in names]
        return {"kernels": kernels}, [self._kept[n].descriptor for n in names]

    def _forget(self, name: str) -> None:
        if (kept := self._kept.pop(name, None)) is not None:
            os.close(kept.descriptor)

    def _launch(self, request: Message, descriptors: list[int]) -> Message:
        """Fork the guard. The last descriptor is the owner's end of its socket, to be kept, where there is a grace."""
        kept = descriptors.pop() if self._grace is not None else -1
        if time.monotonic() > request["until"]:
            if kept >= 0:
                os.close(kept)
            return {"refused": "too late"}
        why = why_exec(request, self._preloaded, self._began_with)
        request["facts"]["owner"] = str(os.getpid())
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            descriptors.append(kept) if kept >= 0 else None
            return {"refused": f"cannot fork: {error}"}
        if pid == 0:
            self._become(request, descriptors, fork=why is None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if kept >= 0:
            self._kept[request["name"]] = Kept(kept, pid)
        return {"guard": pid, "mode": "fork" if why is None else "exec", "why": why}

    def _become(self, request: Message, descriptors: list[int], *, fork: bool) -> None:
        """In the child. Socket objects let go of numbers that will be somebody else's."""
        for connection in (self._owner, *self._others.values()):
            if connection is not None:
                connection.sock.detach()
        if self._listener is not None:
            self._listener.detach()
        try:
            be_guard(request, descriptors, self._origins, fork=fork)
        except Exception:
            traceback.print_exc()
        os._exit(1)


def main() -> str:
    """``DIRECTORY OWNER GRACE LOCK``: the last two empty where not. Returns in a kernel's process alone."""
    close_process()
    directory, owner, grace, lock = sys.argv[2:6]
    return Keeper(directory, int(owner), float(grace) if grace else None, int(lock or -1)).run()
