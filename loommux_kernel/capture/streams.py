"""`sys.stdout` and `sys.stderr` of a kernel: text streams that put into the ordered queue.

Owns how a cell sees its streams. A write finds the execution it belongs to, marks
what the descriptor files got in between, and adds the text to the queue's last
run; everything else happens on the IOPub thread. In a forked child a write goes
straight to fd 1 or 2, whole lines at a time.

`capture` makes the streams and puts them in place.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from loommux_kernel.capture.descriptors import Descriptors
from loommux_kernel.capture.queue import PENDING_BYTES, WRITE_COST, Channel, OrderedQueue
from loommux_kernel.executions.contexts import current_execution
from loommux_kernel.shared.clock import monotonic
from loommux_kernel.shared.protocol import Stream
from loommux_kernel.shared.records.database import CODES

#: Seconds between two flushes that wait until the text is recorded. A flush after a
#: pause is a promise ("this survives a crash"); those of a progress bar need not wait.
FLUSH_INTERVAL = 0.05
_FLUSH_SECONDS = 5.0
#: In a forked child: an unfinished line of this many characters is written out anyway.
_CHILD_LINE = 8192

_lseek = os.lseek
_END = os.SEEK_END


class OrderedStream(io.TextIOBase):
    """One of the two text streams. See the module."""

    mode = "w"

    def __init__(
        self,
        stream: Stream,
        fd: int,
        queue: OrderedQueue,
        descriptors: Descriptors,
        flush: Callable[[float], bool],
    ) -> None:
        super().__init__()
        self.name = str(stream)
        self._stream = stream
        self._code = CODES[stream]
        #: The channel of the last write.
        self._channel = Channel(0, stream)
        self._fd = fd
        self._queue = queue
        self._descriptors = descriptors
        self._flush = flush
        self._flushed_at = 0.0
        self._flushed_in = 0
        self._closed = False
        self._child = False
        #: Closed, or in a forked child.
        self._special = False
        self._held: list[str] = []
        self.buffer = ByteSide(self)

    # -- writing -------------------------------------------------------------------

    def write(self, text: str, /) -> int:
        """Put text; returns its length. Waits only while the record store falls behind."""
        if self._special or type(text) is not str:
            return self._write_special(text)
        queue = self._queue
        serial = current_execution.get(None)
        if serial is None:
            serial = queue.latest
        channel = self._channel
        if channel.serial != serial:
            channel = self._channel = Channel(serial, self._stream)
        cost = len(text) + WRITE_COST
        with queue.lock:
            out, err = self._descriptors.current
            # a truncated file may have its size again
            grown = _lseek(out.fd, 0, _END) != out.marked or _lseek(err.fd, 0, _END) != err.marked
            if grown or out.seen is not None or err.seen is not None:
                self._descriptors.mark()
            if queue.channel is not channel:
                queue.items.append(channel)
                queue.channel = channel
            queue.items.append(text)
            queue.pending += cost
            if queue.unrecorded is not None:
                queue.unrecorded.put(serial, self._code, text)
        if queue.asleep:
            queue.rouse()
        if queue.pending > PENDING_BYTES:
            queue.wait_for_room()
        return len(text)

    def _write_special(self, text: str) -> int:
        """The seldom cases of a write."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self._closed:
            raise ValueError("I/O operation on closed file.")
        text = str.__str__(text)
        return self._write_in_child(text) if self._child else self.write(text)

    def writelines(self, lines: Iterable[str], /) -> None:  # type: ignore[override]
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Bring the text into the record; waits for it unless the last flush of this cell was just now.

        ipykernel flushes to keep text and messages in order, which the queue does anyway.
        """
        if self._child:
            self._write_held()
            return
        if not self._queue.pending or self._closed or _caller_is_ipykernel():
            return
        at, cell = monotonic(), self._queue.latest
        if cell == self._flushed_in and at - self._flushed_at < FLUSH_INTERVAL:
            return
        self._flush(_FLUSH_SECONDS)
        self._flushed_at, self._flushed_in = monotonic(), cell

    def reopen(self) -> None:
        """Undo a cell's `close`."""
        self._closed = False
        self._special = self._child

    # -- in a forked child -------------------------------------------------------------

    def become_child(self) -> None:
        """From here on this process is a forked child: its text goes to fd 1 or 2."""
        self._child = self._special = True
        self._held = []

    def _write_in_child(self, text: str) -> int:
        self._held.append(text)
        if "\n" in text or "\r" in text or sum(map(len, self._held)) > _CHILD_LINE:
            self._write_held()
        return len(text)

    def _write_held(self) -> None:
        held, self._held = self._held, []
        data = memoryview("".join(held).encode("utf-8", "backslashreplace"))
        while data:
            data = data[os.write(self._fd, data) :]

    # -- what users of text streams expect -----------------------------------------------

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "backslashreplace"

    @property
    def newlines(self) -> None:  # type: ignore[override]
        return None

    @property
    def line_buffering(self) -> bool:
        return True

    @property
    def write_through(self) -> bool:
        return True

    @property
    def closed(self) -> bool:  # type: ignore[override]
        return self._closed

    def close(self) -> None:
        """Refuse further writes of this cell; the next cell finds the stream open again."""
        if not self._closed:
            self.flush()
            self._closed = self._special = True

    def reconfigure(self, **options: Any) -> None:
        """Accepted and without effect: the stream is UTF-8, takes everything and keeps it as written."""
        self.flush()

    def detach(self) -> Any:
        raise io.UnsupportedOperation("detach")

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name!r} mode='w' encoding='utf-8'>"


def _caller_is_ipykernel() -> bool:
    return sys._getframe(2).f_globals.get("__name__", "").startswith("ipykernel.")


class ByteSide(io.RawIOBase):
    """`sys.stdout.buffer`: bytes, decoded as UTF-8, in order with the stream's text."""

    mode = "wb"

    def __init__(self, text: OrderedStream) -> None:
        super().__init__()
        self.name = text.name
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="backslashreplace")

    @property
    def raw(self) -> ByteSide:
        return self

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        self._text.write(self._decoder.decode(bytes(view)))
        return len(view)

    def flush(self) -> None:
        """Half a character stays until its other half comes."""

    def close(self) -> None:
        self._text.close()

    @property
    def closed(self) -> bool:  # type: ignore[override]
        return self._text.closed

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._text.fileno()

    def isatty(self) -> bool:
        return False


class Standard:
    """The streams in their places, and putting them back there."""

    def __init__(self, stdout: OrderedStream, stderr: OrderedStream) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self._before = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)

    def restore(self) -> list[str]:
        """Whatever a cell did to `sys.stdout` and its like, later cells print as before; what it did."""
        found = []
        for name, ours in (("stdout", self.stdout), ("stderr", self.stderr)):
            if getattr(sys, name, None) is not ours:
                found.append(f"sys.{name} was replaced")
            elif ours.closed:
                found.append(f"sys.{name} was closed")
        self.stdout.reopen()
        self.stderr.reopen()
        sys.stdout = sys.__stdout__ = self.stdout  # type: ignore[misc, assignment]
        sys.stderr = sys.__stderr__ = self.stderr  # type: ignore[misc, assignment]
        return found

    def remove(self) -> None:
        sys.stdout, sys.stderr = self._before[:2]
        sys.__stdout__, sys.__stderr__ = self._before[2:]  # type: ignore[misc]

    def become_child(self) -> None:
        self.stdout.become_child()
        self.stderr.become_child()

    def flush(self) -> None:
        self.stdout.flush()
        self.stderr.flush()
