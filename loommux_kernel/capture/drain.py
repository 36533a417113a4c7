"""The drain: takes what was said out of the ordered queue, on the IOPub thread.

Owns the record writer, what is known of each execution (its number, its request,
how many displays it had), the numbering of events and when output is told of. One
drain is one transaction; what speaks of it (messages, events, the end of a wait)
leaves after the commit.

It does not know ipykernel: a `Publisher` sends. `capture` builds it and puts the
steps whose turn it takes; all methods without a note run on the IOPub thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from loommux_kernel.capture.queue import OrderedQueue, Said
from loommux_kernel.shared.protocol import (
    OUTPUT_EVENT_INTERVAL,
    Event,
    NoticeGiven,
    OutputArrived,
    Stream,
    now,
)
from loommux_kernel.shared.records.relay import RelayedWriter

#: Bytes of one drain, and so of one transaction.
DRAIN_BYTES = 4 << 20
#: Seconds from the first text after a pause to its drain.
FIRST_DELAY = 0.01
#: Seconds between drains while little is said, and while much is: more than `MUCH` bytes in one.
INTERVAL = 0.015
LONG_INTERVAL = 0.04
#: Seconds between attempts to write what the disk has refused.
RETRY_INTERVAL = 0.5
#: Seconds from an execution's start to the first event that tells of its output.
FIRST_EVENT_DELAY = 0.03
MUCH = 1 << 16
#: Executions whose request and number are remembered for output that arrives after their end.
REMEMBERED = 1000


class Publisher(Protocol):
    """The way to attached clients and to the host, used on the IOPub thread."""

    def wants_stream(self, stream: Stream) -> bool: ...

    def stream(self, parent: dict[str, Any], stream: Stream, text: str) -> None: ...

    def frames(self, frames: list[Any]) -> None: ...

    def event(self, event: Event) -> None: ...

    def sent(self) -> None:
        """Several may have been sent: look what came in meanwhile."""


@dataclass
class Known:
    """What the drain keeps of one execution. `parent` is its request's header."""

    number: int | None = None
    parent: dict[str, Any] = field(default_factory=dict)
    ended: bool = False
    displays: int = 0
    told_at: float = 0.0


