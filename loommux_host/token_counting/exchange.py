"""One line to a process and one line back, for as long as that process gets on.

A process that was stopped, or whose memory is on a disk, keeps its pipes open and never answers;
whoever reads from it would wait for ever. Owns the deadline: `PATIENCE_SECONDS` without a word from
one that is stopped or uses no processor time. One that works is waited for longer, because a loaded
machine makes it slow. `counter` asks.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time

#: How long nothing may be heard of a process that does nothing, and of any.
PATIENCE_SECONDS, LONGEST_SECONDS = 2.0, 20.0
_PIECE = 1 << 16


class NoAnswer(Exception):
    """The process is there, and does not answer."""


def exchange(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """The line that `process` answers; nothing when it has ended. Raises `NoAnswer`."""
    assert process.stdin is not None and process.stdout is not None
    if sys.platform == "win32":  # pipes cannot be waited for there, nor processes be stopped by a signal
        return _unbounded(process, line)
    poll, patience = select.poll(), _Patience(process.pid)
    to, back = process.stdin.fileno(), process.stdout.fileno()
    for fd, event in ((to, select.POLLOUT), (back, select.POLLIN)):
        os.set_blocking(fd, False)
        poll.register(fd, event)
    rest, answer = memoryview(line), bytearray()
    while not answer.endswith(b"\n"):
        if not poll.poll(PATIENCE_SECONDS * 1000):
            patience.use()
        try:
            if rest:
                rest = rest[os.write(to, rest[:_PIECE]) :]
                if not rest:
                    poll.unregister(to)
            chunk = os.read(back, _PIECE)
        except BlockingIOError:
            continue
        except BrokenPipeError:
            return b""
        if not chunk:
            return b""
        answer += chunk
    return bytes(answer)


class _Patience:
    """What is left of it with one process, of which nothing was heard for `PATIENCE_SECONDS`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._until = time.monotonic() + LONGEST_SECONDS
        self._used: float | None = None

    def use(self) -> None:
        """Go on only with a process that works."""
        before, self._used = self._used, self._processor_time()
        if self._used is None or self._used == before or time.monotonic() > self._until:
            raise NoAnswer

    def _processor_time(self) -> float | None:
        """None for one that is stopped, or of which nothing can be known."""
        import psutil  # 40 ms, for a process that is late anyway

        try:
            process = psutil.Process(self._pid)
            if process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                return None
            times = process.cpu_times()
        except (psutil.Error, OSError):
            return None
        return times.user + times.system


def _unbounded(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except BrokenPipeError:
        return b""
    return process.stdout.readline()
