"""What a kernel's process may use, where control groups can see to it (contract 9.5).

Owns finding out where (cgroup v2 in a group that is ours, or v1's single controllers), and
why not. The init makes the groups and fills them (`init.descendants`); each limit is a value in
a file of a group. Called by `server.host` and `diagnosis`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

#: How long the system's accounts of processor time are.
PERIOD_MICROSECONDS = 100_000
HINT = "start the server with: systemd-run --user --scope -p Delegate=yes loommux …"


@dataclass(frozen=True)
class Write:
    """A value for a file of the group that is made below `parent`. `required`: without it there is no limit."""

    parent: Path
    file: str
    value: str
    required: bool = True


@dataclass(frozen=True)
class KernelLimits:
    """What is asked for, how it is done, and what of it cannot be done, with the reason."""

    memory_bytes: int | None = None
    cpu: float | None = None
    writes: tuple[Write, ...] = ()
    obstacles: tuple[str, ...] = ()

    @property
    def parents(self) -> tuple[Path, ...]:
        """The groups that a kernel's own are made in."""
        return tuple(dict.fromkeys(write.parent for write in self.writes))

    def told(self, name: str) -> str:
        """The same for the init of a process whose groups have that name: directory, file, value, a line each."""
        return "\n".join(f"{w.parent / name}\t{w.file}\t{w.value}\t{'!' if w.required else ''}" for w in self.writes)


class Groups:
    """The control groups that this process is in, as the system lists them."""

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        #: Where v2 has it, and where each controller of v1.
        self.unified: Path | None = None
        self.v1: dict[str, Path] = {}
        if sys.platform != "linux":
            return
        with contextlib.suppress(OSError):
            mounts = [line.split() for line in (proc / "mounts").read_text().splitlines()]
            own = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
            for _, controllers, path in own:
                for fields in mounts:
                    if fields[2] == "cgroup2" and not controllers:
                        self.unified = Path(fields[1]) / path.lstrip("/")
                    elif fields[2] == "cgroup" and set(controllers.split(",")) <= set(fields[3].split(",")):
                        for name in controllers.split(","):
                            self.v1[name] = Path(fields[1]) / path.lstrip("/")


def find(
    memory_bytes: int | None, cpu: float | None, groups: Groups | None = None, *, divide: bool = True
) -> KernelLimits:
    """How these limits can be enforced here.

    With `divide` this process may move to a group beside the kernels', as v2 wants it; without,
    it is only said whether that would do.
    """
    groups = Groups() if groups is None else groups
    writes: list[Write] = []
    obstacles: list[str] = []
    wanted = {"memory": memory_bytes, "cpu": cpu}
    for controller, limit in wanted.items():
        if limit is None:
            continue
        why = _not_in_v2(groups, controller, divide=divide)
        if why is None and groups.unified is not None:
            writes += _v2(groups.unified, controller, limit)
        elif (parent := groups.v1.get(controller)) is not None and os.access(parent, os.W_OK):
            writes += _v1(parent, controller, limit)
        else:
            setting = {"memory": "kernel_memory_limit_bytes", "cpu": "kernel_cpu_limit"}[controller]
            obstacles.append(f"{setting} is not enforced: {why}")
    return KernelLimits(memory_bytes, cpu, tuple(writes), tuple(obstacles))


def _v2(parent: Path, controller: str, limit: float) -> list[Write]:
    if controller == "memory":
        return [
            Write(parent, "memory.max", str(int(limit))),
            Write(parent, "memory.swap.max", "0", required=False),
        ]
    return [Write(parent, "cpu.max", f"{round(limit * PERIOD_MICROSECONDS)} {PERIOD_MICROSECONDS}")]


def _v1(parent: Path, controller: str, limit: float) -> list[Write]:
    if controller == "memory":
        return [
            Write(parent, "memory.limit_in_bytes", str(int(limit))),
            Write(parent, "memory.memsw.limit_in_bytes", str(int(limit)), required=False),
        ]
    return [
        Write(parent, "cpu.cfs_period_us", str(PERIOD_MICROSECONDS)),
        Write(parent, "cpu.cfs_quota_us", str(round(limit * PERIOD_MICROSECONDS))),
    ]


def _not_in_v2(groups: Groups, controller: str, *, divide: bool) -> str | None:
    """Why the unified hierarchy does not give us that controller; None when it does."""
    if sys.platform != "linux":
        return "only Linux has control groups"
    group = groups.unified
    if group is None:
        return "there is no control group (v2) here"
    try:
        if controller not in (group / "cgroup.controllers").read_text().split():
            return f"the control group {group} has no {controller} controller; {HINT}"
        if not os.access(group, os.W_OK) or not os.access(group / "cgroup.subtree_control", os.W_OK):
            return f"the control group {group} is not ours to divide; {HINT}"
        if controller in (group / "cgroup.subtree_control").read_text().split():
            return None
        return _divide(group, controller, divide=divide)
    except OSError as error:
        return f"the control group {group} cannot be divided ({error.strerror}); {HINT}"


def _divide(group: Path, controller: str, *, divide: bool) -> str | None:
    """Have the controller in the groups below: for that, no process may be in this one itself."""
    enable = group / "cgroup.subtree_control"
    if divide:
        with contextlib.suppress(OSError):
            enable.write_text(f"+{controller}")  # the root of a hierarchy may have both
            return None
    processes = (group / "cgroup.procs").read_text().split()
    if foreign := [pid for pid in processes if int(pid) != os.getpid()]:
        return f"the control group {group} has {len(foreign)} other processes in it; {HINT}"
    if not divide:
        return None
    beside = group / "loommux-server"
    beside.mkdir(exist_ok=True)
    (beside / "cgroup.procs").write_text(str(os.getpid()))
    enable.write_text(f"+{controller}")
    return None
