"""The one queue through which everything passes that becomes output.

Owns the order: whatever thread says something first comes first, text of either
stream, messages, descriptor marks, begins and ends alike. Owns also the bound of
what may wait: a thread that writes faster than the record store takes it in is
held back, so that the kernel's memory does not grow with its output.

It knows no ZeroMQ, and of the record store only the numbers of streams. `streams`, `descriptors` and
`capture` put things in; `drain` takes them out on the IOPub thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from loommux_kernel.shared.clock import monotonic
from loommux_kernel.shared.protocol import Stream
from loommux_kernel.shared.records.database import CODES
from loommux_kernel.shared.records.unrecorded_text import Unrecorded

#: Bytes that may wait before writing threads are held back.
PENDING_BYTES = 8 << 20
#: What one written string costs beside its characters (an object, a slot in the queue).
WRITE_COST = 64
#: Seconds without any progress after which nobody is held back any more.
STALL_SECONDS = 5.0
#: Text that is kept while the store stalls; older text is given up for newer.
STALLED_BYTES = 4 * PENDING_BYTES
_WAIT_SECONDS = 0.05


class Channel:
    """One stream of one execution: whose the texts are that follow it in the queue."""

    __slots__ = ("serial", "stream")

    def __init__(self, serial: int, stream: Stream) -> None:
        self.serial = serial
        self.stream = stream


class Step:
    """Anything else, in its place between the texts: done by the recorder when its turn comes.

    `size` is what it weighs in a drain, `held` what it holds of the memory that may wait.
    """

    __slots__ = ("act", "held", "size")

    def __init__(self, act: Callable[[Any], None], size: int, held: int) -> None:
        self.act = act
        self.size = size
        self.held = held


class Said:
    """What one execution said in a row, as it is taken out: all of it in order, and each stream's own."""

    __slots__ = ("combined", "own", "serial")

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.combined: list[str] = []
        self.own: dict[Stream, list[str]] = {}


class OrderedQueue:
    """What was said and is not recorded yet, in order. Any thread puts, one thread takes.

    A text is put as it is, behind its channel when that is another than the last
    text's: a million writes make no objects that the garbage collector has to look at.
    """

    def __init__(self) -> None:
        #: Reentrant: a signal handler or a finaliser may print in the middle of a write.
        self.lock = threading.RLock()
        self.items: deque[str | Channel | Step] = deque()
        #: The channel of the last text that was put, None when something else came since.
        self.channel: Channel | None = None
        #: The channel of the last text that was taken.
        self._taking: Channel | None = None
        self.pending = 0
        #: Counts drains; a stalled store shows in it.
        self.drains = 0
        self.stalled = False
        self.given_up = 0
        #: The execution that text belongs to when its thread carries none.
        self.latest = 0
        #: True when nothing will drain without being roused.
        self.asleep = True
        #: What survives this process of the texts that are not recorded yet, and how many texts were taken.
        self.unrecorded: Unrecorded | None = None
        self.taken = 0
        self.rouse: Callable[[], None] = _nothing
        #: As `rouse`, and now.
        self.hurry: Callable[[], None] = _nothing
        self.drainer: int | None = None
        self._room = threading.Event()

    def text(self, channel: Channel, text: str) -> None:
        """Put text. `streams` has this inlined: it is the path of every print."""
        cost = len(text) + WRITE_COST
        with self.lock:
            if self.channel is not channel:
                self.items.append(channel)
                self.channel = channel
            self.items.append(text)
            self.pending += cost
            if self.unrecorded is not None:
                self.unrecorded.put(channel.serial, CODES[channel.stream], text)
        if self.asleep:
            self.rouse()
        if self.pending > PENDING_BYTES:
            self.wait_for_room()

    def put(self, act: Callable[[Any], None], *, size: int = 0, held: int = 0) -> None:
        """Put a step. Nobody is roused: the caller says how urgent it is."""
        with self.lock:
            self.channel = None
            self.items.append(Step(act, size, held))
            self.pending += held

    def take(self, budget: int) -> tuple[list[Said | Step], int, int]:
        """The oldest items, up to about `budget` bytes; what they hold of the memory, and what they weigh.

        At least one when there are any. Text is sorted by execution and stream; its
        order within an execution is kept, and so is the place of every step.
        """
        taken: list[Said | Step] = []
        said: dict[int, Said] = {}
        combined: list[str] = []
        own: list[str] = []
        held = weight = 0
        with self.lock:
            if self.items and type(self.items[0]) is str:
                assert self._taking is not None
                combined, own = _lists(self._taking, said, taken)
            while self.items and weight < budget:
                item = self.items.popleft()
                if type(item) is str:
                    self.taken += 1
                    combined.append(item)
                    own.append(item)
                    cost = len(item) + WRITE_COST
                    held += cost
                    weight += cost
                elif type(item) is Channel:
                    combined, own = _lists(item, said, taken)
                    self._taking = item
                else:
                    assert isinstance(item, Step)
                    taken.append(item)
                    held += item.held
                    weight += item.size
                    said = {}
        return taken, held, weight

    def done(self, size: int) -> None:
        """`size` bytes of what was taken are recorded."""
        with self.lock:
            self.pending -= size
            self.drains += 1
            self.stalled = False
        if self.pending <= PENDING_BYTES:
            self._room.set()

    def recorded(self) -> None:
        """All that was taken is recorded."""
        with self.lock:
            if self.unrecorded is not None:
                self.unrecorded.recorded(self.taken)

    def wait_for_room(self) -> None:
        """Hold the writing thread back while too much waits; bounded when nothing moves.

        Never holds back the draining thread.
        """
        if threading.get_ident() == self.drainer:
            return
        seen, since = self.drains, monotonic()
        while self.pending > PENDING_BYTES and not self.stalled:
            self._room.clear()
            self.hurry()
            self._room.wait(_WAIT_SECONDS)
            if self.drains != seen:
                seen, since = self.drains, monotonic()
            elif monotonic() - since > STALL_SECONDS:
                self.stalled = True
        if self.pending > STALLED_BYTES:
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        """Drop the oldest text (never a step) until half of what may wait is left."""
        with self.lock:
            kept: deque[str | Channel | Step] = deque()
            while self.items and self.pending > STALLED_BYTES // 2:
                item = self.items.popleft()
                if isinstance(item, str):
                    self.pending -= len(item) + WRITE_COST
                    self.given_up += len(item)
                    self.taken += 1
                else:
                    kept.append(item)
            self.items.extendleft(reversed(kept))

    def clear(self) -> None:
        """Forget everything; for a forked child, whose parent keeps it."""
        self.lock = threading.RLock()
        self.items.clear()
        self.channel = None
        self.unrecorded = None
        self.pending = 0


def _nothing() -> None:
    """Nobody drains yet."""


def _lists(channel: Channel, said: dict[int, Said], taken: list[Said | Step]) -> tuple[list[str], list[str]]:
    """Where text of that channel goes: the lists of its execution and of its stream."""
    one = said.get(channel.serial)
    if one is None:
        one = said[channel.serial] = Said(channel.serial)
        taken.append(one)
    own = one.own.get(channel.stream)
    if own is None:
        own = one.own[channel.stream] = []
    return one.combined, own
