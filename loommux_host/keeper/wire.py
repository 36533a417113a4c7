"""How a keeper and its owner talk: JSON messages with descriptors, over a unix socket.

Owns the frames and their version; `keeper` says what the messages mean. Standard library
only, and no asyncio: both ends use it, and the keeper must stay small.

A frame is the length of the message and the number of its descriptors, four bytes each,
then the message. The descriptors travel with its first byte.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

#: A keeper serves an owner of the same version only.
VERSION = 1
#: The keeper's listening socket, in the server's directory.
SOCKET_NAME = "keeper"
#: The system passes at most 253 at once.
MOST_DESCRIPTORS = 250
READ_BYTES = 1 << 16

Message = dict[str, Any]
_HEADER = struct.Struct("!II")
_SPACE = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize) if hasattr(socket, "CMSG_SPACE") else 0


def frame(message: Message, descriptors: int) -> bytes:
    """The bytes of a message that comes with so many descriptors."""
    data = json.dumps(message).encode()
    return _HEADER.pack(len(data), descriptors) + data


def send_first(connection: socket.socket, data: bytes, descriptors: Sequence[int]) -> int:
    """Begin to send a frame, with its descriptors; returns how many bytes of it are sent."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    return connection.sendmsg([data], rights)


def send(connection: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Send a whole message, over a socket that blocks or has a timeout. Raises OSError."""
    data = frame(message, len(descriptors))
    connection.sendall(data[send_first(connection, data, descriptors) :])


class Frames:
    """What arrives over one connection, put together to messages."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._descriptors: deque[int] = deque()

    def read(self, connection: socket.socket) -> bool:
        """Take in what is there; False at the end of the stream. Raises OSError."""
        data, rights, _, _ = connection.recvmsg(READ_BYTES, _SPACE)
        self._data += data
        for level, kind, content in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                got = array.array("i")
                got.frombytes(content[: len(content) - len(content) % got.itemsize])
                for fd in got:
                    os.set_inheritable(fd, False)
                self._descriptors.extend(got)
        return bool(data)

    def messages(self) -> Iterator[tuple[Message, list[int]]]:
        """The messages that are complete, each with its descriptors, which are the caller's from then on."""
        while len(self._data) >= _HEADER.size:
            length, count = _HEADER.unpack_from(self._data)
            end = _HEADER.size + length
            if len(self._data) < end or len(self._descriptors) < count:
                return
            message = json.loads(bytes(self._data[_HEADER.size : end]))
            del self._data[:end]
            yield message, [self._descriptors.popleft() for _ in range(count)]

    def close(self) -> None:
        """Close the descriptors that nobody has taken."""
        while self._descriptors:
            os.close(self._descriptors.popleft())
