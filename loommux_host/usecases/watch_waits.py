"""Waiting for a watch, by name or for whichever ends first (contract 8.4).

Owns which watch a call means and what ends it. Watches are told of by events, so that
waiting asks the kernel nothing. Called by `service`.
"""

from __future__ import annotations

from loommux_host.facts.phrases import one_line
from loommux_host.facts.refusals import Refused, invalid_argument, watch_not_found
from loommux_host.facts.results import WatchAnswer
from loommux_host.facts.watches import Watch, Watches
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.wait_timers import Patience, Progress, reporting
from loommux_kernel.shared.protocol import now

NEXT = "next"


async def wait(
    kernel: Kernel, name: str, execution: int | None, process: int | None, patience: Patience, progress: Progress | None
) -> WatchAnswer:
    """The end of that watch, or that it has not ended yet. Raises `Refused` when there is nothing to wait for."""
    if execution is not None or process is not None:
        raise Refused(invalid_argument("watch", name, "wait for an execution or for a watch, not for both"))
    life = kernel.life
    watches = life.mirror.watches if life is not None else Watches()
    chosen = None if name == NEXT else watches.named(name)
    if life is None or (chosen is None if name != NEXT else not watches.pending):
        raise Refused(watch_not_found(name, one_line(kernel.name), [w.name for w in watches.pending], _last(watches)))
    began, over = now(), list(watches.ended)

    def first() -> Watch | None:
        """The one that was meant, or the first that has ended since."""
        if chosen is not None:
            return None if chosen.pending else chosen
        return next((w for w in watches.ended if w not in over), None)

    async with reporting(progress, lambda: (now() - began, ", ".join(w.name for w in watches.pending))):
        ended_by = None
        if first() is None:
            ended_by = await kernel.follow(life, lambda: first() is not None, patience)
    ended = first()
    return WatchAnswer(
        watch=ended or chosen,
        pending=watches.pending,
        ended_by=None if ended is not None else ended_by,
        process=life.process.process,
    )


def _last(watches: Watches) -> Watch | None:
    return watches.ended[-1] if watches.ended else None