class Recorder:
    """Writes the record, publishes, tells. See the module."""

    def __init__(
        self,
        queue: OrderedQueue,
        open_writer: Callable[[Callable[[str], None]], RelayedWriter],
        publisher: Publisher,
        log: Callable[[str], None],
    ) -> None:
        self._queue = queue
        self._open_writer = open_writer
        self._publisher = publisher
        self._log = log
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._trailing: asyncio.TimerHandle | None = None
        self._hurried = False
        self._known: OrderedDict[int, Known] = OrderedDict()
        self._arrived: set[int] = set()
        self._texts: dict[tuple[int, Stream], list[str]] = {}
        self._outgoing: list[Callable[[], None]] = []
        self._after: list[Callable[[], None]] = []
        self.writer: RelayedWriter | None = None
        #: The number of the last event that was sent. Any thread may read it.
        self.sequence = 0

    # -- waking up: any thread ---------------------------------------------------

    def rouse(self) -> None:
        """There is something to drain, soon."""
        self._queue.asleep = False
        self._call(self._arm, FIRST_DELAY)

    def hurry(self) -> None:
        """There is something to drain, now."""
        if not self._hurried:
            self._hurried = True
            self._call(self._tick)

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: the process ends
                self._loop.call_soon_threadsafe(function, *args)

    # -- the loop ------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to drain; called once, on the IOPub thread."""
        self._loop = loop
        self._queue.drainer = threading.get_ident()
        try:
            self.writer = self._open_writer(self.trouble)
        except Exception as error:  # cells run without records rather than not at all
            self.trouble(f"there are no records: {type(error).__name__}: {error}")
        self._queue.rouse = self.rouse
        self._queue.hurry = self.hurry
        self._tick()

    def _arm(self, delay: float) -> None:
        assert self._loop is not None
        if self._timer is not None:
            if self._timer.when() <= self._loop.time() + delay:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._hurried = False
        drained = self.drain()
        if drained >= DRAIN_BYTES and self._queue.items:
            self._arm(0.0)
        elif drained:
            self._arm(INTERVAL if drained < MUCH else LONG_INTERVAL)
        elif self.writer is not None and self.writer.waiting:
            self._commit()  # the disk could not be written: try again
            self._arm(RETRY_INTERVAL)
        else:
            with self._queue.lock:
                self._queue.asleep = not self._queue.items
            if not self._queue.asleep:
                self._arm(0.0)

    def drain(self) -> int:
        """One transaction's worth; about how many bytes, 0 when there was nothing."""
        items, held, weight = self._queue.take(DRAIN_BYTES)
        if not items:
            return 0
        if self.writer is not None:
            self.writer.taken = self._queue.taken
        for item in items:
            if isinstance(item, Said):
                self._guarded(self._say, item)
            else:
                self._guarded(item.act, self)
        self._flush_texts()
        self._tell_arrived()
        self._commit()
        if self.writer is not None and not self.writer.waiting:
            self._queue.recorded()
        self._queue.done(held)
        self._leave()
        if self._queue.given_up:
            missing, self._queue.given_up = self._queue.given_up, 0
            self.trouble(f"Records are incomplete: the disk stood still, {missing} characters of output are missing.")
        return weight + 1

    def _guarded(self, act: Callable[[Any], Any], argument: Any) -> None:
        """One failure, whatever it is, does not take the rest of the drain with it."""
        try:
            act(argument)
        except Exception:
            self._log(f"while recording output:\n{traceback.format_exc()}")

    def _say(self, said: Said) -> None:
        """Record and publish what an execution said; what belongs to none is logged."""
        serial, combined = said.serial, "".join(said.combined)
        if not combined:
            return
        own = {stream: "".join(texts) for stream, texts in said.own.items() if texts} if len(said.own) > 1 else None
        if own is None:
            own = dict.fromkeys(said.own, combined)
        if not serial:
            self._log(combined)
        elif self.writer is not None:
            self.writer.said(serial, combined, own)
            self._arrived.add(serial)
        for stream, text in own.items():
            if self._publisher.wants_stream(stream):
                self._texts.setdefault((serial, stream), []).append(text)

    def _commit(self) -> None:
        if self.writer is not None:
            self.writer.commit()

    def _leave(self) -> None:
        """What speaks of the transaction: messages first, then events, then whoever waits."""
        outgoing, self._outgoing = self._outgoing, []
        after, self._after = self._after, []
        for step in outgoing + after:
            try:
                step()
            except Exception:
                self._log(f"after recording output:\n{traceback.format_exc()}")
        if outgoing or after:
            self._publisher.sent()

    # -- what steps may do -----------------------------------------------------------

    def know(self, serial: int, known: Known) -> None:
        """Remember an execution that begins. A short one ends before its output is told of."""
        assert self._loop is not None
        known.told_at = self._loop.time() - OUTPUT_EVENT_INTERVAL + FIRST_EVENT_DELAY
        self._known[serial] = known
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def known(self, serial: int) -> Known:
        """What is remembered of an execution; used now, so not forgotten soon."""
        if serial in self._known:
            self._known.move_to_end(serial)
            return self._known[serial]
        return Known(ended=True)

    def text(self, serial: int, stream: Stream, text: str) -> None:
        """Record and publish text of an execution."""
        if text:
            said = Said(serial)
            said.combined = said.own[stream] = [text]
            self._say(said)

    def said(self, serial: int, combined: str, own: dict[Stream, str]) -> None:
        """Record and publish text of several streams: all in order, and each stream's own."""
        said = Said(serial)
        said.combined = [combined]
        said.own = {stream: [text] for stream, text in own.items()}
        self._say(said)

    def take_in(self, serial: int, stream: Stream, text: str, path: Path | None, offset: int) -> None:
        """Record text from a descriptor file, and how far the file is taken in; one in memory nobody else can read."""
        self.text(serial, stream, text)
        if serial and path is not None and self.writer is not None:
            self.writer.descriptor(serial, stream, path, offset)

    def touch(self, serial: int) -> None:
        """Something other than text reached the record."""
        if serial:
            self._arrived.add(serial)

    def settle(self, serial: int) -> None:
        """The end of an execution tells of all its output: no event of its own for that."""
        self._arrived.discard(serial)

    def publish(self, frames: list[Any]) -> None:
        """Send a message to attached clients in its place among the texts."""
        self._flush_texts()
        self._outgoing.append(lambda: self._publisher.frames(frames))

    def tell(self, kind: type[Event], **fields: Any) -> None:
        """Send an event after the commit."""
        self._after.append(lambda: self._send_event(kind, fields))

    def after_commit(self, step: Callable[[], None]) -> None:
        self._after.append(step)

    def notice(self, serial: int | None, number: int | None, label: str, text: str, at: float) -> None:
        if self.writer is not None:
            self.writer.notice(serial, label, text, at)
        self.tell(NoticeGiven, at=at, serial=serial, number=number, label=label, text=text)

    def trouble(self, text: str) -> None:
        """The store says that it cannot keep everything. Any thread."""
        self._log(f"{text}\n")
        self._queue.put(lambda r: r.notice(None, None, "Records", text, now()))

    def close(self, done: Callable[[], None]) -> None:
        """The last step: what comes after it is logged."""
        self._flush_texts()
        self._tell_arrived()
        if self.writer is not None:
            self.writer.commit()
            self.writer.close()
            self.writer = None
        self.after_commit(done)

    # -- events and messages -----------------------------------------------------------

    def _send_event(self, kind: type[Event], fields: dict[str, Any]) -> None:
        self.sequence += 1
        self._publisher.event(kind(sequence=self.sequence, **{"at": now(), **fields}))

    def _tell_arrived(self) -> None:
        """Tell of output, at most every `OUTPUT_EVENT_INTERVAL` for one execution, and never forget the last."""
        assert self._loop is not None
        if self.writer is None:
            return
        time, wait = self._loop.time(), 0.0
        for serial in list(self._arrived):
            known = self.known(serial)
            left = known.told_at + OUTPUT_EVENT_INTERVAL - time
            if left > 0:
                wait = min(wait or left, left)
                continue
            known.told_at = time
            self._arrived.discard(serial)
            self.tell(
                OutputArrived,
                serial=serial,
                number=known.number,
                counts=self.writer.counts(serial),
                last_line=self.writer.last_line(serial),
                late_lines=self.writer.late_lines(serial) if known.ended else 0,
            )
        if wait and self._trailing is None:
            self._trailing = self._loop.call_later(wait, self._tell_trailing)

    def _tell_trailing(self) -> None:
        self._trailing = None
        self._tell_arrived()
        self._leave()

    def _flush_texts(self) -> None:
        """Hand the texts since the last message to the clients, one message per stream and execution."""
        if not self._texts:
            return
        texts, self._texts = self._texts, {}
        for (serial, stream), parts in texts.items():
            if not self._publisher.wants_stream(stream):
                continue
            parent, text = self.known(serial).parent, "".join(parts)
            self._outgoing.append(lambda p=parent, s=stream, t=text: self._publisher.stream(p, s, t))


def writer_to(fd: int | None) -> Callable[[str], None]:
    """A function that appends text to the process's own log, or drops it without one."""

    def write(text: str) -> None:
        if fd is not None:
            with contextlib.suppress(OSError):
                os.write(fd, text.encode("utf-8", "backslashreplace"))

    return write
