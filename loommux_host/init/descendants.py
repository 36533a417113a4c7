"""How everything that a kernel started is ended, and the files of a dead owner removed.

Owns the end routine of the init and of its guard. Knows nothing of why something ends.
Standard library only, and little of it; `pathlib` and `shutil` would double the time
that a kernel waits for its init.
"""
# ruff: noqa: PTH102, PTH106, PTH108, PTH110, PTH112, PTH114, PTH120, PTH208

from __future__ import annotations

import os
import time

from loommux_host.init.poll_loop import Watch
from loommux_host.init.system_calls import LINUX, signal

#: The routine takes milliseconds; what has not gone by then cannot be ended by us.
END_SECONDS = 2.0
#: Of these, how long it goes on finding processes to stop before it kills.
STOP_SECONDS = 1.0
#: Of these, how long Python's resource trackers may clean up once all else is dead, and what the killing keeps.
TRACKER_SECONDS, KILL_SECONDS = 1.0, 0.5
#: Between two rounds of killing when no death is reported meanwhile.
ROUND_SECONDS = 0.02
#: What is in the command line of a resource tracker: multiprocessing's, loky's, joblib's.
TRACKER = b"resource_tracker import main"


class Ending:
    """Stops, kills and reaps everything below this process.

    Stopped first, so that nothing reacts to the death of something else and the count is
    true. Groups are signalled as well as processes: that is atomic, so what forks and exits
    all the time cannot slip through between a look and a signal. A group is a descendant's
    own: the kernel began a session, and nothing enters one from outside.

    Resource trackers are killed last. They remove shared memory, semaphores and the like when
    everybody who may use them is dead, and then end by themselves.

    `ended` are the pids that lived and were ended; `left()` those that are still there
    because they were not ours to end (a program that runs as another user, without a group).
    """

    def __init__(self, watch: Watch, kernel_id: str, group: str) -> None:
        self._watch, self._kernel_id, self._group = watch, kernel_id, group
        self._began = time.monotonic()
        self._own_group = os.getpgrp()
        self._denied: set[int] = set()
        self._trackers: set[int] = set()
        self.ended: set[int] = set()

    def run(self) -> None:
        """Until the system says that no child is left, nothing can be done, or time is up."""
        while self._within(STOP_SECONDS) and self._stop_new():
            pass
        self._trackers = {pid for pid in self.ended if is_tracker(pid)}
        if self._trackers:
            self._let_trackers_end()
        while self._within(END_SECONDS) and not self._kill_all():
            self._watch.step(ROUND_SECONDS)

    def _let_trackers_end(self) -> None:
        """Kill all but them, and give them their time to hear of it."""
        until = min(time.monotonic() + TRACKER_SECONDS, self._began + END_SECONDS - KILL_SECONDS)
        while time.monotonic() < until:
            alive = self._alive()
            trackers = {pid: group for pid, group in alive.items() if pid in self._trackers}
            if not trackers:
                return
            spared = set(trackers.values())  # a signal to their group would reach them
            others = {pid: 0 if group in spared else group for pid, group in alive.items() if pid not in trackers}
            self._send(signal.SIGKILL, others)
            self._send(signal.SIGCONT, dict.fromkeys(trackers, 0))
            self._watch.step(ROUND_SECONDS)

    def left(self) -> set[int]:
        return self._denied & set(self._alive()) if self._denied else set()

    def _within(self, seconds: float) -> bool:
        return time.monotonic() - self._began < seconds

    def _alive(self) -> dict[int, int]:
        """pid → its group, of everything that is to end."""
        if LINUX:
            return descendants(os.getpid())
        return marked(self._watch.kernel, self._kernel_id, {os.getpid(), os.getppid()})

    def _stop_new(self) -> bool:
        """Stop what was not seen before; whether there was anything."""
        new = {pid: group for pid, group in self._alive().items() if pid not in self.ended | self._denied}
        self._send(signal.SIGSTOP, new)
        return bool(new)

    def _kill_all(self) -> bool:
        """One round; whether nothing is left that could be ended."""
        alive = self._alive()
        if self._group and write(f"{self._group}/cgroup.kill", "1"):
            self.ended |= set(alive)
        self._send(signal.SIGKILL, alive)
        self._watch.reap()
        if LINUX:
            return self._watch.none_left or (bool(alive) and self._denied >= set(alive))
        return self._denied >= set(alive)

    def _send(self, number: int, targets: dict[int, int]) -> None:
        for group in set(targets.values()) - {self._own_group, 0, 1}:  # those mean our own, and everybody
            try:
                os.killpg(group, number)
            except OSError:
                continue  # gone, or partly another user's: its processes follow one by one
        for pid in targets:
            try:
                os.kill(pid, number)
                self.ended.add(pid)
            except ProcessLookupError:
                self.ended.add(pid)  # by the signal to its group
            except PermissionError:
                self._denied.add(pid)


