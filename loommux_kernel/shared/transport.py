"""One HTTP request to a server's API, from any thread, within a deadline.

Owns how the server is reached (a unix socket, or TCP), what proves who calls, and that no
request outlives its time: a server that is dead, stands still or sends a byte now and then
costs `timeout` seconds and a `DaemonError`. Knows no endpoint; `api_client` and `inside.forwarding`
call. Imports what it needs when the first request is made.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from time import sleep
from typing import Any

from loommux_kernel.shared.clock import monotonic

#: Where a server listens when nobody says where.
DEFAULT_URL = "http://127.0.0.1:8801"
UNIX = "http+unix://"
URL_VARIABLE = "LOOMMUX_CONTROL_URL"
ID_VARIABLE = "LOOMMUX_KERNEL_ID"
#: Path of a private file whose content the server wants to see, where sockets have no rights of their own.
SECRET_VARIABLE = "LOOMMUX_CONTROL_SECRET"
#: Seconds that a server may take to answer, beside the time it was asked to wait.
TIMEOUT = 10.0
#: Seconds within which a server makes its socket again when somebody has removed it.
MADE_AGAIN = 1.5


class DaemonError(Exception):
    """The server has refused something, or could not be asked; `status` is a word of the reference.

    ``unreachable``, ``timeout`` and ``bad_response`` are said here, all others by the server.
    """

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"{status}: {message}" if message else status)
        self.status = status
        self.message = message


class Address:
    """A server, and who calls it. `path` is that of a unix socket, else `host` and `port` count.

    No dataclass: making one would be half of what every kernel's start pays for this module.
    """

    def __init__(self, url: str, host: str, port: int, path: str | None, headers: dict[str, str]) -> None:
        self.url, self.host, self.port, self.path, self.headers = url, host, port, path, headers

    @classmethod
    def of(cls, url: str | None, token: str | None, client: str | None) -> Address:
        """Where `url` leads, by default to the server of this kernel, or to the usual place."""
        own = os.environ.get(URL_VARIABLE)
        url = url or own or DEFAULT_URL
        headers = {"accept": "application/json"}
        secret = os.environ.get(SECRET_VARIABLE) if url == own and token is None else None
        if secret:
            token = _content(secret)
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        kernel = os.environ.get(ID_VARIABLE)
        if url == own and kernel:
            headers["x-loommux-kernel"] = kernel
        if client is not None:
            headers["x-loommux-client"] = client
        return cls(url, *_place(url), headers)


def _place(url: str) -> tuple[str, int, str | None]:
    from urllib.parse import unquote, urlsplit

    if url.startswith(UNIX):
        return "localhost", 80, unquote(url.removeprefix(UNIX).rstrip("/"))
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ValueError(f"the URL of a server begins with http:// or {UNIX}, got {url!r}")
    return parts.hostname, parts.port or 80, None


def _content(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 (pathlib is not wanted for this alone)
            return file.read().strip()
    except OSError as error:
        raise DaemonError("unreachable", f"{SECRET_VARIABLE} cannot be read: {error}") from None


class Line:
    """A connection for requests one after the other, of one thread; only `hang_up` may come from another."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Any = None
        self._socket: Any = None
        self._closed = False

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True
        self._drop()

    def hang_up(self) -> None:
        """Let a request in another thread, and all after it, fail."""
        self._closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def ask(
        self,
        method: str,
        path: str,
        query: dict[str, Any] | None = None,
        body: dict[str, Any] | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> bytes:
        """The answer's body. Raises `DaemonError` for whatever is no success."""
        target = path + _query(query)
        data = None if body is None and method == "GET" else json.dumps(body or {}).encode()
        deadline = monotonic() + timeout
        # an open one may have been closed meanwhile; what changes anything is not sent twice
        attempts = 2 if self._connection is not None and method == "GET" else 1
        try:
            for _ in range(attempts):
                with contextlib.suppress(_Gone):
                    return self._ask(method, target, data, deadline)
        except TimeoutError:
            raise DaemonError(
                "timeout", f"no answer within {timeout:g} s from the server at {self._address.url} ({method} {path})"
            ) from None
        raise DaemonError("unreachable", f"the server at {self._address.url} hung up")

    def _ask(self, method: str, target: str, data: bytes | None, deadline: float) -> bytes:
        from http.client import HTTPException, RemoteDisconnected

        headers = dict(self._address.headers)
        if data is not None:
            headers["content-type"] = "application/json"
        done = False
        try:
            connection = self._open(deadline)
            connection.request(method, target, body=data, headers=headers)
            response = connection.getresponse()
            content = response.read()
            done = not response.will_close
        except (RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            raise _Gone from None
        except TimeoutError:
            raise
        except HTTPException as error:
            raise DaemonError("bad_response", f"{self._address.url} is no loommux server: {error!r}") from None
        except OSError as error:
            raise DaemonError(
                "unreachable", f"the server at {self._address.url} cannot be reached: {error.strerror or error}"
            ) from None
        finally:
            if not done:
                self._drop()
        if response.status >= 400:
            raise _refusal(response.status, content)
        return content

    def _open(self, deadline: float) -> Any:
        from http.client import HTTPConnection

        if self._closed:
            raise DaemonError("unreachable", "the connection was closed")
        if self._connection is None:
            made = HTTPConnection(self._address.host, self._address.port)
            made.sock = self._socket = _connected(self._address, deadline)
            self._connection = made
            if self._closed:  # meanwhile
                raise DaemonError("unreachable", "the connection was closed")
        self._socket.deadline = deadline
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._socket.close()
            connection.close()


class _Gone(Exception):
    """The server closed the connection without an answer."""


class Socket(socket.socket):
    """A socket whose every step ends by one deadline."""

    deadline = 0.0

    def limit(self) -> None:
        left = self.deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)

    def sendall(self, *arguments: Any) -> None:
        self.limit()
        super().sendall(*arguments)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self.limit()
        return super().recv_into(buffer, nbytes, flags)


def _connected(address: Address, deadline: float) -> Socket:
    if address.path is not None:
        return _connect_to_file(address.path, deadline)
    failure: OSError | None = None
    for family, _, _, _, where in socket.getaddrinfo(address.host, address.port, 0, socket.SOCK_STREAM):
        try:
            made = _connect(family, where, deadline)
        except OSError as error:
            failure = failure or error
            continue
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    raise failure or OSError("no such host")


def _connect_to_file(path: str, deadline: float) -> Socket:
    """A file that is not there may be made again: the temporary directory was emptied, and the server lives."""
    until = min(deadline, monotonic() + MADE_AGAIN)
    while True:
        try:
            return _connect(socket.AF_UNIX, path, deadline)
        except FileNotFoundError:
            if monotonic() > until:
                raise
            sleep(0.05)


def _connect(family: int, where: Any, deadline: float) -> Socket:
    made = Socket(family, socket.SOCK_STREAM)
    made.deadline = deadline
    try:
        made.limit()
        made.connect(where)
    except BaseException:
        made.close()
        raise
    return made


def _query(query: dict[str, Any] | None) -> str:
    from urllib.parse import urlencode

    given = {k: json.dumps(v) if isinstance(v, bool) else v for k, v in (query or {}).items() if v is not None}
    return f"?{urlencode(given, errors='backslashreplace')}" if given else ""


def _refusal(code: int, content: bytes) -> DaemonError:
    try:
        told = json.loads(content)
        return DaemonError(str(told["status"]), str(told.get("message") or ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return DaemonError("bad_response", f"HTTP {code}: {content[:200].decode(errors='replace')}")


def read_json(content: bytes) -> dict[str, Any]:
    """A JSON object that is no refusal."""
    try:
        told = json.loads(content)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise DaemonError("bad_response", f"no JSON object: {content[:200].decode(errors='replace')}")
    if told.get("ok") is False:
        raise DaemonError(str(told.get("status") or "refused"), str(told.get("message") or ""))
    return told
