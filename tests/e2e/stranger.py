"""What this account can find out of processes, files and sockets: ``stranger.py ASKED.json`` prints it as JSON.

Run as another account than theirs, and as their own to see that it looks in the right places. It is told where
to look (`pids`, `directories`, `unix`, `ports`), since what matters is not whether it finds them but whether the system
lets it in. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

REQUESTS = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"GET /api/resources HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"GET /api/events?recent=100 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    # ZeroMQ's greeting without a mechanism, then a PUSH of rubbish
    b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48) + b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH",
)
SECONDS = 1.0
PROC_FILES = ("cmdline", "environ", "maps", "mem", "auxv", "stack", "syscall", "io")


def read(path: str | Path, size: int = 1 << 20) -> str:
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read(size).decode("latin-1")


def of_process(pid: int) -> dict[str, str]:
    """What can be read of it, by the file; of a descriptor that can be opened for writing, that."""
    found = {}
    for name in PROC_FILES:
        with contextlib.suppress(OSError):
            found[name] = (
                "opened" if name == "mem" and os.open(f"/proc/{pid}/mem", os.O_RDWR) else read(f"/proc/{pid}/{name}")
            )
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            for way, flags in (("read", os.O_RDONLY), ("write", os.O_WRONLY)):
                with contextlib.suppress(OSError):
                    os.close(os.open(f"/proc/{pid}/fd/{fd}", flags | os.O_NONBLOCK))
                    found[f"fd {fd} {way}"] = os.readlink(f"/proc/{pid}/fd/{fd}")  # noqa: PTH115
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        found["signal"] = "allowed"
    return found


def files(directory: str) -> Iterator[tuple[str, str]]:
    for where, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(where, name)  # noqa: PTH118
            with contextlib.suppress(OSError):
                if os.path.isfile(path):  # noqa: PTH113
                    yield path, read(path)


def said(family: int, address: str | tuple[str, int]) -> str | None:
    """What a listener answers to anything; None when it cannot be connected to."""
    answers = ""
    for request in REQUESTS:
        with socket.socket(family) as asking:
            asking.settimeout(SECONDS)
            try:
                asking.connect(address)
            except OSError:
                return None
            with contextlib.suppress(OSError):
                asking.sendall(request)
                while data := asking.recv(1 << 16):
                    answers += data.decode("latin-1")
    return answers


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    abstract = {name: name.replace("@", "\0", 1) if name.startswith("@") else name for name in asked["unix"]}
    found = {
        "uid": os.getuid(),
        "processes": {pid: of_process(pid) for pid in asked["pids"]},
        "files": dict(pair for directory in asked["directories"] for pair in files(directory)),
        "unix": {name: said(socket.AF_UNIX, path) for name, path in abstract.items()},
        "ports": {port: said(socket.AF_INET, ("127.0.0.1", port)) for port in asked["ports"]},
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
