"""Everything that becomes output passes here; the one module that touches ipykernel's private names.

Owns the seams: the session that hands IOPub messages to the ordered queue instead
of sending them, the IOPub thread that drains it, where the streams are put, and
which of ipykernel's variables threads must carry.

`Output` has the rest: what becomes of output between a cell's begin and its
finish. It does not decide what runs (`executions.gate`, `kernel`) nor what a record holds
(`drain`, `messages`). `app` installs it, `kernel` calls begin and finish,
`running.control_requests` and `notices` say things through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from hmac import compare_digest
from pathlib import Path
from typing import Any

import zmq
from ipykernel import kernelapp
from ipykernel.iostream import BackgroundSocket, IOPubThread
from jupyter_client.session import DONE
from traitlets import Any as AnyTrait
from zmq.eventloop.zmqstream import ZMQStream

from loommux_kernel.capture.drain import REMEMBERED, Recorder
from loommux_kernel.capture.execution_steps import Finished
from loommux_kernel.capture.failed_tasks import TaskWatch
from loommux_kernel.capture.message_packing import QuickSession
from loommux_kernel.capture.messages import RECORDED, Messages
from loommux_kernel.capture.output import Output
from loommux_kernel.capture.queue import PENDING_BYTES
from loommux_kernel.capture.streams import OrderedStream
from loommux_kernel.capture.widget_text import Views
from loommux_kernel.executions import contexts
from loommux_kernel.executions.contexts import current_execution
from loommux_kernel.executions.end_states import message_of, safe_text
from loommux_kernel.executions.gate import Execution
from loommux_kernel.shared.clock import monotonic
from loommux_kernel.shared.protocol import EVENT_TOPIC, EVENT_TYPE, Event, Stream
from loommux_kernel.shared.records.relay import RelayedWriter

__all__ = ["Capture", "Finished", "current_execution"]

_STREAM_TOPICS = {Stream.STDOUT: b"stream.stdout", Stream.STDERR: b"stream.stderr"}
#: What a subscription to everything is taken as: clients know nothing of our events, and some choke on them.
_ALL_BUT_EVENTS = [bytes([first]) for first in range(256) if first != EVENT_TOPIC[0]]

#: The socket for what forked children display.
CHILDREN = "p"
#: How long a forked child may take to hand over what it displayed.
PIPE_LINGER_MILLISECONDS = 3000


class TappedSession(QuickSession):
    """A session whose IOPub messages go into the ordered queue."""

    capture = AnyTrait(None, allow_none=True)

    def send(  # type: ignore[override]
        self, stream, msg_or_type, content=None, parent=None, ident=None, buffers=None, track=False,
        header=None, metadata=None,
    ):  # fmt: skip
        """As ipykernel's; what is meant for IOPub is put in its place among the texts."""
        capture = self.capture
        if capture is None or capture.forked or not isinstance(stream, BackgroundSocket | IOPubThread):
            return super().send(stream, msg_or_type, content, parent, ident, buffers, track, header, metadata)
        if isinstance(msg_or_type, dict):
            msg = msg_or_type
            buffers = buffers or msg.get("buffers")
        else:
            msg = self.msg(msg_or_type, content, parent, header, metadata)
        capture.message(msg, ident, buffers or [])
        msg["tracker"] = DONE
        return msg


