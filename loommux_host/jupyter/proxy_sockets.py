"""The two ends of the proxy kernel: what Jupyter speaks to, and the kernel behind it.

Owns the sockets of each, and that a message goes from one to the other with nothing
changed but its signature. What is forwarded, and what is said when it cannot be, is
`proxy`'s, which alone calls this.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from loommux_host.jupyter.kernel_finder import Living
from loommux_host.kernels.encryption import as_client, as_server
from loommux_host.kernels.jupyter_messages import DELIMITER, EMPTY, Message, Wire, endpoint

REQUESTS = ("shell", "control", "stdin")
#: Messages taken from one socket before the others get their turn.
TURN = 200
#: What a routing identity may hold of the notebook's name.
NAME_BYTES = 80

Socket = zmq.Socket[bytes]


@dataclass(frozen=True)
class Asked:
    """A request of a client: where it came in, and what an answer needs of it."""

    channel: str
    frames: list[bytes]
    message: Message

    @property
    def idents(self) -> list[bytes]:
        return self.frames[: self.frames.index(DELIMITER)]


class End:
    """Five sockets and the key of their messages."""

    def __init__(self, context: zmq.Context[Socket], info: dict[str, Any], kinds: Mapping[str, int]) -> None:
        self.wire = Wire(info["key"], info.get("signature_scheme", "hmac-sha256"), os.urandom(16).hex())
        self.sockets: dict[str, Socket] = {}
        for channel, kind in kinds.items():
            socket = self.sockets[channel] = context.socket(kind)
            socket.linger = 1000 if kind in (zmq.ROUTER, zmq.XPUB) else 0
            socket.sndhwm = socket.rcvhwm = 0  # nothing may be dropped

    def take(self, channel: str) -> Iterator[list[bytes]]:
        """What has arrived, for one turn."""
        socket = self.sockets[channel]
        for _ in range(TURN):
            try:
                yield socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return

    def send(self, channel: str, frames: list[bytes]) -> None:
        self.sockets[channel].send_multipart(frames)


class Front(End):
    """Where Jupyter's clients come in: a kernel as far as they can tell."""

    def __init__(self, context: zmq.Context[Socket], info: dict[str, Any]) -> None:
        kinds = dict.fromkeys((*REQUESTS, "hb"), zmq.ROUTER) | {"iopub": zmq.XPUB}
        super().__init__(context, info, kinds)
        self.sockets["iopub"].setsockopt(zmq.XPUB_VERBOSE, 1)
        for channel, socket in self.sockets.items():
            if socket.type == zmq.ROUTER:
                socket.router_handover = 1
            as_server(socket, info)
            socket.bind(endpoint(info, channel))

    def reply(self, asked: Asked, kind: str, content: dict[str, Any]) -> None:
        """Answer a request in the kernel's place."""
        frames = self.wire.packed(kind, content, {}, asked.message.header)[1]
        self.send(asked.channel, [*asked.idents, *frames])

    def publish(self, kind: str, content: dict[str, Any], parent: bytes = EMPTY) -> None:
        self.send("iopub", [kind.encode(), *self.wire.packed(kind, content, {}, parent)[1]])

    def welcome(self) -> None:
        """Tell new subscribers that they will hear everything from now on."""
        for frames in self.take("iopub"):
            if frames[0][:1] == b"\x01":
                topic = frames[0][1:]
                content = {"subscription": topic.decode(errors="replace")}
                packed = self.wire.packed("iopub_welcome", content, {})[1]
                self.send("iopub", [topic, *packed] if topic else packed)


class Back(End):
    """One connection to a kernel; it outlives the kernel's processes."""

    def __init__(self, context: zmq.Context[Socket], kernel: Living) -> None:
        kinds = dict.fromkeys((*REQUESTS, "hb"), zmq.DEALER) | {"iopub": zmq.SUB}
        super().__init__(context, kernel.info, kinds)
        self.kernel = kernel
        # The same on all: the kernel asks on stdin whoever sent the cell. See `loommux_kernel.running.foreign_clients`.
        name = os.path.basename(os.environ.get("JPY_SESSION_NAME", "")).encode()[:NAME_BYTES]  # noqa: PTH119
        identity = b"loommux-proxy/%d/%d/%s/%s" % (os.getpid(), os.getppid(), os.urandom(4).hex().encode(), name)
        self.monitor: Socket = self.sockets["shell"].get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        for channel, socket in self.sockets.items():
            if socket.type == zmq.SUB:
                socket.subscribe(b"")
            else:
                socket.setsockopt(zmq.IDENTITY, identity)
            as_client(socket, kernel.info)
            socket.connect(endpoint(kernel.info, channel))
        #: Whether the kernel's process is connected, and whether it has confirmed that we hear what it publishes.
        self.connected = self.heard = False

    @property
    def gone(self) -> bool:
        """Whether the kernel itself has ended, not only its process."""
        return not self.kernel.connection_file.exists()

    def changes(self) -> Iterator[bool]:
        """Take in that the process was connected (True) or is gone (False)."""
        while self.monitor.poll(0):
            event = parse_monitor_message(self.monitor.recv_multipart())
            self.connected = event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if not self.connected:
                self.heard = False
            yield self.connected

    def close(self) -> None:
        self.sockets["shell"].disable_monitor()
        for socket in self.sockets.values():
            socket.close(0)
