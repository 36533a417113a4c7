"""`GatedKernel`: what happens to an `execute_request`.

Owns the order of things around a cell: the gate admits it, the capture begins, IPython
runs it with interrupts let in only meanwhile, its end is recorded, and then the reply
leaves. How messages arrive is `running.message_intake`'s, how code is run `running.cell_runner`'s, the rules are
`executions.gate`'s, the record is `capture`'s. `app` makes the one instance.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import zmq
from traitlets import Type

from loommux_kernel import startup
from loommux_kernel.capture.execution_steps import Finished
from loommux_kernel.capture.notices import Notices
from loommux_kernel.executions.end_states import End, end_of, message_of
from loommux_kernel.executions.gate import Execution, Gate, Refusal, Request
from loommux_kernel.inside.loommux_object import Itself, Loommux
from loommux_kernel.inside.watches import Watches
from loommux_kernel.running.cell_input import CellInput
from loommux_kernel.running.cell_runner import ZMQInteractiveShell
from loommux_kernel.running.control_requests import Control
from loommux_kernel.running.foreign_clients import Clients
from loommux_kernel.running.interrupts import Interrupts
from loommux_kernel.running.message_intake import ListeningKernel, refused
from loommux_kernel.running.stray_failures import StrayFailures
from loommux_kernel.shared.header import without_order_mark
from loommux_kernel.shared.protocol import (
    METADATA_KEY,
    Counts,
    Origin,
    OriginKind,
    Reply,
    State,
    Submission,
    now,
)
from loommux_kernel.shared.records.start_note import claim
from loommux_kernel.shared.transport import DaemonError


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
        if not isinstance(content["code"], str):
            raise TypeError("code must be a string")
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


#: A submission that is as old may have been taken back; a server waits longer before it does that.
LATE_SECONDS = 1.0


class GatedKernel(ListeningKernel):
    """An IPython kernel that records what runs in it and is run by a server."""

    shell_class = Type(ZMQInteractiveShell)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        launch = self.parent.launch
        self.capture = self.parent.capture
        self._directory = Path(launch.records).parent
        self.lock = threading.Lock()
        self.gate = Gate()
        self.clients = Clients(launch.server_session)
        self.itself = Itself(launch.kernel_name, launch.kernel_id, launch.process)
        self.notices = Notices(self.capture.notice)
        self.interrupts = Interrupts(self.lock, lambda: self.shell.user_global_ns)
        self.cell_input = CellInput(self._is_self, self._runs_for_session, self._forward)
        self.watches = Watches(self)
        self.control = Control(self)
        #: The serial of the last execution that somebody other than its sender has interrupted, and who did.
        self.interrupted_by: tuple[int, str] | None = None
        self.context = copy_context()
        self.cell_input.install(self.shell)
        self.loommux = Loommux(self.itself, self.notices, self.watches)
        self.shell.prepare(self.interrupts, lambda: self.gate.running, self.loommux)
        self.capture.attach(self)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that cells run on."""
        return self.io_loop.asyncio_loop  # type: ignore[attr-defined]

    def start(self) -> None:
        """Begin to take messages, and to tell what fails on the loop between cells."""
        super().start()
        self.strays = StrayFailures(self.loop, self.capture.failed, lambda: self.interrupts.aim.armed)
        self.interrupts.stray = self.strays.of_handler

    # -- cells ----------------------------------------------------------------------

    async def execute_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Admit, run, record, reply."""
        server = self.clients.is_server(parent["header"])
        try:
            asked = Asked.of(parent, server=server)
        except (KeyError, TypeError, ValueError) as error:
            self._reply(stream, ident, parent, refused("BadRequest", f"{type(error).__name__}: {error}"), {})
            return
        self._leave_what_was_taken_back(asked.submission)
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
            content = await self.do_execute(asked.code, asked.silent, asked.store_history)
        else:
            try:
                content, reply = await self._recorded(admission, asked, parent)
            except Exception as error:  # a fault of ours: it must not keep later cells from running
                content, reply = self._failed(admission, error)
            if asked.submission is not None:
                metadata[METADATA_KEY] = reply.to_wire()
        if not server:
            metadata = self.finish_metadata(parent, metadata, content)
        self._reply(stream, ident, parent, content, metadata)
        if content["status"] == "error" and asked.stop_on_error and not (asked.silent or server):
            self._abort_queued(parent["header"]["session"])
        if admission is not None:
            self._remember_processes(admission)

    def _remember_processes(self, execution: Execution) -> None:
        """What it has left running is no later cell's; should that not be seen, it is older than those."""
        if self.capture.started_processes(execution.serial):
            with contextlib.suppress(OSError):
                self.interrupts.offspring.remember()

    def _leave_what_was_taken_back(self, submission: Submission | None) -> None:
        """A server that got no answer has said that its cell is not run, unless we are first."""
        if submission is None or now() - submission.submitted_at < LATE_SECONDS:
            return
        with contextlib.suppress(OSError):
            if not claim(self._directory, submission.id):
                with self.lock:
                    self.gate.withdraw(submission.id)

    def _request(self, asked: Asked, parent: dict[str, Any]) -> Request:
        blank = not without_order_mark(asked.code).strip()
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
        with self._aside(execution):
            self._begin(execution, parent, asked.submission.relay if asked.submission is not None else None)
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

    def _begin(self, execution: Execution, parent: dict[str, Any], relay: str | None = None) -> None:
        self.notices.begin(execution.serial, execution.number)
        self.capture.begin(execution, parent, relay)
        number = execution.number
        if number is None:
            return
        count = self.shell.execution_count
        if self.shell.take_number(number):
            self.notices.give(
                execution.serial,
                f"IPython's counter had been set back to {count}; numbering goes on at In [{number}]",
            )

    @contextlib.contextmanager
    def _aside(self, execution: Execution) -> Iterator[None]:
        """Our own work beside a cell: what goes wrong with it is told, and decides nothing about the cell."""
        try:
            yield
        except Exception as error:
            self.log.exception("beside execution %d", execution.serial)
            told = f"the kernel failed beside this cell, which went on: {type(error).__name__}: {message_of(error)}"
            with contextlib.suppress(Exception):
                self.notices.give(execution.serial, told)

    def _finish(self, execution: Execution) -> Reply:
        """Nothing of it runs any more: record how it ended, then let the next one in."""
        end = end_of(self.error, self.interrupts.aim.hits)
        self.error = None
        with self._aside(execution):
            self.interrupts.disarm()
        if end.state is State.INTERRUPTED and self.interrupts.unaimed:
            self.notices.give(execution.serial, "interrupted by a SIGINT that the server has not sent")
        if end.state is State.INTERRUPTED and execution.origin.kind is OriginKind.CLIENT:
            self._say_who_interrupted(execution)
        self.notices.end(execution.serial)
        completed_at = now()
        finished = Finished(recorded=False)
        with self._aside(execution):
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
            recorded=finished.recorded,
        )

    def _say_who_interrupted(self, execution: Execution) -> None:
        """To the person who sent the cell: a client shows no notices, but it shows stderr."""
        serial, by = self.interrupted_by or (None, "")
        if serial == execution.serial:
            self._stderr.write(f"Interrupted by {by}.\n")

    def _failed(self, execution: Execution, error: Exception) -> tuple[dict[str, Any], Reply]:
        """The kernel itself has failed around this cell: say so, and be ready for the next one."""
        self.log.error("execution %d could not be recorded", execution.serial, exc_info=error)
        self.interrupts.disarm()
        with self.lock:
            if self.gate.running is not None:
                self.gate.end(execution.serial, count=self.shell.execution_count)
        evalue = f"the kernel failed around this cell: {type(error).__name__}: {message_of(error)}"
        body = f"KernelFault: {evalue}\n"  # of what was recorded nothing is known
        reply = Reply(
            serial=execution.serial,
            number=execution.number,
            state=State.ERROR,
            started_at=execution.started_at,
            completed_at=now(),
            counts=Counts(body.count("\n"), len(body), len(body.encode())),
            ename="KernelFault",
            evalue=evalue,
            body=body,
            sequence=self.capture.sequence,
        )
        return refused("KernelFault", evalue), reply

    def _reply(
        self, stream: Any, ident: Any, parent: dict[str, Any], content: dict[str, Any], metadata: dict[str, Any]
    ) -> None:
        """Send it now, not when the loop comes round to it; what arrived meanwhile is taken then."""
        send = partial(self.session.send, stream.socket, "execute_reply", metadata=metadata, ident=ident)
        try:
            send(content, parent)
        except (TypeError, ValueError):  # code has put what is no JSON into it, and its sender waits
            self.log.exception("the reply was sent without its payload")
            send(content | {"payload": [], "user_expressions": {}}, parent)
        if stream.socket.get(zmq.EVENTS) & zmq.POLLIN:  # asking took the news away from the loop
            stream.flush(zmq.POLLIN)

    def next_number(self) -> int:
        """The number that the next counted cell gets."""
        return max(self.shell.execution_count, self.gate.highest + 1)

    def _runs_for_session(self) -> bool:
        running = self.gate.running
        return running is not None and running.origin.kind is OriginKind.SESSION

    # -- other kernels -------------------------------------------------------------------

    def _is_self(self, name: str) -> bool:
        """Whether a cell header names this kernel; the server is asked only about a path."""
        if not name.startswith("/"):
            return name in (self.itself.name, self.itself.id)
        try:
            return self.loommux.self == self.loommux[name]
        except DaemonError:  # told when the cell is forwarded
            return False

    def _forward(self, name: str, source: str) -> None:
        from loommux_kernel.inside.forwarding import Forwarding

        __tracebackhide__ = True
        Forwarding(self, self.loommux, name, source).run()

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
        self._remember_processes(execution)
        return End(reply.state, reply.ename, reply.evalue)

    def say_startup(self, text: str) -> None:
        with self.lock:
            serial = self.gate.last_serial
        self.notices.give(serial or None, text, label=startup.LABEL)


def _epoch(date: Any) -> float:
    """When a foreign client sent its message; now when it does not say, or its clock is ahead."""
    at = now()
    return min(date.timestamp(), at) if hasattr(date, "timestamp") else at
