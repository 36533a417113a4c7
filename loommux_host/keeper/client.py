"""The owner's end of a connection to a keeper: requests with deadlines, answers with descriptors.

Owns one connection. Knows what `keeper` understands, not why it is asked, and starts
nothing. Used by `supervisor`, which has the keeper's process, and by `provisioner`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loommux_host.keeper.wire import SOCKET_NAME, VERSION, Frames, Message, frame, send_first

#: What a keeper may take for an answer. It forks and never waits, but others may be before us, on a busy machine;
#: and a restart has 10 seconds, also when the keeper stands still.
ANSWER_SECONDS = 6.0


class KeeperGone(Exception):
    """The keeper has died, or does not answer."""


class KeeperRefused(Exception):
    """The keeper does not do it; the text is its own (``owned``: there is another owner)."""


@dataclass(frozen=True)
class Kept:
    """A kernel process as a keeper hands it to a new owner.

    `sock` is the owner's end of the socket of its init and guard, with everything unread
    in it.
    """

    name: str
    guard: int
    sock: socket.socket


class KeeperClient:
    """A connection to a keeper that has made us its owner."""

    def __init__(self, sock: socket.socket) -> None:
        """`sock` is connected. On the event loop."""
        self.lost = asyncio.Event()
        #: Why kernels are not forked warm, once the keeper has said so; None when they are.
        self.obstacle: str | None = None
        #: What proves the life of the server whose directory it is, for its next owner; -1 without.
        self.lock = -1
        self._warm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sock = sock
        self._frames = Frames()
        self._answers: dict[int, asyncio.Future[tuple[Message, list[int]]]] = {}
        self._last = 0
        self._sending = asyncio.Lock()
        sock.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)

    @classmethod
    async def take_over(cls, directory: Path, grace: float | None = None) -> KeeperClient:
        """Become the owner of the keeper in a server's directory whose owner has died.

        `grace` is how long it is to wait for the next owner, if that is to be another time.

        Raises `KeeperGone`, or `KeeperRefused` when somebody else is the owner.
        """
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(str(directory / SOCKET_NAME))
        except OSError as error:
            sock.close()
            raise KeeperGone(f"no keeper listens in {directory}: {error}") from error
        client = cls(sock)
        try:
            terms: dict[str, Any] = {} if grace is None else {"grace": grace}
            _, locks = await client.ask("own", version=VERSION, **terms)
        except BaseException:
            client.close()
            raise
        client.lock = locks[0] if locks else -1
        client._warm.set_result(None)
        return client

    async def until_warm(self, seconds: float) -> None:
        """Wait until it has imported what it forks. Raises `KeeperGone`."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._warm)
        except TimeoutError:
            raise KeeperGone(f"the keeper is not ready after {seconds:.0f} s") from None

    async def launch(self, request: Message, descriptors: Sequence[int]) -> Message:
        """Fork a guard; see `fork_server.Keeper`."""
        return (await self.ask("launch", descriptors, **request))[0]

    async def forget(self, name: str) -> None:
        """The process of that name has ended, or is not to be handed on."""
        with contextlib.suppress(KeeperGone):
            await self.ask("forget", name=name)

    async def kernels(self) -> list[Kept]:
        """Every process that it keeps, with a socket for each that is the caller's."""
        answer, descriptors = await self.ask("kernels")
        sockets = [socket.socket(fileno=fd) for fd in descriptors]
        return [Kept(k["name"], k["guard"], s) for k, s in zip(answer["kernels"], sockets, strict=True)]

    async def listen_again(self, lock: int) -> None:
        """Listen at the same path, whose directory was made again, and hold its `lock`."""
        await self.ask("listen", [lock] if lock >= 0 else [])

    async def end(self) -> None:
        """Let it exit; guards and inits that are left end what they guard."""
        with contextlib.suppress(KeeperGone):
            await self.ask("end")

    async def ask(self, what: str, descriptors: Sequence[int] = (), **words: Any) -> tuple[Message, list[int]]:
        """Its answer. Raises `KeeperGone`, `KeeperRefused`."""
        if self.lost.is_set():
            raise KeeperGone("the keeper has died")
        self._last += 1
        id = self._last
        answer = self._answers[id] = self._loop.create_future()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._send({"do": what, "id": id, **words}, descriptors)
                message, got = await answer
        except TimeoutError:
            raise KeeperGone(f"the keeper does not answer within {ANSWER_SECONDS:.0f} s") from None
        except OSError as error:
            raise KeeperGone(f"the keeper has died: {error}") from error
        finally:
            self._answers.pop(id, None)
        if "refused" in message:
            raise KeeperRefused(message["refused"])
        return message, got

    def close(self) -> None:
        """Let it go. A keeper whose server may have a successor waits for that one."""
        self._fail()

    # -- in the way ----------------------------------------------------------------------

    async def _send(self, message: Message, descriptors: Sequence[int]) -> None:
        data = frame(message, len(descriptors))
        async with self._sending:
            while True:
                try:
                    sent = send_first(self._sock, data, descriptors)
                    break
                except BlockingIOError:
                    await self._writable()
            await self._loop.sock_sendall(self._sock, data[sent:])

    async def _writable(self) -> None:
        writable: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(self._sock, lambda: writable.done() or writable.set_result(None))
        try:
            await writable
        finally:
            self._loop.remove_writer(self._sock)

    def _read(self) -> None:
        try:
            alive = self._frames.read(self._sock)
        except BlockingIOError:
            return
        except OSError:
            alive = False
        for message, descriptors in self._frames.messages():
            answer = self._answers.get(message["of"])
            if message["of"] == 0:
                self.obstacle = message["why"]
                if not self._warm.done():
                    self._warm.set_result(None)
            elif answer is not None and not answer.done():
                answer.set_result((message, descriptors))
            else:  # nobody waits any more
                for fd in descriptors:
                    os.close(fd)
        if not alive:
            self._fail()

    def _fail(self) -> None:
        if self.lost.is_set():
            return
        self.lost.set()
        self._loop.remove_reader(self._sock)
        self._sock.close()
        self._frames.close()
        gone = KeeperGone("the keeper has died")
        for waiting in (self._warm, *self._answers.values()):
            if not waiting.done():
                waiting.set_exception(gone)
        with contextlib.suppress(KeeperGone, asyncio.CancelledError, asyncio.InvalidStateError):
            self._warm.exception()  # nobody need have waited
