"""CurveZMQ for kernels that are reached over TCP: keys in the connection file, and sockets that use them.

Over loopback every account of the machine reaches a kernel's ports. With a server's key on them, only who
has read the connection file, which is private, gets past the handshake: nobody else hears IOPub. Jupyter's
libraries know the same fields (ipykernel from 7.4, jupyter_client from 8.10). Knows no messages. Used by whatever
opens a kernel's socket; `processes.runtime_files` makes the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import zmq

PUBLIC, SECRET = "curve_publickey", "curve_secretkey"


def is_encrypted(info: Mapping[str, Any]) -> bool:
    """Whether the kernel of that connection file asks for keys."""
    return bool(info.get(PUBLIC))


def as_client(socket: zmq.Socket[bytes], info: Mapping[str, Any]) -> None:
    """Have the socket speak with that kernel alone; before it connects."""
    if is_encrypted(info):
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_serverkey = info[PUBLIC].encode()


def as_server(socket: zmq.Socket[bytes], info: Mapping[str, Any]) -> None:
    """Have the socket speak with those alone who know the file; before it is bound."""
    if info.get(SECRET):
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = info[PUBLIC].encode(), info[SECRET].encode()
