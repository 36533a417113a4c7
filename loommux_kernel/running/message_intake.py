"""How messages reach the kernel: taken in turn, heard from whom, answered or refused.

Owns what happens to a message before and after its own work, whose turn is skipped, what
is published of it, and the requests that are no cells. Cells are `kernel`'s, the server's
requests `control_requests`'s. `kernel.GatedKernel` builds on it.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import Context
from functools import partial
from typing import Any, NoReturn

import zmq

from loommux_kernel.capture.notices import Notices
from loommux_kernel.executions.gate import Gate
from loommux_kernel.inside.loommux_object import Itself
from loommux_kernel.running import client_history
from loommux_kernel.running.cell_runner import RunningKernel
from loommux_kernel.running.control_requests import Control
from loommux_kernel.running.disabled_functions import NO_EXIT
from loommux_kernel.running.foreign_clients import Clients
from loommux_kernel.shared.protocol import CONTROL_PREFIX, METADATA_KEY, InputAwaited, now

REFUSED_SHUTDOWN = (
    "this kernel belongs to a loommux server and is not ended by its clients. "
    "Close the client; to replace the process, use restart."
)


class ListeningKernel(RunningKernel):
    """Takes messages."""

    gate: Gate
    #: Guards the gate and the aim of interrupts, which other threads ask for.
    lock: threading.Lock
    clients: Clients
    control: Control
    notices: Notices
    itself: Itself
    capture: Any
    #: Whether the server has asked for the process's end; nothing else ends its loop.
    stopping = False
    #: The context that all cells share.
    context: Context

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        #: What is interrupted while no execution runs (completions, callbacks of widgets): -1, -2, …
        self._between = 0
        self._skipping: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- taking messages ------------------------------------------------------------

    def start(self) -> None:
        """Begin to take messages; without ipykernel's debugger and subshells."""
        self.shell.exit_now = False
        self.take_input()
        self.interrupts.install()
        self.start_base()
        self.shell_stream.on_recv(self._receive, copy=False)

    def leave(self) -> None:
        """Leave the loop when the running cell is done. Any thread may ask, for the server."""
        self.stopping = True
        self.io_loop.add_callback(self.io_loop.stop)

    def stop(self) -> NoReturn:
        """Refused: code would end the process that the server has for it, and think that another one comes."""
        raise SystemExit(NO_EXIT)

    def do_shutdown(self, restart: bool) -> NoReturn:  # type: ignore[override]
        """Refused, as `stop`: it is ipykernel's way for code to end or restart its kernel."""
        self.stop()

    def spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        """Run on the kernel's loop, in the context that all cells share; no task factory of a cell's has a say."""
        task = asyncio.Task(coroutine, loop=asyncio.get_running_loop(), context=self.context)
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
            self.clients.heard(parent["header"], now(), ident)

    def should_handle(self, stream: Any, msg: dict[str, Any], idents: Any) -> Any:
        """Not what a client had queued behind its own cell that failed, if it wants it so."""
        header = msg["header"]
        if header["msg_type"] != "execute_request":
            if self.gate.running is None:  # else a message for a widget of the running cell
                with self.lock:
                    self._between -= 1
                    self.interrupts.arm(self._between)
        elif header["session"] in self._skipping:
            self._send_abort_reply(stream, msg, idents)
            return False
        return True

    def post_handler_hook(self) -> None:
        """Completions, inspections and callbacks of widgets can be interrupted, until they are done."""
        if self.interrupts.aim.armed == self._between:
            self.interrupts.disarm()

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
        self.clients.heard(header, now(), idents)
        send = partial(self._send_control, f"{kind}_reply", idents, message)
        self.control.answer(kind, message["content"], server=self.clients.is_server(header), send=send)

    def _send_control(self, kind: str, idents: Any, parent: dict[str, Any], content: dict[str, Any]) -> None:
        self.session.send(self.control_stream, kind, content, parent, ident=idents)

    # -- what is published ----------------------------------------------------------

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

    # -- other requests of clients --------------------------------------------------------

    async def interrupt_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """A client's own interrupt reaches whatever runs; the record says who it was."""
        with self.lock:
            running = self.gate.running
        pursuit = self.interrupts.interrupt(running.serial if running is not None else self._between)
        header = parent["header"]
        if running is not None and pursuit is not None and not self.clients.is_server(header):
            self.notices.give(running.serial, f"interrupted by {self.clients.origin(header).label}")
        self.session.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    @property
    def kernel_info(self) -> dict[str, Any]:
        """As ipykernel's, and which kernel this is: `loommux attach` and the proxy find it by that."""
        itself = self.itself
        return super().kernel_info | {METADATA_KEY: {"name": itself.name, "id": itself.id, "process": itself.process}}

    def do_history(
        self,
        hist_access_type: str,
        output: bool,
        raw: bool,
        session: int = 0,
        start: int | None = 0,
        stop: int | None = None,
        n: int | None = None,
        pattern: str | None = None,
        unique: bool = False,
    ) -> dict[str, Any]:
        """From memory: there is no history file."""
        history = self.shell.history_manager
        inputs = history.input_hist_raw if raw else history.input_hist_parsed
        request = {"start": start, "stop": stop, "n": n, "pattern": pattern, "unique": unique}
        found = client_history.asked(inputs, hist_access_type, request)
        return {"status": "ok", "history": client_history.as_sent(history.session_number, found, output=output)}

    async def shutdown_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Only the server ends this process."""
        content: dict[str, Any] = {"status": "ok"}
        server = self.clients.is_server(parent["header"])
        if not server:
            content = refused("ShutdownRefused", REFUSED_SHUTDOWN)
        content["restart"] = bool(parent["content"].get("restart", False))
        self.session.send(stream, "shutdown_reply", content, parent, ident=ident)
        if server:
            self.leave()

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
            answer = super()._input_request(prompt, ident, parent, password)
            self.clients.heard(parent["header"], now(), ident)
            return answer
        finally:
            tell(waiting=False)


def refused(ename: str, evalue: str) -> dict[str, Any]:
    return {"status": "error", "ename": ename, "evalue": evalue, "traceback": []}
