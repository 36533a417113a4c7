"""The keys of kernels that are reached over TCP, and what people are warned of where there can be none.

Owns what a connection file says of them; who uses them is `kernels.encryption`. Called by `runtime_files`,
`server.host` and `diagnosis`.
"""

from __future__ import annotations

import sys


def can_encrypt() -> bool:
    """Whether kernels that are reached over TCP can be closed to other accounts of this machine."""
    import zmq  # 50 ms that a start with unix sockets does not wait for

    return bool(zmq.has("curve"))


def transport_obstacles(transport: str) -> list[str]:
    """What people have to be warned of about the way in which kernels are reached."""
    if transport != "tcp" or can_encrypt():
        return []
    return [
        'kernel_transport is "tcp", and this ZeroMQ was built without encryption: every account of this machine can'
        f" read all cells and their output. Install a pyzmq that has it ({sys.executable} -m pip install pyzmq)"
        + ("" if sys.platform == "win32" else ', or set kernel_transport = "ipc"')
    ]


def encryption_keys() -> dict[str, str]:
    """What a connection file says of keys (`kernels.encryption`); nothing where ZeroMQ was built without them."""
    if not can_encrypt():
        return {}
    import zmq

    public, secret = zmq.curve_keypair()
    return {"curve_publickey": public.decode(), "curve_secretkey": secret.decode()}
