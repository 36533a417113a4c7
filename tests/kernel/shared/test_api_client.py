"""The client of a server's API: whatever the server does, a call ends in time and says what was wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from loommux_kernel.client import Daemon, DaemonError, Kernels
from loommux_kernel.shared.handles import Told

TIMEOUT = 0.3
#: A call that hangs would take as long as the server lives.
MUCH = 10.0

Serve = Callable[[socket.socket], None]


class Server:
    """A unix socket at which `serve` does what it likes with each connection."""

    def __init__(self, serve: Serve) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="lm-")
        self.path = Path(self.directory.name) / "c"
        self.url = "http+unix://" + quote(str(self.path), safe="")
        self.heard: list[bytes] = []
        self._serve = serve
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.path))
        self._socket.listen()
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._handle, args=(connection,)))
            self._threads[-1].start()

    def _handle(self, connection: socket.socket) -> None:
        try:
            self.heard.append(connection.recv(65536))
            self._serve(connection)
        except OSError:
            return

    def close(self) -> None:
        for one in [self._socket, *self._connections]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(MUCH)
        self.directory.cleanup()


@pytest.fixture
def server() -> Iterator[Callable[[Serve], Server]]:
    made: list[Server] = []

    def make(serve: Serve) -> Server:
        made.append(Server(serve))
        return made[-1]

    yield make
    for one in made:
        one.close()


def answering(body: object, status: str = "200 OK") -> Serve:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    def serve(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n" % (status.encode(), len(content)) + content)

    return serve


def dripping(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.01)


def dripping_headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nx-a: ")
    while True:
        connection.sendall(b"a")
        time.sleep(0.01)


def silent(connection: socket.socket) -> None:
    connection.recv(1)


@pytest.mark.parametrize("serve", [silent, dripping, dripping_headers])
def test_a_slow_or_dead_server_costs_the_timeout_and_an_error(server: Callable[[Serve], Server], serve: Serve) -> None:
    began = time.monotonic()
    with pytest.raises(DaemonError, match=r"no answer within 0\.3 s") as caught:
        Daemon(server(serve).url).kernels(timeout=TIMEOUT)
    assert caught.value.status == "timeout"
    assert time.monotonic() - began < MUCH


def test_a_call_ends_in_time_from_threads_and_under_a_loop_that_it_blocks(server: Callable[[Serve], Server]) -> None:
    daemon, failed = Daemon(server(silent).url), list[str]()

    def ask() -> None:
        with pytest.raises(DaemonError) as caught:
            daemon.kernels(timeout=TIMEOUT)
        failed.append(caught.value.status)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()

    async def blocking() -> None:
        ask()

    asyncio.run(blocking())
    for thread in threads:
        thread.join(MUCH)
    assert failed == ["timeout"] * 5


@pytest.mark.parametrize(
    ("serve", "status"),
    [
        (lambda connection: connection.close(), "unreachable"),
        (lambda connection: connection.sendall(b"SSH-2.0-OpenSSH\r\n"), "bad_response"),
        (answering(b"<html>"), "bad_response"),
        (answering([1]), "bad_response"),
        (answering(b"<html>", "502 Bad Gateway"), "bad_response"),
        (answering({"ok": False, "status": "busy", "message": "In [3]"}, "409 Conflict"), "busy"),
        (answering({"ok": False, "status": "idle", "message": "runs no cell"}), "idle"),
    ],
)
def test_what_is_no_success_is_an_error_with_a_status(
    server: Callable[[Serve], Server], serve: Serve, status: str
) -> None:
    with pytest.raises(DaemonError) as caught:
        Daemon(server(serve).url)["lab"]
    assert caught.value.status == status
    assert str(caught.value).startswith(f"{status}: ")


@pytest.mark.parametrize("url", ["http+unix:///nowhere/at/all", "http://127.0.0.1:1", "http://name.invalid"])
def test_a_server_that_is_not_there_is_unreachable(url: str) -> None:
    with pytest.raises(DaemonError) as caught:
        Daemon(url).kernels()
    assert caught.value.status == "unreachable"


def test_a_url_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="begins with http://"):
        Daemon("https://example.org").kernels()


def test_who_calls_is_said_to_the_own_server_and_the_token_to_whom_it_was_given_for(
    server: Callable[[Serve], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = server(answering({"resources": []})), server(answering({"resources": []}))
    monkeypatch.setenv("LOOMMUX_CONTROL_URL", own.url)
    monkeypatch.setenv("LOOMMUX_KERNEL_ID", "k-7")
    Daemon().kernels()
    Daemon(other.url, "secret", client="script").kernels()
    (mine,), (theirs,) = own.heard, other.heard
    assert mine.startswith(b"GET /api/resources HTTP/1.1\r\n")
    assert b"x-loommux-kernel: k-7\r\n" in mine
    assert b"authorization" not in mine
    assert b"authorization: Bearer secret\r\n" in theirs
    assert b"x-loommux-client: script\r\n" in theirs
    assert b"k-7" not in theirs


def test_importing_the_client_imports_next_to_nothing() -> None:
    kernels = ["asyncio", "dataclasses", "json", "socket"]  # what every kernel has anyway
    code = (
        "import sys; import " + ", ".join(kernels) + "; before = set(sys.modules)\n"
        "import loommux_kernel.client; print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    new = json.loads(done.stdout.replace("'", '"'))
    assert [name for name in new if not name.startswith("loommux_kernel")] in ([], ["__future__"])


def test_kernels_are_a_list_that_shows_itself_as_a_table() -> None:
    snapshot = {"resource_id": "a1", "name": "main", "kernel_state": "running", "busy": True, "home": None}
    child = {
        "resource_id": "b2",
        "name": "lab",
        "kernel_state": "stopped",
        "busy": False,
        "home": "a1",
        "idle_since": 0,
    }
    table = Kernels.of([snapshot, child])
    assert [(row["name"], row["home"]) for row in table] == [("main", None), ("lab", "main")]
    head, *lines = [line.split() for line in repr(table).split("\n")]
    assert head == ["name", "id", "state", "busy", "idle", "pid", "executions", "leases", "kept", "scope", "home"]
    assert lines[0] == ["main", "a1", "running", "yes", *["-"] * 7]
    assert (lines[1][3], lines[1][-1]) == ("no", "main")
    assert repr(Kernels()) == "no kernels"


def test_followed_output_is_whole_lines_each_once_and_again_from_the_first_that_changed() -> None:
    told = Told()
    assert told.of("", "one\ntw", ended=False) == "one\n"
    assert told.of("", "one\ntwo\n50%", ended=False) == "two\n"
    assert told.of("one\n", "two\n60%", ended=False) == ""
    assert told.of("", "two!\n70%", ended=False) == "two!\n"
    assert told.of("two!\n", "100%", ended=True) == "100%"
    assert Told().of("", "", ended=True) == ""


@pytest.mark.case("X23")
def test_self_outside_a_kernel_says_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOOMMUX_KERNEL_ID", raising=False)
    with pytest.raises(AttributeError, match=r"no `self` outside a kernel; kernels\(\) lists them"):
        _ = Daemon("http://127.0.0.1:1").self
    with pytest.raises(AttributeError, match="'Daemon' object has no attribute 'other'"):
        _ = Daemon("http://127.0.0.1:1").other
