"""Requests to one kernel process, and its events.

A `Channel` promises:

* `execute` and `request` end: with the answer, with `ChannelClosed`, and `request`
  at its deadline. Cancelling either forgets the answer and changes nothing in the kernel.
* Events arrive in the order the kernel numbered them, on the event loop. What is lost
  on the way is not repaired here: the receiver sees a gap in `Event.sequence`.
* `heard` says when the kernel last proved to be alive, on the event loop's clock.

`ZmqChannel` speaks Jupyter's wire protocol; the tests have a twin of it
in memory. Neither knows what runs, who asks or what an event means: `mirror` does.
Called by `process_life`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import zmq

from loommux_host.kernels.encryption import as_client
from loommux_host.kernels.jupyter_messages import Message, Wire, endpoint
from loommux_kernel.shared.protocol import (
    CONTROL_PREFIX,
    EVENT_TOPIC,
    EVENT_TYPE,
    METADATA_KEY,
    Event,
    Reply,
    Submission,
    event_from_wire,
)

log = logging.getLogger(__name__)

#: Messages taken from one socket before the event loop gets its turn.
TURN = 200
#: How long a new channel waits for the kernel to confirm that events will arrive.
SUBSCRIBE_SECONDS = 1.0
#: Events queued by ZMQ while the host's loop is held up; past it a gap appears.
EVENTS_QUEUED = 10_000

OnEvent = Callable[[Event], None]


class ChannelClosed(Exception):
    """The channel was closed while an answer was awaited, or before the request."""


class KernelUnresponsive(Exception):
    """The kernel did not answer a control request before its deadline."""


class RequestFailed(Exception):
    """The kernel answered a request with an error, or with something that is no answer."""


class Channel(Protocol):
    """What the host can ask of one kernel process; the promises stand in the module's docstring."""

    heard: float

    async def open(self, on_event: OnEvent) -> None: ...

    async def execute(self, source: str, submission: Submission) -> Reply: ...

    async def request(self, name: str, content: dict[str, Any] | None = None, *, deadline: float) -> dict[str, Any]: ...

    def take_in(self) -> None: ...

    def close(self) -> None: ...


