"""A real kernel process, and a small client that speaks Jupyter's wire protocol to it.

`KernelProcess` starts ``python -m loommux_kernel`` as a server does, but by itself: no
init, no host. `Client` is one Jupyter client: the server's own, or a foreign one.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.session import Session

from loommux_kernel.shared.protocol import (
    CONTROL_PREFIX,
    EVENT_TOPIC,
    EVENT_TYPE,
    METADATA_KEY,
    Event,
    LaunchFile,
    Origin,
    OriginKind,
    Reply,
    Submission,
    event_from_wire,
    now,
)

TIMEOUT = 20.0
COMMAND = [sys.executable, "-m", "loommux_kernel"]
SESSION = Origin(OriginKind.SESSION, "session test", "test-1")
Message = dict[str, Any]


class KernelProcess:
    """One kernel process in a directory of its own; `close` ends both."""

    def __init__(
        self,
        *,
        startup: dict[str, str] | None = None,
        environment: dict[str, str] | None = None,
        name: str = "test",
        extra: Message | None = None,
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="lm-"))  # ipc paths are short
        self.workspace = self.directory / "workspace"
        self.workspace.mkdir()
        (self.directory / "fd").mkdir()
        self.connection = self.directory / "connection.json"
        self.connection.write_text(json.dumps(self._connection_info()))
        self._clients: list[Client] = []
        read, write = os.pipe()
        self.launch = LaunchFile(
            kernel_id="k-1",
            kernel_name=name,
            process=1,
            connection_file=str(self.connection),
            server_session=f"server-{uuid.uuid4().hex[:8]}",
            records=str(self.directory / "records.sqlite"),
            descriptors=str(self.directory / "fd"),
            log=str(self.directory / "log"),
            workspace=str(self.workspace),
            startup=self._startup_directory(startup),
            ready_fd=write,
            extra=extra or {},
        )
        launch = self.directory / "launch.json"
        self.launch.write(launch)
        log = (self.directory / "log").open("ab")
        self.process = subprocess.Popen(
            [*COMMAND, str(launch)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[write],
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            env={**os.environ, "NO_COLOR": "1", **(environment or {})},
        )
        log.close()
        os.close(write)
        self._ready = read

    def _connection_info(self) -> Message:
        ports = {f"{name}_port": i for i, name in enumerate(("shell", "iopub", "stdin", "control", "hb"), 1)}
        return {
            "transport": "ipc",
            "ip": str(self.directory / "s"),
            "key": uuid.uuid4().hex,
            "signature_scheme": "hmac-sha256",
            "kernel_name": "loommux",
            **ports,
        }

    def _startup_directory(self, files: dict[str, str] | None) -> str | None:
        if files is None:
            return None
        directory = self.directory / "startup"
        directory.mkdir()
        for name, text in files.items():
            (directory / name).write_text(text)
        return str(directory)

    def wait_ready(self, timeout: float = TIMEOUT) -> Message:
        """What the kernel says when it serves."""
        ready, _, _ = select.select([self._ready], [], [], timeout)
        line = os.read(self._ready, 65536) if ready else b""
        os.close(self._ready)
        assert line, f"the kernel did not start: {self.log()}"
        return json.loads(line)

    def server(self) -> Client:
        return self._client(self.launch.server_session)

    def foreign(self, username: str = "someone") -> Client:
        return self._client(uuid.uuid4().hex, username)

    def _client(self, session: str, username: str = "") -> Client:
        client = Client(json.loads(self.connection.read_text()), session, username)
        self._clients.append(client)
        return client

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def close(self) -> None:
        """End the process, if it has not ended, and take everything away."""
        for client in self._clients:
            client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT)
        shutil.rmtree(self.directory, ignore_errors=True)


def _die_with_parent() -> None:
    """So that a test run that is killed leaves no kernel behind (prctl: PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


#: Starts a kernel process; the fixture of that name ends it.
Launch = Callable[..., KernelProcess]


class AnonymousSession(Session):
    """A session whose message ids do not carry this process's id, as those of clients in browsers."""

    @property
    def msg_id(self) -> str:
        return uuid.uuid4().hex


class Client:
    """One Jupyter client of a kernel."""

    def __init__(self, info: Message, session: str, username: str = "") -> None:
        self.id = session
        self._mark = uuid.uuid4().hex
        self.session = AnonymousSession(key=info["key"].encode(), session=session, username=username)
        self._context = zmq.Context()
        self.shell = self._connect(zmq.DEALER, info, "shell")
        self.control = self._connect(zmq.DEALER, info, "control")
        self.stdin = self._connect(zmq.DEALER, info, "stdin")
        self.iopub = self._connect(zmq.SUB, info, "iopub")
        self.seen = 0
        self.events: list[Event] = []
        self.published: list[Message] = []
        try:
            self._wait_subscribed()
        except BaseException:
            self.close()
            raise

    def _connect(self, kind: int, info: Message, name: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.linger = 0
        if kind == zmq.SUB:
            socket.rcvhwm = 0
            socket.subscribe(b"")
            socket.subscribe(EVENT_TOPIC)
            socket.subscribe(self._mark.encode())  # a welcome comes only for topics that nobody has yet
        else:
            socket.setsockopt(zmq.IDENTITY, self.session.bsession)
        socket.connect(f"ipc://{info['ip']}-{info[f'{name}_port']}")
        return socket

    def _wait_subscribed(self) -> None:
        while True:
            message = self.receive(self.iopub)
            if message["content"].get("subscription") == self._mark:
                return

    def close(self) -> None:
        self._context.destroy(linger=0)

    # -- messages ------------------------------------------------------------------

    def send(self, socket: zmq.Socket[bytes], kind: str, content: Message, metadata: Message | None = None) -> Message:
        message = self.session.msg(kind, content, metadata=metadata)
        self.session.send(socket, message)
        return message

    def receive(self, socket: zmq.Socket[bytes], timeout: float = TIMEOUT) -> Message:
        assert socket.poll(int(timeout * 1000)), "nothing came from the kernel"
        _, frames = self.session.feed_identities(socket.recv_multipart())
        return self.session.deserialize(frames)

    def answer(self, socket: zmq.Socket[bytes], request: Message, timeout: float = TIMEOUT) -> Message:
        """The reply to that request; others are dropped."""
        until = time.monotonic() + timeout
        while True:
            message = self.receive(socket, max(0.0, until - time.monotonic()))
            if message["parent_header"].get("msg_id") == request["header"]["msg_id"]:
                return message

    # -- cells ---------------------------------------------------------------------

    def submit(self, code: str, *, seen: int | None = None, name: str | None = None, **content: Any) -> Message:
        """Send a cell as the server does."""
        submission = Submission(name or uuid.uuid4().hex, self.seen if seen is None else seen, SESSION, now())
        content = {"code": code, "allow_stdin": False, "stop_on_error": False, **content}
        return self.send(self.shell, "execute_request", content, {METADATA_KEY: submission.to_wire()})

    def reply(self, request: Message, timeout: float = TIMEOUT) -> Reply:
        message = self.answer(self.shell, request, timeout)
        reply = Reply.from_wire(message["metadata"][METADATA_KEY])
        self.seen = max(self.seen, reply.serial)
        return reply

    def run(self, code: str, timeout: float = TIMEOUT, **content: Any) -> Reply:
        return self.reply(self.submit(code, **content), timeout)

    def execute(self, code: str, **content: Any) -> Message:
        """Send a cell as any client does."""
        return self.send(self.shell, "execute_request", {"code": code, **content})

    def run_foreign(self, code: str, **content: Any) -> Message:
        return self.answer(self.shell, self.execute(code, **content))["content"]

    def ask(self, request: str, /, timeout: float = TIMEOUT, **content: Any) -> Message:
        """One of the server's control requests."""
        return self.answer(self.control, self.send(self.control, CONTROL_PREFIX + request, content), timeout)["content"]

    # -- what is published ---------------------------------------------------------------

    def take_published(self, timeout: float = 0.0) -> None:
        """Read IOPub until nothing comes for `timeout` seconds."""
        while self.iopub.poll(int(timeout * 1000)):
            frames = self.iopub.recv_multipart()
            topic = frames[0]
            _, signed = self.session.feed_identities(frames)
            message = self.session.deserialize(signed)
            if message["header"]["msg_type"] == EVENT_TYPE:
                assert topic == EVENT_TOPIC
                self.events.append(event_from_wire(message["content"]))
            else:
                self.published.append(message)

    def wait_event(self, kind: type[Event], timeout: float = TIMEOUT, **fields: Any) -> Any:
        """The first event of that kind with those fields, among those that came already or next."""
        until = time.monotonic() + timeout
        while True:
            for event in self.events:
                if isinstance(event, kind) and all(getattr(event, k) == v for k, v in fields.items()):
                    return event
            left = until - time.monotonic()
            assert left > 0, f"no {kind.__name__} with {fields}; there were {self.events}"
            if self.iopub.poll(int(left * 1000)):
                self.take_published()

    def wait_idle(self, request: Message) -> list[Message]:
        """Everything published for that request, up to its idle status."""
        until = time.monotonic() + TIMEOUT
        while True:
            own = [m for m in self.published if m["parent_header"].get("msg_id") == request["header"]["msg_id"]]
            if any(m["content"].get("execution_state") == "idle" for m in own):
                return own
            assert time.monotonic() < until, "no idle status came"
            self.iopub.poll(100)
            self.take_published()
