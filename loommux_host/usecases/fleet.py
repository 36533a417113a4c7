"""The use-cases about whole kernels: list, find, open a child, rename, recycle, retire.

Owns what a kernel looks like from outside (the snapshot of contract 10) and in which
order a kernel is let go of by everybody who knows it. Cells and their output are
`service`'s. Called by the API and the console's face; `sessions.lease_enforcement` has kernels retired here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from loommux_host.facts.phrases import attached, cell, first_line, how_ended, one_line, sender
from loommux_host.facts.refusals import Refused, invalid_argument, kernel_not_found, kernel_unresponsive, refuse
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.mirror import View
from loommux_host.kernels.registry import InvalidName, Registry
from loommux_host.sessions.binding import executions
from loommux_host.sessions.callers import Caller, Sessions
from loommux_host.sessions.lease_enforcement import HeldBy, LeaseEnforcement, scope_of
from loommux_host.usecases.execution_selection import named
from loommux_host.usecases.inspection import attach_command, qtconsole_command
from loommux_host.usecases.resource_usage import Load, ResourceUsage
from loommux_kernel.shared.protocol import now

#: How long a kernel has to answer when a person asks for its health.
HEALTH_SECONDS = 2.0
#: Contract 10 has four; a kernel whose first process is on its way has none yet.
KERNEL_STATES = {"starting": "stopped"}


class Holder(Protocol):
    """Who knows which kernel each caller works in: the binder of a server."""

    def holds(self, kernel: Kernel) -> bool:
        """Whether a caller holds the kernel that has no lease."""
        ...

    def forget_kernel(self, kernel: Kernel) -> None: ...


@dataclass
class Fleet:
    """All kernels of a server."""

    registry: Registry
    sessions: Sessions
    leasing: LeaseEnforcement
    holder: Holder
    gauges: ResourceUsage
    #: Main kernels that people open live as long as the server, which keeps no leases.
    lasting: bool = False

    def __post_init__(self) -> None:
        self.leasing.retire = self.retire

    # -- finding -----------------------------------------------------------------

    def find(self, id: str) -> Kernel:
        """The kernel with that id. Raises `Refused`."""
        kernel = self.registry.by_id(id)
        if kernel is None:
            raise Refused(self._not_found(id))
        return kernel

    def lookup(self, path: str, context: str | None = None) -> Kernel:
        """By path or id; a bare name from the home of the kernel `context`, else a main kernel's. Raises `Refused`."""
        found = self._found(path, self.registry.home_of(self.find(context)) if context else None)
        if found is None:
            raise Refused(self._not_found(path))
        return found

    def _found(self, path: str, home: str | None) -> Kernel | None:
        return self.registry.find(path) if home is None else self.registry.find_from(home, path)

    def open(self, path: str, context: str | None, by: Caller) -> tuple[Kernel, bool]:
        """The kernel at `path`, opened if missing, and whether it was. Raises `Refused`.

        A kernel opens children of its own home only. People open main kernels too, by name and without `context`.
        """
        home = self.registry.home_of(self.find(context)) if context else None
        if home is not None and (known := self._found(path, home)) is not None:
            return known, False
        main, _, child = path[1:].partition("/") if path.startswith("/") else ("", "", path)
        if main and child:
            owner = self.registry.named(main)
            if owner is None or by.home not in (None, owner.id):
                raise Refused(self._not_found(path if owner else f"/{main}"))
            return self._open(path, child, owner.id)
        if main and by.home is not None:
            raise Refused(
                invalid_argument("path", path, "code in a kernel opens children of its home, no main kernels")
            )
        kernel, new = self._open(path, main or child, None if main else home)
        if new and kernel.home is None and not self.lasting:
            self.leasing.opened_by_person(kernel)
        return kernel, new

    def _open(self, path: str, name: str, home: str | None) -> tuple[Kernel, bool]:
        try:
            opened = self.registry.open(name, home=home)
        except InvalidName as error:
            raise Refused(invalid_argument("path", path, str(error))) from None
        return opened.kernel, opened.new

    # -- changing -----------------------------------------------------------------

    async def rename(self, kernel: Kernel, wanted: str, by: Caller) -> str:
        """Returns the name it got; its process knows it then. Those who work there are told. Raises `Refused`."""
        before = kernel.name
        try:
            name = self.registry.rename(kernel, wanted)
        except InvalidName as error:
            raise Refused(invalid_argument("name", wanted, str(error))) from None
        if name != before:
            if kernel.private:
                kernel.private = False
                self.leasing.named(kernel)
            kernel.tell(f"This kernel was renamed by {_by(by)}: {one_line(before)} is {one_line(name)} now.")
            await kernel.knows_its_name()
        return name

    async def recycle(self, kernel: Kernel, by: Caller, *, force: bool = False) -> None:
        """End the kernel with its children, a busy one only by force. Raises `Refused`."""
        busy = [one for one in (kernel, *self.registry.children(kernel.id)) if one.life and one.life.busy]
        if busy and not force:
            await named(busy[0])
            running = busy[0].life.mirror.running if busy[0].life else None
            what = f"{cell(running.number if running else None)} of {one_line(busy[0].name)} is running"
            raise Refused(refuse("kernel_busy", what=what))
        home = self.registry.by_id(kernel.home) if kernel.home else None
        if home is not None and by.person:
            home.tell(f"The child kernel {one_line(kernel.name)} was recycled by {_by(by)}.")
        await self.retire(kernel, f"it was recycled by {_by(by)}")

    async def recycle_all(self, by: Caller, *, idle_only: bool) -> list[str]:
        """Recycle all, or what is idle and held by nobody; returns the names.

        For a kernel all are the children of its home but itself, for people the main kernels.
        """
        among = self.registry.mains() if by.home is None else self.registry.children(by.home)
        going = [kernel for kernel in among if kernel.id != by.kernel and (not idle_only or self._is_free(kernel))]
        await asyncio.gather(*(self.recycle(kernel, by, force=True) for kernel in going))
        return [kernel.name for kernel in going]

    def retire(self, kernel: Kernel, reason: str) -> Awaitable[object]:
        """Let it go everywhere at once; what is returned is the end of its processes."""
        children = self.registry.children(kernel.id)
        ending = self.registry.retire(kernel, by=reason)
        for one in (kernel, *children):
            self.leasing.closed(one, reason)
            self.holder.forget_kernel(one)
            self.sessions.forget_kernel(one)
        return ending

    # -- looking -------------------------------------------------------------------

    async def snapshots(self) -> list[dict[str, Any]]:
        """All kernels, each main kernel before its children."""
        order = [one for main in self.registry.mains() for one in (main, *self.registry.children(main.id))]
        loads = await self.gauges.of(kernel.facts().pid for kernel in order)
        return list(await asyncio.gather(*(self._snapshot(kernel, loads) for kernel in order)))

    async def snapshot(self, kernel: Kernel) -> dict[str, Any]:
        """One kernel as contract 10 lists it. Changes nothing."""
        return await self._snapshot(kernel, await self.gauges.of([kernel.facts().pid]))

    async def _snapshot(self, kernel: Kernel, loads: Mapping[int | None, Load]) -> dict[str, Any]:
        seen = await kernel.seen()
        facts, life = kernel.facts(), kernel.life
        load = loads.get(facts.pid, Load())
        holders = self.leasing.held_by(kernel)
        connection_file = life.process.launch.connection_file if life else None
        return {
            "resource_id": kernel.id,
            "name": kernel.name,
            "path": self.registry.path(kernel),
            "scope": "child" if kernel.home else scope_of(kernel),
            "home": kernel.home,
            "state": self._state(kernel),
            "kernel_state": KERNEL_STATES.get(kernel.state, kernel.state),
            "kernel_pid": facts.pid,
            "process": facts.process or None,
            "busy": facts.busy,
            "current_execution": _execution(life.mirror.running) if life else None,
            "recent_execution": _execution(life.mirror.recent) if life else None,
            "execution_count": executions(kernel),
            "idle_since": life.mirror.idle_since if life and life.alive and not life.busy else None,
            "stale_seconds": _rounded(facts.stale_seconds),
            "held_at": seen.held_at,
            "opened_at": kernel.opened_at,
            "processes": _processes(kernel),
            "leases": [_lease(one) for one in holders],
            "autoclose": self.leasing.closes_with_leases(kernel),
            "held_alone": _alone(self.leasing.alone_in(kernel)),
            "lease_count": sum(one.lease.held for one in holders),
            "retention_remaining_seconds": _rounded(self.leasing.retention_remaining(kernel)),
            "attached_clients": [attached(client) for client in seen.clients],
            "rss_bytes": load.rss_bytes,
            "cpu_percent": load.cpu_percent,
            "connection_file": connection_file,
            "attach_command": attach_command(connection_file) if connection_file else None,
            "qtconsole_command": qtconsole_command(connection_file) if connection_file else None,
        }

    def release(self, kernel: Kernel, by: Caller) -> str | None:
        """Let others work in a kernel that a session holds alone; the label of that session, None if there is none."""
        holder = self.leasing.release_alone(kernel)
        if holder is not None:
            kernel.tell(f"This kernel was released by {_by(by)}: {holder} does not hold it alone any more.")
        return holder

    async def health(self, kernel: Kernel) -> dict[str, Any]:
        """Whether the kernel answers, asked now."""
        began = now()
        answer = await kernel.life.ask("status", deadline=HEALTH_SECONDS) if kernel.life and kernel.life.alive else None
        return {
            "ok": True,
            "answers": answer is not None,
            "seconds": round(now() - began, 3) if answer is not None else None,
            "kernel_state": KERNEL_STATES.get(kernel.state, kernel.state),
        }

    async def variables(self, kernel: Kernel) -> dict[str, Any]:
        """The kernel's variables, asked now; none without a process. Raises `Refused`."""
        life = kernel.life
        answer: dict[str, Any] | None = {"variables": [], "total": 0}
        if life is not None and life.alive:
            answer = await life.ask("variables", deadline=HEALTH_SECONDS) or (None if life.alive else answer)
        if answer is None:
            waited = max(kernel.facts().stale_seconds or 0.0, HEALTH_SECONDS)
            raise Refused(kernel_unresponsive(kernel.name, waited, "Its variables cannot be had."))
        state = KERNEL_STATES.get(kernel.state, kernel.state)
        return {"process": life.process.process if life and life.alive else None, "kernel_state": state, **answer}

    def _state(self, kernel: Kernel) -> str:
        if self.leasing.is_orphaned(kernel):
            return "orphaned"
        if kernel.state == "running":
            return "busy" if kernel.life and kernel.life.busy else "idle"
        return kernel.state

    def _is_free(self, kernel: Kernel) -> bool:
        family = (kernel, *self.registry.children(kernel.id))
        held = self.holder.holds(kernel) or any(one.lease.held for one in self.leasing.held_by(kernel))
        return not held and not any(one.life and one.life.busy for one in family)

    def _not_found(self, reference: str):
        retired = self.leasing.why_retired(reference)
        return kernel_not_found(reference, self.registry.paths(), str(retired) if retired else "")


