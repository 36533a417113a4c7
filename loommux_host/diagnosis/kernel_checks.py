"""What works here and what does not, and why: the facts behind ``loommux doctor``.

Owns the findings: how kernels start, what is ended with them, what limits hold. Starts
nothing and changes nothing. `commands.doctor` prints them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from loommux_host.config import Config
from loommux_host.keeper.supervisor import obstacle
from loommux_host.processes import resource_limits
from loommux_host.processes.cgroups import own_group
from loommux_host.processes.transport_keys import transport_obstacles


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `good` is False when something that was asked for does not hold."""

    subject: str
    text: str
    good: bool = True


def findings(config: Config) -> list[Finding]:
    """Everything that is known before a server runs."""
    return [start(config), transport(config), containment(), *limits(config)]


def start(config: Config) -> Finding:
    """How kernels' processes are started."""
    why = obstacle(config.spawn)
    if why is not None:
        return Finding("start", f"spawn: every kernel gets a new interpreter, because {why}")
    return Finding("start", "fork: kernels are forked from a warm process, a keeper")


def transport(config: Config) -> Finding:
    """Who can reach the kernels' sockets."""
    if config.kernel_transport == "ipc":
        return Finding("transport", "unix sockets in a directory of this account alone; no kernel listens on a port")
    if (obstacles := transport_obstacles(config.kernel_transport)) != []:
        return Finding("transport", obstacles[0], good=False)
    return Finding("transport", "TCP on loopback, encrypted: who cannot read a kernel's connection file hears nothing")


def containment() -> Finding:
    """What ends with a kernel."""
    if sys.platform == "linux":
        group = own_group()
        extra = (
            f"also programs of other users, by control groups in {group}"
            if group
            else ("but for programs of other users, since no control group may be made here")
        )
        return Finding("containment", f"everything that a kernel has started ends with it, daemons included; {extra}")
    if sys.platform == "win32":
        return Finding("containment", "everything that a kernel has started ends with it, by a job object")
    return Finding(
        "containment", "what is in a kernel's session or carries LOOMMUX_KERNEL_ID ends with it; other daemons do not"
    )


def limits(config: Config) -> list[Finding]:
    """Whether what kernels may use can be enforced; where nothing is asked for, whether it could be."""
    asked = {"memory": config.kernel_memory_limit_bytes, "processors": config.kernel_cpu_limit}
    if not any(value is not None for value in asked.values()):
        return [Finding("limits", "none are set")]
    found = resource_limits.find(config.kernel_memory_limit_bytes, config.kernel_cpu_limit, divide=False)
    done = [f"{write.file} = {write.value}" for write in found.writes if write.required]
    held = [Finding("limits", f"held by control groups in {', '.join(map(str, found.parents))}: {', '.join(done)}")]
    return (held if done else []) + [Finding("limits", text, good=False) for text in found.obstacles]