class ZmqChannel:
    """A channel over Jupyter's sockets: shell, control, and IOPub for our topic alone.

    Plain ZMQ sockets read by the loop's reader cost less than `zmq.asyncio` per message.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], connection_file: Path, server_session: str) -> None:
        self.heard = 0.0
        self._context = context
        self._info = json.loads(connection_file.read_text())
        self._wire = Wire(self._info["key"], self._info["signature_scheme"], server_session)
        self._answers: dict[str, asyncio.Future[Message]] = {}
        self._receivers: list[_Receiver] = []
        self._subscribed = asyncio.Event()
        self._on_event: OnEvent = lambda event: None

    async def open(self, on_event: OnEvent) -> None:
        """Connect, and wait until the kernel has confirmed the subscription to its events."""
        self._on_event = on_event
        self.heard = asyncio.get_running_loop().time()
        self._iopub = self._connect(zmq.SUB, "iopub", self._take_event)
        self._shell = self._connect(zmq.DEALER, "shell", self._take_answer)
        self._control = self._connect(zmq.DEALER, "control", self._take_answer)
        try:
            await asyncio.wait_for(self._subscribed.wait(), SUBSCRIBE_SECONDS)
        except TimeoutError:  # an event missed meanwhile shows as a gap
            return

    async def execute(self, source: str, submission: Submission) -> Reply:
        """Send one cell and wait, without a deadline, for the kernel to say how it ended."""
        content = {
            "code": source,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        metadata = {METADATA_KEY: submission.to_wire()}
        message = await self._ask(self._shell, "execute_request", content, metadata)
        wire = message.metadata.get(METADATA_KEY)
        if wire is None:
            raise RequestFailed(f"the kernel's reply to a cell says nothing of it: {message.content}")
        return Reply.from_wire(wire)

    async def request(self, name: str, content: dict[str, Any] | None = None, *, deadline: float) -> dict[str, Any]:
        """Ask on the control channel; at most `deadline` seconds."""
        try:
            async with asyncio.timeout(deadline):
                message = await self._ask(self._control, CONTROL_PREFIX + name, content or {}, {})
        except TimeoutError:
            raise KernelUnresponsive(f"no answer to {name} within {deadline:g} s") from None
        if "error" in message.content:
            raise RequestFailed(f"{name}: {message.content['error']}")
        return message.content

    def take_in(self) -> None:
        """Take what has arrived already, before the loop gets to it."""
        for receiver in self._receivers:
            receiver.drain()

    def close(self) -> None:
        """Let go of the sockets; whoever still waits gets `ChannelClosed`."""
        for receiver in self._receivers:
            receiver.close()
        self._receivers.clear()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ChannelClosed())
        self._answers.clear()

    async def _ask(self, receiver: _Receiver, kind: str, content: dict[str, Any], metadata: dict[str, Any]) -> Message:
        if receiver not in self._receivers:
            raise ChannelClosed
        id, frames = self._wire.packed(kind, content, metadata)
        answer = self._answers[id] = asyncio.get_running_loop().create_future()
        try:
            receiver.send(frames)
            return await answer
        finally:
            self._answers.pop(id, None)

    def _connect(self, kind: int, name: str, take: Callable[[list[bytes]], None]) -> _Receiver:
        socket = self._context.socket(kind)
        socket.linger = 0
        if kind == zmq.SUB:
            socket.rcvhwm = EVENTS_QUEUED
            socket.subscribe(EVENT_TOPIC)
        else:
            socket.setsockopt(zmq.IDENTITY, self._wire.session.encode())
        as_client(socket, self._info)
        socket.connect(endpoint(self._info, name))
        receiver = _Receiver(socket, take)
        self._receivers.append(receiver)
        return receiver

    def _take_answer(self, frames: list[bytes]) -> None:
        message = self._wire.read(frames)
        self.heard = asyncio.get_running_loop().time()
        answer = self._answers.get(message.parent)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _take_event(self, frames: list[bytes]) -> None:
        message = self._wire.read(frames)
        self.heard = asyncio.get_running_loop().time()
        if message.kind == EVENT_TYPE:
            self._on_event(event_from_wire(message.content))
        else:
            self._subscribed.set()  # the kernel's welcome


class _Receiver:
    """One socket read on the event loop.

    ZMQ's descriptor tells of changes only once, and sending may swallow the news: so
    everything there is must be taken each time, and looked for after each send.
    """

    def __init__(self, socket: zmq.Socket[bytes], take: Callable[[list[bytes]], None]) -> None:
        self.socket = socket
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._readers = reader_loop(self._loop)
        self._fd = socket.FD
        self._readers.add_reader(self._fd, self._turn)
        self._loop.call_soon(self._turn)

    def send(self, frames: list[bytes]) -> None:
        self.socket.send_multipart(frames)
        self._turn()

    def drain(self) -> None:
        while self._some():
            pass

    def close(self) -> None:
        self._readers.remove_reader(self._fd)
        self.socket.close()

    def _turn(self) -> None:
        if not self.socket.closed and self._some():
            self._loop.call_soon(self._turn)

    def _some(self) -> bool:
        """Take up to `TURN` messages; whether there may be more."""
        for _ in range(TURN):
            if self.socket.closed or not self.socket.get(zmq.EVENTS) & zmq.POLLIN:  # pyright: ignore[reportOperatorIssue]
                return False
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
            try:
                self._take(frames)
            except Exception:  # one bad message must not keep those after it from being read
                log.exception("a message of a kernel could not be read")
        return True


_SELECTORS: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()


def reader_loop(loop: asyncio.AbstractEventLoop) -> Any:
    """What has `add_reader` for this loop; Windows' own loop needs tornado's selector thread."""
    if sys.platform != "win32" or not isinstance(loop, asyncio.ProactorEventLoop):
        return loop
    from tornado.platform.asyncio import AddThreadSelectorEventLoop

    if loop not in _SELECTORS:
        _SELECTORS[loop] = AddThreadSelectorEventLoop(loop)
    return _SELECTORS[loop]
