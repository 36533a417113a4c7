"""The server's requests on the control channel: one function for each (`protocol.CONTROL_REQUESTS`).

Owns their answers. Everything that may take time runs in a worker, so that the control
thread is free for the next request; an answer is sent from the control thread only. Only
the server is answered: any other client gets an error. Does not decide what runs (`executions.gate`)
nor deliver interrupts (`interrupts`). Called by `kernel`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from loommux_kernel.executions.gate import Execution
from loommux_kernel.executions.native_threads import Ending, NoThread, Workers
from loommux_kernel.preview.variables import variables
from loommux_kernel.running.held_loop import HeldLoop
from loommux_kernel.shared.protocol import CONTROL_PREFIX, CONTROL_REQUESTS, now

#: How long `flush` waits for the record; the server's own deadline is shorter.
FLUSH_SECONDS = 5.0
#: How long an interrupt's answer waits for the look at the cell's processes.
LOOK_SECONDS = 1.0
WORKERS = 4

Content = dict[str, Any]


class Kernel(Protocol):
    """What the requests need of the kernel."""

    lock: Any
    loop: Any
    gate: Any
    clients: Any
    capture: Any
    interrupts: Any
    itself: Any
    shell: Any
    watches: Any
    interrupted_by: Any

    def next_number(self) -> int: ...

    def leave(self) -> None: ...


class BadRequest(Exception):
    """The request cannot be answered; the message says why."""


class Control:
    """Answers the server's requests; runs on the control thread."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._workers = Workers(WORKERS)
        #: Of its own: reading what a cell holds locked may take long, and must not hold up the others.
        self._reader = Workers(1)
        self._listing: asyncio.Future[Content] | None = None
        self._loop: HeldLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: dict[str, Callable[[Content], Content | Awaitable[Content]]] = {
            name: getattr(self, name) for name in CONTROL_REQUESTS
        }

    def answer(self, kind: str, content: Content, *, server: bool, send: Callable[[Content], None]) -> None:
        """Answer one request of the type ``loommux_…``, now or when a worker is done."""
        try:
            if not server:
                raise BadRequest("only this kernel's server is answered")
            asked = self._asked.get(kind.removeprefix(CONTROL_PREFIX))
            if asked is None:
                raise BadRequest(f"unknown request {kind!r}; known are {', '.join(CONTROL_REQUESTS)}")
            answer = asked(content)
        except Exception as error:
            send(_failure(error))
            return
        if isinstance(answer, dict):
            send(answer)
            return
        task = asyncio.ensure_future(_answer_later(answer, send))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the requests -----------------------------------------------------------------

    def status(self, content: Content) -> Content | Awaitable[Content]:
        """At once; asked for the `holder`, it says what keeps an idle kernel from taking a cell."""
        facts = self._facts()
        if content.get("holder") and facts["serial"] is None:
            return self._with_holder(facts)
        return facts

    def _facts(self) -> Content:
        kernel = self._kernel
        with kernel.lock:
            running: Execution | None = kernel.gate.running
            last_serial = kernel.gate.last_serial
            felt = running is not None and kernel.interrupts.aim.hits > 0
        return {
            "pid": os.getpid(),
            "serial": running.serial if running else None,
            "number": running.number if running else None,
            "felt": felt,
            "taken": kernel.interrupts.taken,
            "obstacle": kernel.interrupts.obstacle() if running is not None and not felt else None,
            "sequence": kernel.capture.sequence,
            "last_serial": last_serial,
            "execution_count": kernel.next_number(),
            "clients": kernel.clients.to_wire(now()),
            "stream_bytes_pending": kernel.capture.pending,
            "watches": kernel.watches.to_wire(),
        }

    def interrupt(self, content: Content) -> Content | Awaitable[Content]:
        kernel = self._kernel
        with kernel.lock:
            running = kernel.gate.running
            meant = kernel.gate.find(serial=content.get("serial"), submission=content.get("submission"))
        if _unnamed(content) and meant is not None and meant.started_at > content.get("asked_at", meant.started_at):
            running = meant = None  # native code has held this request up, and what was meant is over
        if meant is None:
            return {"result": "idle" if running is None else "not_running", "serial": None, "number": None}
        if content.get("by"):
            kernel.interrupted_by = (meant.serial, str(content["by"]))
        pursuit = kernel.interrupts.interrupt(meant.serial)
        if pursuit is None:  # its code is over, its record not yet
            return {"result": "not_running", "serial": meant.serial, "number": meant.number}
        return self._in(self._workers, self._sent, meant, pursuit)

    def withdraw(self, content: Content) -> Content:
        with self._kernel.lock:
            withdrawal = self._kernel.gate.withdraw(str(content["submission"]))
        return {"result": withdrawal.result, "serial": withdrawal.serial, "number": withdrawal.number}

    def flush(self, content: Content) -> Awaitable[Content]:
        return self._in(self._workers, self._flushed)

    def told(self, content: Content) -> Content:
        for serial in content["serials"]:
            self._kernel.capture.told(int(serial))
        return {}

    def variables(self, content: Content) -> Awaitable[Content]:
        if self._listing is None or self._listing.done():
            shell = self._kernel.shell
            listed = self._in(self._reader, variables, shell.user_ns, shell.user_ns_hidden)
            self._listing = asyncio.ensure_future(listed)
        return self._listing

    def rename(self, content: Content) -> Content:
        self._kernel.itself.renamed(str(content["name"]))
        return {}

    def quit(self, content: Content) -> Content:
        self._kernel.leave()
        return {}

    async def _with_holder(self, facts: Content) -> Content:
        kernel = self._kernel
        if self._loop is None:
            self._loop = HeldLoop(kernel.loop, kernel.shell)
        before, holder = facts["last_serial"], await self._loop.holder()
        facts = self._facts()
        if facts["serial"] is None and facts["last_serial"] == before:  # no cell has run meanwhile
            facts["holder"] = holder
        return facts

    # -- in workers ---------------------------------------------------------------------

    def _sent(self, meant: Execution, pursuit: Any) -> Content:
        pursuit.begun.wait(LOOK_SECONDS)
        return {
            "result": "sent",
            "serial": meant.serial,
            "number": meant.number,
            "pending_children": [p.pid for p in pursuit.signalled],
            "left_children": list(pursuit.outside),
        }

    def _flushed(self) -> Content:
        self._kernel.capture.look_at_widgets()
        complete = self._kernel.capture.flush(FLUSH_SECONDS)
        return {"sequence": self._kernel.capture.sequence, "complete": complete}

    async def _in(self, workers: Workers, work: Callable[..., Content], *arguments: Any) -> Content:
        try:
            return await workers.run(work, *arguments)
        except NoThread:
            return work(*arguments)  # the cell has taken all the memory


def _unnamed(content: Content) -> bool:
    return content.get("serial") is None and content.get("submission") is None


async def _answer_later(answer: Awaitable[Content], send: Callable[[Content], None]) -> None:
    try:
        send(await answer)
    except Ending:  # its end is the answer, as when it is killed
        return
    except Exception as error:
        send(_failure(error))


def _failure(error: Exception) -> Content:
    return {"error": str(error) if isinstance(error, BadRequest) else f"{type(error).__name__}: {error}"}
