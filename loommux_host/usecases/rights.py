"""What a kernel may do with another kernel (contract 8).

A kernel lists, finds and reads all kernels. It changes those of its home; in others it runs
cells, and ends them, only where no session but its own works. Owns that rule; who works where
is known to `sessions` and `sessions.lease_enforcement`. Asked by `api` before anything is done; people and
sessions are not held back here.
"""

from __future__ import annotations

from dataclasses import dataclass

from loommux_host.facts.phrases import one_line
from loommux_host.facts.refusals import Refused, refuse
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.registry import Registry
from loommux_host.sessions.callers import Caller, Sessions
from loommux_host.sessions.lease_enforcement import LeaseEnforcement


@dataclass(frozen=True)
class Rights:
    """The rights of the kernels of one server."""

    registry: Registry
    sessions: Sessions
    leasing: LeaseEnforcement

    def change(self, caller: Caller, kernel: Kernel) -> None:
        """Whether it may be restarted, renamed or recycled by the caller. Raises `Refused`."""
        if self._abroad(caller, kernel):
            self._refuse(kernel, "restarted, renamed or recycled from here")

    def run(self, caller: Caller, kernel: Kernel) -> None:
        """Whether the caller may run and interrupt cells there. Raises `Refused`."""
        if self._abroad(caller, kernel):
            home = self.registry.by_id(caller.home or "")
            theirs = self._workers(kernel) - (self._workers(home) if home else set())
            if theirs:
                self._refuse(kernel, "used to run or end cells from here, because a session works there")

    def _abroad(self, caller: Caller, kernel: Kernel) -> bool:
        return caller.home is not None and caller.home != self.registry.home_of(kernel)

    def _workers(self, kernel: Kernel) -> set[str]:
        """The sessions that work in the kernel or in another of its home."""
        home = self.registry.by_id(self.registry.home_of(kernel)) or kernel
        there = {who for one in (home, *self.registry.children(home.id)) for who in self.sessions.workers(one)}
        return there | self.leasing.holders(home)

    def _refuse(self, kernel: Kernel, what: str) -> None:
        raise Refused(refuse("other_home", kernel=one_line(self.registry.path(kernel)), what=what))
