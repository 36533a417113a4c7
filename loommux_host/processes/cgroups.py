"""Control groups for kernels' processes: an extra, where this server may make them (Linux, cgroup v2).

A group holds whatever a process starts, even programs of another user that signals may not
reach, and is ended by one write. The init makes, fills, ends and removes it (`init.descendants`);
this finds out where, and ends those of dead servers. Called by `runtime_files` and `launcher`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

END_SECONDS = 1.0


def own_group() -> Path | None:
    """The group that this process is in, when groups can be made in it and ended."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError, StopIteration):
        mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
        root = next(Path(fields[1]) for fields in mounts if fields[2] == "cgroup2")
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        group = root / next(line for line in lines if line.startswith("0::")).removeprefix("0::").lstrip("/")
        if os.access(group, os.W_OK) and os.access(group / "cgroup.procs", os.W_OK):
            return group
    return None


def end_groups(parent: Path, prefix: str) -> None:
    """End and remove the groups that begin so. Blocks for up to `END_SECONDS` each: call it in a thread."""
    for group in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            (group / "cgroup.kill").write_text("1")
        deadline = time.monotonic() + END_SECONDS
        while group.exists() and time.monotonic() < deadline:
            try:
                group.rmdir()
            except OSError:
                time.sleep(0.02)  # what was killed is still ending