def descendants(root: int) -> dict[int, int]:
    """What lives below `root`: pid → group. What is being born may be missed: look again."""
    found: dict[int, int] = {}
    waiting = [root]
    below = children if os.path.exists(f"/proc/{root}/task/{root}/children") else by_parent().get
    while waiting:
        for pid in below(waiting.pop()) or ():
            state, _, group = status(pid)
            if pid not in found and (state not in "ZX" or len(threads(pid)) > 1):  # a main thread may end first
                found[pid] = group
                waiting.append(pid)
    return found


def is_tracker(pid: int) -> bool:
    """Whether a process is a resource tracker of Python's."""
    if LINUX:
        return TRACKER in read(f"/proc/{pid}/cmdline")
    with os.popen(f"ps -ww -o command= -p {pid}") as listing:
        return TRACKER.decode() in listing.read()


def status(pid: int) -> tuple[str, int, int]:
    """State, parent and group of a process; of one that is gone, as if it were dead."""
    stat = read(f"/proc/{pid}/stat")
    if not stat:
        return "X", 0, 0
    state, parent, group = stat[stat.rindex(b")") + 2 :].split(None, 3)[:3]
    return state.decode(), int(parent), int(group)


def by_parent() -> dict[int, list[int]]:
    """Every process by its parent, for systems that do not list children."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            found.setdefault(status(int(name))[1], []).append(int(name))
    return found


def threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def children(pid: int) -> list[int]:
    """The children of every thread of a process."""
    return [int(c) for thread in threads(pid) for c in read(f"/proc/{pid}/task/{thread}/children").split()]


def read(path: str) -> bytes:
    """A file of /proc; empty when its process is gone."""
    data = b""
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            while more := os.read(fd, 65536):
                data += more
        finally:
            os.close(fd)
    except (FileNotFoundError, ProcessLookupError):
        return b""
    return data


def marked(session: int, kernel_id: str, ours: set[int]) -> dict[int, int]:
    """Where there are no subreapers: what is in the kernel's session or carries its id."""
    mark = f"LOOMMUX_KERNEL_ID={kernel_id}"
    found: dict[int, int] = {}
    with os.popen("ps -A -E -ww -o pid=,stat=,command=") as listing:
        for line in listing:
            pid, state, command = [*line.split(None, 2), ""][:3]
            try:
                is_ours = mark in command or os.getsid(int(pid)) == session
                if is_ours and int(pid) not in ours and not state.startswith("Z"):
                    found[int(pid)] = os.getpgid(int(pid))
            except OSError:
                continue  # gone meanwhile
    return found


def enter_groups(groups: list[str], limits: list[tuple[str, ...]], pid: int) -> list[str]:
    """Put the kernel into control groups of its own, with its limits; returns the limits that it has not got."""
    for group in groups:
        try:
            os.mkdir(group)
        except OSError:
            continue  # it shows below, where it matters
    problems = [
        f"{group}/{file}" for group, file, value, must in limits if not write(f"{group}/{file}", value) and must
    ]
    entered = {group: write(f"{group}/cgroup.procs", str(pid)) for group in groups}
    return problems + [f"{limit[0]}/cgroup.procs" for limit in limits if not entered[limit[0]]]


def shortages_of(groups: list[str]) -> int:
    """How many processes of these groups were ended for lack of memory."""
    found = 0
    for group in groups:
        for file in ("memory.events", "memory.oom_control"):
            try:
                found += counter(read(f"{group}/{file}"))
            except OSError:
                continue  # no controller of memory there
    return found


def system_shortages() -> int:
    """The same for the whole system, since it was started."""
    try:
        return counter(read("/proc/vmstat")) if LINUX else 0
    except OSError:
        return 0


def counter(data: bytes) -> int:
    """The value of ``oom_kill`` in a file of names and numbers."""
    for line in data.split(b"\n"):
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return 0


def remove_group(group: str) -> None:
    """Remove an empty group, and those that were made in it."""
    for directory, _, _ in os.walk(group, topdown=False) if group else ():
        try:
            os.rmdir(directory)
        except OSError:
            return  # somebody is left in it


def write(path: str, text: str) -> bool:
    """Write to a file of the system; whether it took it."""
    try:
        fd = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        return os.write(fd, text.encode()) > 0
    except OSError:
        return False
    finally:
        os.close(fd)


def remove_files(kernel_directory: str, connection_file: str) -> None:
    """What a dead owner left: this kernel's files, and its own when no other kernel has any."""
    remove(connection_file)
    if not kernel_directory:
        return
    remove(kernel_directory)
    server = os.path.dirname(kernel_directory)
    try:
        if not any(entry.is_dir() for entry in os.scandir(server)):
            remove(server)
            os.rmdir(os.path.dirname(server))
    except OSError:
        return  # another kernel's init was faster, or the user has other servers


def remove(path: str) -> None:
    """Remove a file or a tree; what cannot be removed stays for the next server to find."""
    for directory, directories, names in os.walk(path, topdown=False):
        for name in names + directories:
            _remove_one(f"{directory}/{name}")
    _remove_one(path)


def _remove_one(path: str) -> None:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            os.rmdir(path)
        else:
            os.unlink(path)
    except OSError:
        return
