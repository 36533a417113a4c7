"""The private socket on which a server serves its API to its own kernels and its user's commands (contract 8).

Owns the listening socket, the address that kernels get, and the secrets that prove a caller
where the rights of a file cannot: on Windows, where it is a loopback port. Knows nothing
of HTTP; `server.private_server` serves on it. Made by the composition roots; `launcher` hands the address
and a kernel's secret to its processes, `running_servers` tells the user's other programs.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import sys
from pathlib import Path
from urllib.parse import quote

from loommux_kernel.shared.transport import UNIX

NAME = "c"
#: Holds the secret of the user's own programs, where there is one.
SECRET_FILE = "secret"
BACKLOG = 256


class ControlSocket:
    """Bound and listening from the start, so that whoever gets the address can connect; `close` it at the end."""

    def __init__(self, directory: Path) -> None:
        self._key = os.urandom(32) if sys.platform == "win32" else None
        if sys.platform == "win32":
            self.listener = socket.socket(socket.AF_INET)
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
            self.listener.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
            self.write_secret(directory / SECRET_FILE)
        else:
            self._path = directory / NAME
            self.listener = _listening(self._path)
            self.url = UNIX + quote(str(self._path), safe="")
            return
        self.listener.listen(BACKLOG)

    def listen_again(self) -> socket.socket | None:
        """When somebody has removed the socket's file: listen at the same address; returns what listened before.

        Raises OSError.
        """
        if sys.platform == "win32" or self._path.exists():
            return None
        before, self.listener = self.listener, _listening(self._path)
        return before

    def secret(self, kernel: str | None = None) -> str | None:
        """What that kernel, or the user's own programs, have to show; None where the file's rights are the proof."""
        if self._key is None:
            return None
        return hmac.new(self._key, (kernel or "").encode(), hashlib.sha256).hexdigest()

    def admits(self, kernel: str | None, shown: str | None) -> bool:
        """Whether a caller that says it is that kernel (None: one of the user's programs) may be believed."""
        secret = self.secret(kernel)
        return secret is None or hmac.compare_digest(secret, shown or "")

    def write_secret(self, path: Path, kernel: str | None = None) -> Path | None:
        """Put the secret into a private file; returns the file where there is a secret."""
        secret = self.secret(kernel)
        if secret is None:
            return None
        path.touch(mode=0o600)
        path.write_text(secret)
        return path

    def close(self) -> None:
        self.listener.close()


def _listening(path: Path) -> socket.socket:
    """A socket that listens there, from when it is there; in place of a dead server's whose kernels were taken over."""
    beside = path.with_name(f"{path.name}.n")
    made = socket.socket(socket.AF_UNIX)
    try:
        beside.unlink(missing_ok=True)
        made.bind(str(beside))
        beside.chmod(0o600)  # nobody else gets into the directory in the meantime
        made.listen(BACKLOG)
        beside.replace(path)
    except OSError:
        made.close()
        raise
    return made
