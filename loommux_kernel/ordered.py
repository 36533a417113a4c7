"""The one queue through which everything passes that becomes output.

Owns the order: whatever thread says something first comes first, text of either
stream, messages, descriptor marks, begins and ends alike. Owns also the bound of
what may wait: a thread that writes faster than the record store takes it in is
held back, so that the kernel's memory does not grow with its output.

It knows neither ZeroMQ nor the record store. `streams`, `descriptors` and
`capture` put things in; `recorder` takes them out on the IOPub thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from loommux_kernel.protocol import Stream

#: Bytes that may wait before writing threads are held back.
PENDING_BYTES = 8 << 20
#: A run of text is closed at this size, so that a drain can stop after it.
RUN_BYTES = 1 << 20
#: What one written string costs beside its characters (an object, a list slot).
WRITE_COST = 56
#: Seconds without any progress after which nobody is held back any more.
STALL_SECONDS = 5.0
#: Text that is kept while the store stalls; older text is given up for newer.
STALLED_BYTES = 4 * PENDING_BYTES
_WAIT_SECONDS = 0.05


class Run:
    """Adjacent text of one stream of one execution, as it was written."""

    __slots__ = ("serial", "size", "stream", "texts")

    def __init__(self, serial: int, stream: Stream) -> None:
        self.serial = serial
        self.stream = stream
        self.texts: list[str] = []
        self.size = 0


class Step:
    """Anything else, in its place between the texts: done by the recorder when its turn comes.

    `size` is what it weighs in a drain, `held` what it holds of the memory that may wait.
    """

    __slots__ = ("act", "held", "size")

    def __init__(self, act: Callable[[Any], None], size: int, held: int) -> None:
        self.act = act
        self.size = size
        self.held = held


class OrderedQueue:
    """What was said and is not recorded yet, in order. Any thread puts, one thread takes."""

    def __init__(self) -> None:
        #: Reentrant: a signal handler or a finaliser may print in the middle of a write.
        self.lock = threading.RLock()
        self.items: deque[Run | Step] = deque()
        self.tail: Run | None = None
        self.pending = 0
        #: Counts drains; a stalled store shows in it.
        self.drains = 0
        self.stalled = False
        self.given_up = 0
        #: The execution that text belongs to when its thread carries none.
        self.latest = 0
        #: True when nothing will drain without being roused.
        self.asleep = True
        self.rouse: Callable[[], None] = _nothing
        #: As `rouse`, and now.
        self.hurry: Callable[[], None] = _nothing
        self.drainer: int | None = None
        self._room = threading.Event()

    def new_run(self, serial: int, stream: Stream) -> Run:
        """A run at the end of the queue that texts can be added to. Called under the lock."""
        run = self.tail = Run(serial, stream)
        self.items.append(run)
        return run

    def text(self, serial: int, stream: Stream, text: str) -> None:
        """Put text. `streams` has this inlined: it is the path of every print."""
        with self.lock:
            run = self.tail
            if run is None or run.serial != serial or run.stream is not stream or run.size > RUN_BYTES:
                run = self.new_run(serial, stream)
            cost = len(text) + WRITE_COST
            run.texts.append(text)
            run.size += cost
            self.pending += cost
        if self.asleep:
            self.rouse()
        if self.pending > PENDING_BYTES:
            self.wait_for_room()

    def put(self, act: Callable[[Any], None], *, size: int = 0, held: int = 0) -> None:
        """Put a step. Nobody is roused: the caller says how urgent it is."""
        with self.lock:
            self.tail = None
            self.items.append(Step(act, size, held))
            self.pending += held

    def take(self, budget: int) -> list[Run | Step]:
        """The oldest items, up to about `budget` bytes; at least one when there are any."""
        taken: list[Run | Step] = []
        size = 0
        with self.lock:
            while self.items and size < budget:
                item = self.items.popleft()
                size += item.size
                taken.append(item)
            if not self.items:
                self.tail = None
        return taken

    def done(self, size: int) -> None:
        """`size` bytes of what was taken are recorded."""
        with self.lock:
            self.pending -= size
            self.drains += 1
            self.stalled = False
        if self.pending <= PENDING_BYTES:
            self._room.set()

    def wait_for_room(self) -> None:
        """Hold the writing thread back while too much waits; bounded when nothing moves.

        Never holds back the draining thread.
        """
        if threading.get_ident() == self.drainer:
            return
        seen, since = self.drains, time.monotonic()
        while self.pending > PENDING_BYTES and not self.stalled:
            self._room.clear()
            self.hurry()
            self._room.wait(_WAIT_SECONDS)
            if self.drains != seen:
                seen, since = self.drains, time.monotonic()
            elif time.monotonic() - since > STALL_SECONDS:
                self.stalled = True
        if self.pending > STALLED_BYTES:
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        """Drop the oldest text (never a step) until half of what may wait is left."""
        with self.lock:
            kept: deque[Run | Step] = deque()
            while self.items and self.pending > STALLED_BYTES // 2:
                item = self.items.popleft()
                if isinstance(item, Run):
                    self.pending -= item.size
                    self.given_up += item.size
                else:
                    kept.append(item)
            self.items.extendleft(reversed(kept))
            self.tail = None

    def clear(self) -> None:
        """Forget everything; for a forked child, whose parent keeps it."""
        self.lock = threading.RLock()
        self.items.clear()
        self.tail = None
        self.pending = 0


def _nothing() -> None:
    """Nobody drains yet."""
