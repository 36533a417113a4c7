"""`GatedKernel`: what happens to an `execute_request`, and to the other requests of clients.

Owns the order of things around a cell: the gate admits it, the capture begins, IPython
runs it with interrupts let in only meanwhile, its end is recorded, and then the reply
leaves. How code is run is `running`'s, the rules are `gate`'s, the record `capture`'s, the
server's requests `control`'s; how the process is set up is `app`'s, which makes the one instance.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import zmq
from traitlets import Type

from loommux_kernel import startup
from loommux_kernel.cell_input import CellInput
from loommux_kernel.clients import Clients
from loommux_kernel.control import Control
from loommux_kernel.ends import End, end_of
from loommux_kernel.extension import Itself, Loommux
from loommux_kernel.gate import Execution, Gate, Refusal, Request
from loommux_kernel.interrupts import Interrupts
from loommux_kernel.notices import Notices
from loommux_kernel.protocol import (
    CONTROL_PREFIX,
    METADATA_KEY,
    InputAwaited,
    Origin,
    Reply,
    State,
    Submission,
    now,
)
from loommux_kernel.running import KernelShell, RunningKernel

REFUSED_SHUTDOWN = (
    "this kernel belongs to a loommux server and is not ended by its clients. "
    "Close the client; to replace the process, use restart."
)


@dataclass(frozen=True)
class Asked:
    """What an `execute_request` asks for."""

    code: str
    silent: bool
    store_history: bool
    expressions: dict[str, str]
    allow_stdin: bool
    stop_on_error: bool
    submission: Submission | None

    @classmethod
    def of(cls, message: dict[str, Any], *, server: bool) -> Asked:
        content, metadata = message["content"], message["metadata"]
        silent = bool(content.get("silent", False))
        wire = metadata.get(METADATA_KEY) if server else None
        return cls(
            code=content["code"],
            silent=silent,
            store_history=bool(content.get("store_history", True)) and not silent,
            expressions=content.get("user_expressions") or {},
            allow_stdin=bool(content.get("allow_stdin", False)),
            stop_on_error=bool(content.get("stop_on_error", True)),
            submission=Submission.from_wire(wire) if wire else None,
        )


class GatedKernel(RunningKernel):
    """An IPython kernel that records what runs in it and is run by a server."""

    shell_class = Type(KernelShell)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        launch = self.parent.launch
        self.capture = self.parent.capture
        self.lock = threading.Lock()
        self.gate = Gate()
        self.clients = Clients(launch.server_session)
        self.itself = Itself(launch.kernel_name, launch.kernel_id, launch.process)
        self.notices = Notices(self.capture.notice)
        self.interrupts = Interrupts(self.lock, lambda: self.shell.user_global_ns)
        self.cell_input = CellInput(lambda name: name == self.itself.name)
        self.control = Control(self)
        self._skipping: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._context: Context = copy_context()
        self.cell_input.install(self.shell)
        self.shell.prepare(self.interrupts, lambda: self.gate.running, Loommux(self.itself, self.notices))
        self.capture.attach(self)

    # -- taking messages ------------------------------------------------------------

    def start(self) -> None:
        """Begin to take messages; without ipykernel's debugger and subshells."""
        self.shell.exit_now = False
        self.interrupts.install()
        self.start_base()
        self.shell_stream.on_recv(self._receive, copy=False)

    def stop(self) -> None:
        """Leave the loop when the running cell is done. Any thread may ask."""
        self.io_loop.add_callback(self.io_loop.stop)

    def spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        """Run on the kernel's loop, in the context that all cells share."""
        task = asyncio.get_running_loop().create_task(coroutine, context=self._context)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.log.error("a message was not handled", exc_info=task.exception())

    def _receive(self, frames: list[zmq.Frame]) -> None:
        self.spawn(self.shell_main(None, frames))

    def set_parent(self, ident: Any, parent: dict[str, Any], channel: str = "shell") -> None:
        super().set_parent(ident, parent, channel)
        if parent:
            self.clients.heard(parent["header"], now())

    def should_handle(self, stream: Any, msg: dict[str, Any], idents: Any) -> Any:
        """Not what a client had queued behind its own cell that failed, if it wants it so."""
        header = msg["header"]
        if header["msg_type"] == "execute_request" and header["session"] in self._skipping:
            self._send_abort_reply(stream, msg, idents)
            return False
        return True

    def _abort_queued(self, session: str) -> None:
        """Skip what this client has sent already; nobody else's cells."""
        self._skipping.add(session)
        self.shell_stream.flush(zmq.POLLIN)
        self.spawn(self._stop_aborting(session))

    async def _stop_aborting(self, session: str) -> None:
        async with self._main_asyncio_lock:  # first come, first served: behind what was queued
            self._skipping.discard(session)

    async def process_control(self, msg: list[Any]) -> None:
        """The server's own requests need neither ipykernel's lock nor its status messages."""
        idents, frames = self.session.feed_identities(msg, copy=False)
        try:
            kind = self.session.deserialize(frames, content=False, copy=False)["header"]["msg_type"]
        except Exception:
            self.log.exception("a control message could not be read")
            return
        if not kind.startswith(CONTROL_PREFIX):
            await super().process_control(msg)
            return
        message = self.session.deserialize(frames, copy=False)
        header = message["header"]
        self.clients.heard(header, now())
        send = partial(self._send_control, f"{kind}_reply", idents, message)
        self.control.answer(kind, message["content"], server=self.clients.is_server(header), send=send)

    def _send_control(self, kind: str, idents: Any, parent: dict[str, Any], content: dict[str, Any]) -> None:
        self.session.send(self.control_stream, kind, content, parent, ident=idents)

    # -- cells ----------------------------------------------------------------------

    async def execute_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Admit, run, record, reply."""
        server = self.clients.is_server(parent["header"])
        try:
            asked = Asked.of(parent, server=server)
        except (KeyError, TypeError, ValueError) as error:
            self._reply(stream, ident, parent, _refused("BadRequest", f"{type(error).__name__}: {error}"), {})
            return
        with self.lock:
            admission = self.gate.admit(self._request(asked, parent), count=self.shell.execution_count, at=now())
            if isinstance(admission, Execution):
                self.interrupts.arm(admission.serial)
        if isinstance(admission, Refusal):
            wire = {METADATA_KEY: Reply(refused=admission.reason).to_wire()}
            self._reply(stream, ident, parent, {"status": "aborted"}, wire)
            return
        metadata: dict[str, Any] = {} if server else self.init_metadata(parent)
        if admission is None:
            content = await self.do_execute(asked.code, asked.silent, asked.store_history, asked.expressions)
        else:
            content, reply = await self._recorded(admission, asked, parent)
            if asked.submission is not None:
                metadata[METADATA_KEY] = reply.to_wire()
        if not server:
            metadata = self.finish_metadata(parent, metadata, content)
        self._reply(stream, ident, parent, content, metadata)
        if content["status"] == "error" and asked.stop_on_error and not (asked.silent or server):
            self._abort_queued(parent["header"]["session"])
        if admission is not None and self.capture.started_processes(admission.serial):
            self.interrupts.offspring.remember()

    def _request(self, asked: Asked, parent: dict[str, Any]) -> Request:
        blank = not asked.code or asked.code.isspace()
        date = parent["header"].get("date")
        submission = asked.submission
        return Request(
            source=asked.code,
            origin=submission.origin if submission else self.clients.origin(parent["header"]),
            submitted_at=submission.submitted_at if submission else _epoch(date),
            submission=submission,
            counted=asked.store_history and not blank,
            recorded=not blank or bool(asked.expressions),
        )

    async def _recorded(
        self, execution: Execution, asked: Asked, parent: dict[str, Any]
    ) -> tuple[dict[str, Any], Reply]:
        self._begin(execution, parent)
        if not asked.silent:
            self._publish_execute_input(asked.code, parent, execution.number or self.shell.execution_count)
        self.cell_input.sent = asked.code
        try:
            content = await self.do_execute(
                asked.code,
                asked.silent,
                asked.store_history,
                asked.expressions,
                asked.allow_stdin,
                cell_meta=parent.get("metadata"),
                cell_id=parent.get("metadata", {}).get("cellId"),
            )
        finally:
            self.cell_input.sent = None
        return content, self._finish(execution)

    def _begin(self, execution: Execution, parent: dict[str, Any]) -> None:
        self.notices.begin(execution.serial, execution.number)
        self.capture.begin(execution, parent)
        number = execution.number
        if number is None:
            return
        count = self.shell.execution_count
        if self.shell.take_number(number):
            self.notices.give(
                execution.serial,
                f"IPython's counter had been set back to {count}; numbering goes on at In [{number}]",
            )

    def _finish(self, execution: Execution) -> Reply:
        """Nothing of it runs any more: record how it ended, then let the next one in."""
        end = end_of(self.error, self.interrupts.aim.hits)
        self.error = None
        self.interrupts.disarm()
        if end.state is State.INTERRUPTED and self.interrupts.unaimed:
            self.notices.give(execution.serial, "interrupted by a SIGINT from outside the server")
        self.notices.end(execution.serial)
        completed_at = now()
        finished = self.capture.finish(execution, end.state, end.ename, end.evalue, completed_at)
        with self.lock:
            self.gate.end(execution.serial, count=self.shell.execution_count)
        sys.stdout, sys.stderr = self._stdout, self._stderr  # ipykernel flushes what is there, next
        return Reply(
            serial=execution.serial,
            number=execution.number,
            state=end.state,
            started_at=execution.started_at,
            completed_at=completed_at,
            counts=finished.counts,
            ename=end.ename,
            evalue=end.evalue,
            body=finished.body,
            displays=finished.displays,
            sequence=self.capture.sequence,
        )

    def _reply(
        self, stream: Any, ident: Any, parent: dict[str, Any], content: dict[str, Any], metadata: dict[str, Any]
    ) -> None:
        """Send it now, not when the loop comes round to it; what arrived meanwhile is taken then."""
        self.session.send(stream.socket, "execute_reply", content, parent, metadata=metadata, ident=ident)
        if stream.socket.get(zmq.EVENTS) & zmq.POLLIN:  # asking took the news away from the loop
            stream.flush(zmq.POLLIN)

    def _publish_status(self, status: str, channel: str, parent: dict[str, Any] | None = None) -> None:
        """As ipykernel's, if there is anybody to hear it."""
        if self.iopub_thread.wants(self._topic("status")):
            super()._publish_status(status, channel, parent)

    def _publish_status_and_flush(self, status: str, channel: str, stream: Any, parent: Any = None) -> None:
        """As ipykernel's; the reply to a cell has been sent already."""
        self._publish_status(status, channel, parent)
        if stream is not None and stream.sending():
            stream.flush(zmq.POLLOUT)

    def _publish_execute_input(self, code: str, parent: dict[str, Any], execution_count: int) -> None:
        if self.iopub_thread.wants(self._topic("execute_input")):
            super()._publish_execute_input(code, parent, execution_count)

    def next_number(self) -> int:
        """The number that the next counted cell gets."""
        return max(self.shell.execution_count, self.gate.highest + 1)

    # -- startup files -----------------------------------------------------------------

    async def run_startup_files(self, directory: Path, limit_seconds: float) -> None:
        """Run them before any cell that has arrived meanwhile."""
        async with self._main_asyncio_lock:
            await startup.run_all(directory, self, limit_seconds)

    async def run_startup(self, path: Path, source: str, origin: Origin, limit: startup.Limit) -> End:
        request = Request(source, origin, now(), counted=False)
        with self.lock:
            execution = self.gate.admit(request, count=self.shell.execution_count, at=now())
            assert isinstance(execution, Execution)
            self.interrupts.arm(execution.serial)
        self._begin(execution, {})
        overdue = limit.on(lambda: self.interrupts.interrupt(execution.serial))
        with overdue, startup.as_script(path, self.shell.user_ns):
            self.error = await self.run_file(path, source)
        reply = self._finish(execution)
        if self.capture.started_processes(execution.serial):
            self.interrupts.offspring.remember()
        return End(reply.state, reply.ename, reply.evalue)

    def say_startup(self, text: str) -> None:
        with self.lock:
            serial = self.gate.last_serial
        self.notices.give(serial or None, text, label=startup.LABEL)

    # -- other requests of clients --------------------------------------------------------

    async def interrupt_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """A client's own interrupt reaches whatever runs; the record says who it was."""
        with self.lock:
            running = self.gate.running
        if running is not None and self.interrupts.interrupt(running.serial) is not None:
            header = parent["header"]
            if not self.clients.is_server(header):
                self.notices.give(running.serial, f"interrupted by {self.clients.origin(header).label}")
        self.session.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    async def shutdown_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Only the server ends this process."""
        content: dict[str, Any] = {"status": "ok"}
        server = self.clients.is_server(parent["header"])
        if not server:
            content = _refused("ShutdownRefused", REFUSED_SHUTDOWN)
        content["restart"] = bool(parent["content"].get("restart", False))
        self.session.send(stream, "shutdown_reply", content, parent, ident=ident)
        if server:
            self.stop()

    async def do_debug_request(self, msg: dict[str, Any]) -> dict[str, Any]:
        """There is no debugger here; a client that asks anyway is told so."""
        return {
            "type": "response",
            "request_seq": msg.get("seq", 0),
            "success": False,
            "command": msg.get("command", ""),
            "message": "this kernel has no debugger",
        }

    def _input_request(self, prompt: Any, ident: Any, parent: Any, password: bool = False) -> str:
        running = self.gate.running
        tell = partial(
            self.capture.event,
            InputAwaited,
            serial=running.serial if running else 0,
            number=running.number if running else None,
        )
        tell(waiting=True)
        try:
            return super()._input_request(prompt, ident, parent, password)
        finally:
            tell(waiting=False)


def _refused(ename: str, evalue: str) -> dict[str, Any]:
    return {"status": "error", "ename": ename, "evalue": evalue, "traceback": []}


def _epoch(date: Any) -> float:
    """When a foreign client sent its message; now when it does not say, or its clock is ahead."""
    at = now()
    return min(date.timestamp(), at) if hasattr(date, "timestamp") else at
