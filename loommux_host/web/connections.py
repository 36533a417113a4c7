"""Connections of a server's sockets: how many there may be, how long they have to say what they want.

Whoever can connect comes before every check of a request: a thousand connections that say nothing would take all
descriptors of the server, which its kernels and records need too. Owns the bound, which of the waiting ones go
when it is reached, and what happens when the system accepts no more. Knows no HTTP; `uvicorn_server` uses it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

log = logging.getLogger(__name__)

#: Those that are accepted at once, and those that the system holds until then.
BATCH, BACKLOG = 16, 2048
#: What is left of the limit of descriptors for everything but connections; the most connections there may be.
LEFT, MOST = 256, 4096
#: How long nothing is accepted when it cannot be, and how long nothing more is said of it.
PAUSE_SECONDS, QUIET_SECONDS = 1.0, 60.0


class Connection(Protocol):
    """One connection; `abort` closes it at once."""

    def abort(self) -> None: ...


class Connections:
    """All of a process. Those that wait for a request go, oldest first, when there is no room for another."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._open: set[Connection] = set()
        #: In the order in which they began to wait: those that have never asked for anything, and the others.
        self._silent: dict[Connection, None] = {}
        self._idle: dict[Connection, None] = {}
        self._said_at = -QUIET_SECONDS

    def made(self, connection: Connection) -> None:
        """It is open, and has asked for nothing yet."""
        self._open.add(connection)
        self._silent[connection] = None

    def asks(self, connection: Connection) -> None:
        """A request has come on it."""
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        """Its request has been answered."""
        if connection in self._open:
            self._idle[connection] = None

    def lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        self.asks(connection)

    def room(self) -> bool:
        """Whether one more may be accepted."""
        return len(self._open) < (_bound() if self.most is None else self.most)

    def make_room(self) -> bool:
        """Close the one that has waited longest; False when every one is in use."""
        for waiting in (self._silent, self._idle):
            for connection in waiting:
                self.lost(connection)
                connection.abort()
                return True
        return False

    def say(self, what: str) -> None:
        """Log why nothing is accepted, once in a while."""
        if time.monotonic() - self._said_at >= QUIET_SECONDS:
            self._said_at = time.monotonic()
            log.warning("no connection is accepted for the moment: %s (%d are open)", what, len(self._open))


#: This process's own, of all its sockets.
OPEN = Connections()


class Acceptor:
    """Accepts on one listening socket while there is room. In place of an `asyncio.Server` of uvicorn's."""

    def __init__(self, listener: socket.socket, make: Callable[[], asyncio.Protocol], connections: Connections) -> None:
        self._listener, self._make, self._connections = listener, make, connections
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[Any]] = set()
        self._again: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept no more."""
        self._loop.remove_reader(self._listener)
        if self._again is not None:
            self._again.cancel()

    async def wait_closed(self) -> None:
        """There is nothing to wait for."""

    def _accept(self) -> None:
        for _ in range(BATCH):
            if not (self._connections.room() or self._connections.make_room()):
                self._pause("as many are in use as there may be")
                return
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._connections.make_room()
                self._pause(str(error))
                return
            self._begin(accepted)

    def _begin(self, accepted: socket.socket) -> None:
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._make, accepted))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    def _pause(self, why: str) -> None:
        self._connections.say(why)
        self._loop.remove_reader(self._listener)
        self._again = self._loop.call_later(PAUSE_SECONDS, self._loop.add_reader, self._listener, self._accept)


def _bound() -> int:
    """As many as leave the server what else it needs of its descriptors."""
    if sys.platform == "win32":
        return MOST
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return MOST
    return min(MOST, max(limit - LEFT, limit // 2))
