"""The life of output in one kernel process: begin, what is said meanwhile, finish.

Owns the ordered queue with the streams and descriptor files before it and the
recorder behind it, and what a fork does to them. Knows no ipykernel: `capture`
extends it with the seams to that.

All methods may be called from any thread unless they say otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from loommux_kernel.capture import fork_hooks, libc
from loommux_kernel.capture.descriptors import Descriptors
from loommux_kernel.capture.drain import REMEMBERED, Publisher, Recorder, writer_to
from loommux_kernel.capture.execution_steps import Finished, begin, end, label_of
from loommux_kernel.capture.failed_tasks import TaskWatch
from loommux_kernel.capture.queue import PENDING_BYTES, STALL_SECONDS, OrderedQueue
from loommux_kernel.capture.streams import OrderedStream, Standard
from loommux_kernel.executions.contexts import current_execution
from loommux_kernel.executions.gate import Execution
from loommux_kernel.executions.native_threads import Flag, get_ident
from loommux_kernel.shared.clock import monotonic
from loommux_kernel.shared.protocol import (
    Event,
    OriginKind,
    State,
    Stream,
    now,
)
from loommux_kernel.shared.records import unrecorded_text
from loommux_kernel.shared.records.relay import RelayedWriter
from loommux_kernel.shared.records.start_note import Starting
from loommux_kernel.shared.reserve import HELD

#: Seconds between two looks at what native code and children wrote.
WATCH_INTERVAL = 0.025
#: What is told of a cell that took away where later cells write to.
RESTORED = "{}; put back for later cells"
#: What is told of a cell's end at which the files behind fd 1 and 2 could not be looked at.
UNREAD = "what was written to fd 1 and 2 could not be read ({})"


class Output:
    """See the module. `log` is a descriptor for what belongs to no execution."""

    def __init__(
        self,
        open_writer: Callable[[Callable[[str], None]], RelayedWriter],
        descriptors: Path,
        log: int | None = None,
    ) -> None:
        self._queue = OrderedQueue()
        self._descriptors = Descriptors(descriptors, self._queue)
        self._starting = Starting(descriptors.parent)
        self._unrecorded = descriptors.parent / unrecorded_text.FILE
        self._open_writer = open_writer
        self._log = log
        self._recorder: Recorder | None = None
        self._standard: Standard | None = None
        self._running: Execution | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching = self._polling = False
        #: Set by `capture`, which knows the loop.
        self.task_watch: TaskWatch | None = None
        #: Executions that started a process, the last `REMEMBERED` of them.
        self._started: OrderedDict[int, None] = OrderedDict()
        #: This process is a forked child: nothing here acts any more.
        self.forked = False

    # -- put in place ------------------------------------------------------------------

    def open(self) -> Standard:
        """Put the streams in place and files behind fd 1 and 2. Main thread."""
        if self._standard is None:
            self._descriptors.open()
            HELD.fill()
            with contextlib.suppress(OSError):  # no room: a death may then take what was printed last with it
                self._queue.unrecorded = unrecorded_text.Unrecorded(self._unrecorded)
            made = [
                OrderedStream(stream, fd, self._queue, self._descriptors, self.flush)
                for fd, stream in ((1, Stream.STDOUT), (2, Stream.STDERR))
            ]
            self._standard = Standard(*made)
            self._standard.restore()
            fork_hooks.listen(self._process_started, self, self._descriptors.targets)
            if self._loop is not None:  # started before there was anything to watch
                self._loop.call_soon_threadsafe(self._watch, self._loop)
        return self._standard

    def start(self, publisher: Publisher, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to drain on this thread, whose loop this is."""
        self._loop = loop
        self._recorder = Recorder(self._queue, self._open_writer, publisher, writer_to(self._log))
        self._recorder.start(loop)
        self._watch(loop)

    def close(self) -> None:
        """Record what is left, close the store, give streams and descriptors back. Main thread."""
        if self.forked or self._standard is None:
            return
        libc.flush_stdout()
        self._descriptors.mark()
        self._wait_for(lambda recorder, done: recorder.close(done), STALL_SECONDS)
        fork_hooks.forget()
        self._standard.remove()
        self._descriptors.close()
        self._starting.close()
        self._queue.unrecorded = None

    # -- an execution's life: main thread, in the execution's context -----------------------

    def begin(self, execution: Execution, parent: dict[str, Any], relay: str | None = None) -> None:
        """From here on output belongs to this execution; `parent` is its request, `relay` a file that has it too."""
        if self.forked:
            return
        self.open().restore()
        with self._queue.lock:
            self._queue.put(partial(begin, execution, parent.get("header", {}), relay))
            self._queue.latest = execution.serial
            fault = self._descriptors.begin(execution.serial)
        if fault is not None:
            self.notice(execution.serial, execution.number, label_of(execution), fault)
        self._starting.note(execution, self._descriptors.places())
        self._running = execution
        current_execution.set(execution.serial)
        if self.task_watch is not None:
            self.task_watch.began(execution.serial)
        self._poll_if_needed()
        self._queue.rouse()

    def finish(
        self, execution: Execution, state: State, ename: str | None, evalue: str | None, completed_at: float
    ) -> Finished:
        """Bring all of its output into the record and end it there; returns when that is committed.

        A `Finished` that is not `recorded` means that the record store has not moved for
        `STALL_SECONDS`; the end is recorded when it moves again.
        """
        if self.forked:
            return Finished()
        try:
            libc.flush_stdout()
            restored = self.open().restore() + self._descriptors.restore()
            said = RESTORED.format(", ".join(restored)) if restored else None
            self._descriptors.end()
        except Exception as error:  # its end is recorded whatever becomes of its output
            said = UNREAD.format(error)
        if said is not None:
            self.notice(execution.serial, execution.number, label_of(execution), said)
        found: list[Finished] = []
        self._running = None
        committed = self._wait_for(partial(end, execution, (state, ename, evalue), completed_at, found), STALL_SECONDS)
        if self.task_watch is not None:
            self.task_watch.ended()
        return replace(found[0], recorded=committed) if found else Finished(recorded=False)

    @property
    def running(self) -> Execution | None:
        """The execution between its begin and its finish."""
        return self._running

    @property
    def latest(self) -> int:
        """Whose output is that of threads that belong to nobody: the last execution's that began; 0 before any."""
        return self._queue.latest

    @property
    def foreign(self) -> bool:
        """Whether the running cell is a foreign client's, which answers its own stdin."""
        return self._running is not None and self._running.origin.kind is OriginKind.CLIENT

    def put(self, act: Callable[[Recorder], None], size: int) -> None:
        """Put a step of about `size` bytes in its place between the texts; held back as whoever writes."""
        if self.forked:
            return
        self._queue.put(act, size=size, held=size)
        if self._queue.asleep:
            self._queue.rouse()
        if self._queue.pending > PENDING_BYTES:
            self._queue.wait_for_room()

    # -- said in between ---------------------------------------------------------------------

    def flush(self, timeout: float) -> bool:
        """Bring everything written before into the record; False when that took too long."""
        if self.forked or self._recorder is None or get_ident() == self._queue.drainer:
            return False
        self._descriptors.mark()
        return self._wait_for(lambda recorder, done: recorder.after_commit(done), timeout, patient=False)

    def notice(self, serial: int | None, number: int | None, label: str, text: str) -> None:
        """Record a notice and tell it."""
        self._say(lambda recorder: recorder.notice(serial, number, label, text, now()))

    def event(self, kind: type[Event], **fields: Any) -> None:
        """Send an event; its sequence and time are given when its turn comes."""
        self._say(lambda recorder: recorder.tell(kind, **fields))

    def told(self, serial: int) -> None:
        """A caller knows of that execution's end."""
        self._say(lambda recorder: recorder.writer and recorder.writer.mark_told(serial))

    def text_for_record(self, text: str) -> None:
        """Record text as printed that a client has been shown in another way."""
        serial = current_execution.get(self._queue.latest)
        self._say(lambda recorder: recorder.writer and recorder.writer.text(serial, Stream.STDOUT, text))

    def written(self) -> list[int]:
        """How much was written to fd 1 and 2, to be asked `at_line_start` about."""
        return self._descriptors.sizes()

    def at_line_start(self, since: list[int]) -> bool:
        """Whether what was written to fd 1 and 2 since then ends a line."""
        return self._descriptors.at_line_start(since)

    def traceback(self, serial: int, text: str, shown: str | None, notice: str) -> None:
        """Record the traceback of work that failed after its cell ended, and tell of it."""

        def act(recorder: Recorder) -> None:
            number = recorder.known(serial).number
            if recorder.writer is not None:
                recorder.writer.traceback(serial, text, shown)
            recorder.touch(serial)
            recorder.notice(serial, number, "" if number is None else f"In [{number}]", notice, now())

        self._say(act)

    @property
    def sequence(self) -> int:
        """The number of the last event sent."""
        return self._recorder.sequence if self._recorder is not None else 0

    @property
    def pending(self) -> int:
        """Bytes that are not recorded yet."""
        return self._queue.pending

    def started_processes(self, serial: int) -> bool:
        """Whether that execution (one of the last thousand) started a process."""
        return serial in self._started

    def _say(self, act: Callable[[Recorder], Any]) -> None:
        if not self.forked:
            self._queue.put(act)
            self._queue.hurry()

    def _wait_for(
        self, act: Callable[[Recorder, Callable[[], None]], Any], timeout: float, *, patient: bool = True
    ) -> bool:
        """Put a step and wait until it calls the function it is given, after its commit.

        Gives up after `timeout` seconds; when `patient`, after that long without a drain.
        """
        done = Flag()
        self._queue.put(lambda recorder: act(recorder, done.set))
        self._queue.hurry()
        seen, deadline = self._queue.drains, monotonic() + timeout
        while not done.wait(min(timeout, 0.5)):
            if patient and self._queue.drains != seen:
                seen, deadline = self._queue.drains, monotonic() + timeout
            elif monotonic() > deadline:
                return False
        return True

    # -- what native code and children write: IOPub thread -----------------------------------------

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Notice growth of the descriptor files, at most every `WATCH_INTERVAL`."""
        fd = self._descriptors.notify_fd
        if fd is None or self._watching:
            return
        self._watching = True

        def changed() -> None:
            loop.remove_reader(fd)
            loop.call_later(WATCH_INTERVAL, again)  # before anything can fail
            self._descriptors.changed()
            if self._queue.items:
                self._queue.hurry()

        def again() -> None:
            if self._descriptors.notify_fd == fd:
                loop.add_reader(fd, changed)

        again()

    def _poll_if_needed(self) -> None:
        if self._loop is not None and self._descriptors.unwatched and not self._polling:
            self._polling = True
            self._loop.call_soon_threadsafe(self._poll, self._loop)

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        """Where no system call tells of growth: look, for as long as something may write."""
        self._descriptors.poll()
        if self._queue.items:
            self._queue.hurry()
        if self._descriptors.unwatched and (self._running is not None or self._descriptors.retired):
            loop.call_later(WATCH_INTERVAL, self._poll, loop)
        else:
            self._polling = False

    # -- processes ---------------------------------------------------------------------------------

    def _process_started(self) -> None:
        if self.forked:
            return
        self._descriptors.process_starts()
        self._poll_if_needed()
        self._started[current_execution.get(self._queue.latest)] = None
        while len(self._started) > REMEMBERED:
            self._started.popitem(last=False)

    def before_fork(self) -> None:
        """Nothing may be half done in the child's copy; libc's buffer must not be written twice."""
        if not self.forked:
            libc.flush_stdout()
            self._queue.lock.acquire()

    def after_fork_in_parent(self) -> None:
        if not self.forked:
            self._queue.lock.release()

    def after_fork_in_child(self) -> None:
        """The parent records what was said until now; what the child says goes to fd 1 and 2."""
        first = not self.forked
        self.forked = True
        self._queue.clear()
        if self._standard is not None:
            self._standard.become_child()
            if first:
                fork_hooks.flush_at_exit(self._standard.flush)
