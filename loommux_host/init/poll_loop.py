"""What a guard or an init waits for: its children, its owner, signals, commands.

Owns the poll loop and the record of who died how. Knows nothing of what is done about it:
`roles` decides, `descendants` ends. Standard library only, and little of it.
"""

from __future__ import annotations

import os
import select
import time

from loommux_host.init.system_calls import LINUX, signal

#: Descriptor of the socket towards the owner.
OWNER = 0
#: How long a socket that closed waits for proof that the owner is dead, not merely gone.
OWNER_DEATH_SECONDS = 1.0
#: `ru_maxrss` counts kilobytes on Linux, bytes on macOS.
RSS_UNIT = 1024 if LINUX else 1


class Owner:
    """Who everything is done for. `ended` are descriptors of which each becomes readable when
    it is time to end; `proof` is the one among them that says that the owner's process is dead.
    """

    def __init__(self, ended: list[int], proof: int) -> None:
        self.ended, self.proof = [fd for fd in ended if fd >= 0], proof


class Watch:
    """One process's view of its children and of those that it serves.

    `exits` maps the pids of those it was told to expect to their code (negative for a signal)
    and time of death; `max_rss` is the highest memory (bytes) of any child that died; `over`
    says that everything is to end, `gone` that it is because the owner let go or died,
    `released` that nobody waits for anything here any more;
    `none_left` is the system's word that there is no child, the proof that an ending is
    complete.
    """

    def __init__(self, owner: Owner, leash: int = -1) -> None:
        self.kernel = 0
        self._expected: set[int] = set()
        self.exits: dict[int, tuple[int, float]] = {}
        self.max_rss = 0
        self.over = False
        self.gone = False
        self.released = False
        self.none_left = False
        self._proof = owner.proof
        self._wake, wake_end = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminated)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._poll.register(OWNER, 0)
        for fd in (*owner.ended, leash):
            if fd >= 0:
                self._poll.register(fd, select.POLLIN)

    def expect(self, *, kernel: int = 0, init: int = 0) -> None:
        """Keep the exits of these; nothing has been reaped since they were forked."""
        self.kernel = kernel or self.kernel
        self._expected |= {kernel, init}

    def listen(self) -> None:
        """Take the owner's commands from now on; only one of the two processes may at a time."""
        if not self.gone:
            self._poll.modify(OWNER, select.POLLIN)

    def step(self, seconds: float | None = None) -> None:
        """Wait for something to happen, at most `seconds`, and take it in."""
        for fd, events in self._poll.poll(None if seconds is None else seconds * 1000):
            if fd == self._wake:
                os.read(self._wake, 4096)
            elif fd == OWNER and events & select.POLLIN:
                self._take_commands()
            else:
                self._let_go(fd)
        self.reap()

    def reap(self) -> None:
        """Take in every child that has died."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self.none_left = True
                return
            self.none_left = False
            if not pid:
                return
            self.max_rss = max(self.max_rss, usage.ru_maxrss * RSS_UNIT)
            if pid in self._expected:
                self.exits[pid] = (os.waitstatus_to_exitcode(status), time.time())

    def owner_is_dead(self) -> bool:
        """Whether nobody is there any more who could tell or be told: the socket has closed, the owner has died.

        A socket closes a moment before its process is dead, and a keeper can die alone.
        """
        if not self.gone:
            return False
        deadline = time.monotonic() + OWNER_DEATH_SECONDS
        return all(
            _readable(fd, wanted, deadline) for fd, wanted in ((OWNER, 0), (self._proof, select.POLLIN)) if fd >= 0
        )

    def _terminated(self, *_: object) -> None:
        self.over = self.released = True

    def _take_commands(self) -> None:
        try:
            data = os.read(OWNER, 4096)
        except ConnectionError:
            data = b""
        if not data:
            self._let_go(OWNER)
        for line in data.decode().splitlines():
            name, _, value = line.partition(" ")
            if name in ("end", "leave"):
                self.over = True
                self.released = self.released or name == "leave"
            elif name == "signal" and self.kernel not in self.exits:
                os.kill(self.kernel, int(value))  # not reaped, so the number is still its own

    def _let_go(self, fd: int) -> None:
        self._poll.unregister(fd)
        self.over = self.gone = self.released = True


def open_parent(pid: int) -> int:
    """A descriptor that becomes readable when our parent ends; -1 when it has ended, or without pidfds."""
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1
    # When it is not our parent any more, the number may belong to another process by now.
    return fd if os.getppid() == pid else -1


def _readable(fd: int, wanted: int, deadline: float) -> bool:
    """Whether that happens in time, or the other end has closed."""
    poll = select.poll()
    poll.register(fd, wanted)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