class TappedIOPubThread(IOPubThread):
    """The IOPub thread: drains the queue, knows who subscribed to what."""

    def __init__(self, socket: Any, pipe: bool = False, session: Any = False) -> None:
        socket.setsockopt(zmq.XPUB_MANUAL, 1)
        self._capture: Capture = session.capture
        super().__init__(socket, pipe=pipe and hasattr(os, "fork"), session=session)
        #: What is subscribed to, and how often.
        self._prefixes: Counter[bytes] = Counter()
        self._wanted: dict[bytes, bool] = {}

    def start(self) -> None:
        loop = self.io_loop.asyncio_loop  # type: ignore[attr-defined]
        loop.time = monotonic  # of cells the clocks may stand still
        super().start()
        loop.call_soon_threadsafe(self._capture.start, self, loop)

    def _handle_subscription(self, frames: list[bytes]) -> None:
        for frame in frames:
            subscribes, topic = frame[:1] == b"\x01", bytes(frame[1:])
            for prefix in [topic] if topic else _ALL_BUT_EVENTS:
                self.socket.setsockopt(zmq.SUBSCRIBE if subscribes else zmq.UNSUBSCRIBE, prefix)  # type: ignore[union-attr]
            self._prefixes[topic] += 1 if subscribes else -1
        self._prefixes = +self._prefixes
        self._wanted = {}
        super()._handle_subscription(frames)

    # What forked children show. ipykernel's pipe for it is a TCP port, which every account of the machine can reach.

    def _setup_pipe_in(self) -> None:
        self._pipe_uuid = os.urandom(16)
        pipe = self.socket.context.socket(zmq.PULL)  # type: ignore[union-attr]
        pipe.linger = 0
        try:
            pipe.bind(self._capture.children_endpoint)
        except zmq.ZMQError as error:
            logging.getLogger("loommux_kernel").warning("what forked children display is lost: %s", error)
            self._pipe_flag = False
            pipe.close()
            return
        self._pipe_in = ZMQStream(pipe, self.io_loop)
        self._pipe_in.on_recv(self._handle_pipe_msg)

    def _handle_pipe_msg(self, msg: list[bytes]) -> None:
        """As ipykernel's; what is not a child's own is logged, and gets into no record."""
        if compare_digest(msg[0], self._pipe_uuid):
            super()._handle_pipe_msg(msg)
        else:
            logging.getLogger("loommux_kernel").warning("a message on the pipe of forked children was not theirs")

    def _setup_pipe_out(self) -> tuple[Any, Any]:
        context = zmq.Context()
        pipe = context.socket(zmq.PUSH)
        pipe.linger = PIPE_LINGER_MILLISECONDS
        pipe.connect(self._capture.children_endpoint)
        return context, pipe

    def send_multipart(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Messages that were packed elsewhere: by other libraries, by forked children."""
        if self._capture.forked:
            super().send_multipart(msg, *args, **kwargs)
        else:
            self._capture.packed(list(msg))

    def wants(self, topic: bytes) -> bool:
        """Whether anybody has subscribed to that topic. Any thread may ask."""
        known = self._wanted.get(topic)
        if known is None:
            prefixes = list(self._prefixes)
            known = self._wanted[topic] = any(topic.startswith(p) for p in prefixes if p or topic != EVENT_TOPIC)
        return known

    # The recorder's `Publisher`, on this thread.

    def wants_stream(self, stream: Stream) -> bool:
        return self.wants(_STREAM_TOPICS[stream])

    def stream(self, parent: dict[str, Any], stream: Stream, text: str) -> None:
        text = safe_text(text)
        message = self.session.msg("stream", {"name": str(stream), "text": text}, parent=parent)  # type: ignore[attr-defined]
        self.frames(self.session.serialize(message, ident=_STREAM_TOPICS[stream]))  # type: ignore[attr-defined]

    def event(self, event: Event) -> None:
        if self.wants(EVENT_TOPIC):
            message = self.session.msg(EVENT_TYPE, event.to_wire())  # type: ignore[attr-defined]
            self.frames(self.session.serialize(message, ident=EVENT_TOPIC))  # type: ignore[attr-defined]

    def frames(self, frames: list[Any]) -> None:
        if not self.closed:
            with contextlib.suppress(zmq.ZMQError, AttributeError):  # closed meanwhile: the process ends
                self.socket.send_multipart(frames, copy=True)  # type: ignore[union-attr]

    def sent(self) -> None:
        """Take in subscriptions: a send swallows the signal by which ZeroMQ would tell of one."""
        with contextlib.suppress(zmq.ZMQError, AttributeError):
            if self.socket.get(zmq.EVENTS) & zmq.POLLIN:  # type: ignore[union-attr]
                self._xpub_stream.flush(zmq.POLLIN)


class Capture(Output):
    """The seams of one kernel process. See the module."""

    def __init__(
        self,
        open_writer: Callable[[Callable[[str], None]], RelayedWriter],
        descriptors: Path,
        log: int | None = None,
    ) -> None:
        super().__init__(open_writer, descriptors, log)
        #: Where forked children send what they display: a socket in the process's private directory.
        self.children_endpoint = f"ipc://{descriptors.parent / CHILDREN}"
        self._messages = Messages()
        self._views = Views(self._show_view)
        self._iopub: TappedIOPubThread | None = None
        self._session: Any = None
        self._shell: Any = None
        #: Executions by the id of their request, the last `REMEMBERED` of them.
        self._serials: OrderedDict[str, int] = OrderedDict()
        self._uninstall: Callable[[], None] | None = None

    def install(self, app: Any) -> None:
        """Take the app's seams; before it initialises."""
        self._session = app.session = TappedSession(parent=app, capture=self)
        app.outstream_class = f"{__name__}.stream_for"
        app.capture_fd_output = False
        app.quiet = True
        kernelapp.IOPubThread = TappedIOPubThread  # type: ignore[misc]

    def attach(self, kernel: Any) -> None:
        """Take the kernel's seams; when it and its shell exist."""
        self._shell = shell = kernel.shell
        shell.capture = self
        self._uninstall = contexts.install()
        contexts.carry(
            kernel._shell_parent, kernel._shell_parent_ident, shell._parent_header,
            shell.displayhook._parent_header, shell.display_pub._parent_header,
        )  # fmt: skip

    def start(self, publisher: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._iopub = publisher
        super().start(publisher, loop)

    def close(self) -> None:
        super().close()
        if self._uninstall is not None:
            self._uninstall()
        if self.task_watch is not None:
            self.task_watch.stop()

    def begin(self, execution: Execution, parent: dict[str, Any], relay: str | None = None) -> None:
        if self.task_watch is None:
            with contextlib.suppress(RuntimeError):  # startup files run before the loop
                self.task_watch = TaskWatch(asyncio.get_running_loop(), self._loop, self._task_failed)
        msg_id = parent.get("header", {}).get("msg_id")
        if msg_id is not None:
            self._serials[msg_id] = execution.serial
            while len(self._serials) > REMEMBERED:
                self._serials.popitem(last=False)
        super().begin(execution, parent, relay)

    def settle_widgets(self) -> None:
        """The cell's code has run: what its widgets show now stays. May run the user's code."""
        self._views.ended(current_execution.get(self._queue.latest))

    def look_at_widgets(self) -> None:
        """Somebody is about to read: record what widgets show now."""
        self._views.look()

    def message(self, msg: dict[str, Any], ident: Any, buffers: list[Any]) -> None:
        """A message for IOPub, in the thread and context that sends it."""
        kind = msg["header"]["msg_type"]
        topic = (ident[0] if isinstance(ident, list) else ident) or b""
        frames = None
        if self._iopub is None or self._iopub.wants(topic):
            frames = [*self._session.serialize(msg, ident), *(bytes(memoryview(b)) for b in buffers)]
        elif kind not in RECORDED:
            return
        serial = current_execution.get(None) or self._serial_of(msg["parent_header"])
        held = sum(map(len, frames)) if frames else _weight(msg["content"])
        record = partial(self._record, serial, kind, _kept(msg["content"]), frames)
        with self._queue.lock:
            if kind in RECORDED:
                self._descriptors.mark()
            self._queue.put(record, size=held, held=held)
        if frames is not None:
            self._queue.hurry()
        elif self._queue.asleep:
            self._queue.rouse()
        if self._queue.pending > PENDING_BYTES:
            self._queue.wait_for_room()
        self._views.sent(serial, kind, msg["content"])

    def packed(self, frames: list[Any]) -> None:
        """A message for IOPub that comes packed."""
        self._queue.put(partial(self._record_packed, frames), size=sum(map(len, frames)))
        self._queue.hurry()

    def _record(
        self, serial: int, kind: str, content: dict[str, Any], frames: list[Any] | None, recorder: Recorder
    ) -> None:
        self._messages.record(recorder, serial, kind, content)
        if frames is not None:
            recorder.publish(frames)

    def _record_packed(self, frames: list[Any], recorder: Recorder) -> None:
        recorder.publish(frames)
        _, parts = self._session.feed_identities(frames)
        msg = self._session.deserialize(parts)
        serial = self._serial_of(msg["parent_header"])
        self._messages.record(recorder, serial, msg["header"]["msg_type"], msg["content"])

    def _show_view(self, serial: int, model: str, text: str, last: bool) -> None:
        self._queue.put(lambda recorder: self._messages.view(recorder, serial, model, text, last))
        if self._queue.asleep:
            self._queue.rouse()

    def _serial_of(self, parent: dict[str, Any]) -> int:
        return self._serials.get(parent.get("msg_id", ""), self._queue.latest)

    def _task_failed(self, serial: int, error: BaseException, name: str) -> None:
        self.failed(serial, error, f"the task {name} failed after the cell ended")

    def failed(self, serial: int | None, error: BaseException, what: str) -> None:
        """Record and tell a failure that is no cell's end; None: of whoever ran last. Main thread."""
        text, shown = self._shell.rendered(error)
        message = (message_of(error).splitlines() or [""])[0]
        why = f"{type(error).__name__}: {message}" if message else type(error).__name__
        self.traceback(self.latest if serial is None else serial, text, shown, f"{what}: {why}")

    def after_fork_in_child(self) -> None:
        super().after_fork_in_child()
        if self._session is not None:
            self._session.pid = os.getpid()  # what it sends goes through ipykernel's pipe to the parent

    def open_streams(self, stderr: Any) -> None:
        """Put the streams in place; loggers that wrote to the old `stderr` go on to the process's own log."""
        self.open()
        loggers = [logging.root, *map(logging.getLogger, list(logging.root.manager.loggerDict))]
        handlers = [h for one in loggers for h in one.handlers if isinstance(h, logging.StreamHandler)]
        if moved := [handler for handler in handlers if handler.stream is stderr]:
            log = os.fdopen(os.dup(self._descriptors.original(2)), "w", errors="backslashreplace", buffering=1)
            for handler in moved:
                handler.setStream(log)


def stream_for(session: TappedSession, _iopub: Any, name: str, **_options: Any) -> OrderedStream:
    """The app's factory for `sys.stdout` and `sys.stderr`."""
    capture: Capture = session.capture
    if name == "stdout":
        capture.open_streams(sys.stderr)
    standard = capture.open()
    return standard.stdout if name == "stdout" else standard.stderr


def _kept(content: dict[str, Any]) -> dict[str, Any]:
    """The content as it is now: a cell may change a bundle as soon as it is displayed."""
    return {name: dict(value) if isinstance(value, dict) else value for name, value in content.items()}


def _weight(content: dict[str, Any]) -> int:
    """About how much memory an unpacked message holds."""
    data = content.get("data")
    return sum(len(v) for v in data.values() if isinstance(v, str | bytes)) if isinstance(data, dict) else 0