def _processes(kernel: Kernel) -> list[dict[str, Any]]:
    """The kernel's processes whose records can be read, newest first, and how those ended that have."""
    return [
        {
            "process": life.process.process,
            "pid": life.pid,
            "started_at": life.process.started_at,
            "ended_at": life.death.at if life.death else None,
            "how": one_line(how_ended(life.death)) if life.death else None,
        }
        for life in kernel.lives()
    ]


def _execution(view: View | None) -> dict[str, Any] | None:
    if view is None:
        return None
    return {
        "execution": view.number,
        "state": view.state,
        "submitted_at": view.submitted_at,
        "completed_at": view.completed_at,
        "elapsed_seconds": round((view.completed_at or now()) - view.submitted_at, 3),
        "origin": {"kind": view.origin.kind, "label": view.origin.label, "client": view.origin.client},
        "source": first_line(view.source, 200),
        "last_line": one_line(view.last_line),
    }


def _lease(one: HeldBy) -> dict[str, Any]:
    lease = one.lease
    return {
        "holder": one.label,
        "mode": lease.mode,
        "generation": lease.generation,
        "standing": lease.standing,
        "held": lease.held,
        "remaining_seconds": _rounded(lease.remaining_seconds),
        "client_address": one.address,
    }


def _alone(held: tuple[str, float] | None) -> dict[str, Any] | None:
    return None if held is None else {"holder": held[0], "since": round(held[1], 3)}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _by(caller: Caller) -> str:
    return sender(caller.origin())
