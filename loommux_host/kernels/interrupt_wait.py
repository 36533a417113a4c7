"""Interrupting one execution, and seeing what came of it (contract 4).

The kernel aims and escalates; here the aim is chosen and the outcome is watched, so that
nothing is claimed that was not seen. Who may interrupt whom is decided by `usecases.service`.
Called by `kernel`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from loommux_host.kernels.mirror import View
from loommux_host.kernels.process_life import Life
from loommux_host.kernels.submission import Sent
from loommux_host.kernels.wait_timers import Patience, follow
from loommux_kernel.shared.protocol import State, now

#: How long an interrupt waits to see what it did; processes are killed after two seconds.
SECONDS = 2.0
SECONDS_WITH_PROCESSES = 3.0
#: Between two looks at processes that are being ended.
LOOK_SECONDS = 0.1
#: How long the kernel may take to say whether an interrupt was felt.
FELT_SECONDS = 0.3


@dataclass(frozen=True)
class Processes:
    """What became of the cell's processes, with their commands.

    `ended` have gone; `alive` were signalled and are still there; `away` have left the
    kernel's session and were left alone.
    """

    ended: int = 0
    alive: tuple[tuple[int, str], ...] = ()
    away: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Effect:
    """Whether the cell's code got the interrupt, whether by a handler of its own, and what keeps it away if not."""

    felt: bool
    by_own_handler: bool
    obstacle: str | None = None


@dataclass(frozen=True)
class Interrupted:
    """`result` is a word of contract 4, or ``unresponsive`` when not even the aim is known.

    `answered`: the kernel has taken the request; `effect`: what is known of how the cell took it.
    """

    result: str
    view: View | None
    answered: bool = True
    effect: Effect | None = None
    processes: Processes = Processes()


async def interrupt(life: Life, number: int | None, by: str | None = None) -> Interrupted:
    """Interrupt what runs, or only In [`number`]; waits two seconds, three while processes are being ended.

    `by` is who wants it, in words, where an attached client is to be told.
    """
    view = life.mirror.running if number is None else life.mirror.by_number(number)
    if number is not None and (view is None or not view.running):
        return Interrupted("not_running", view)
    pending = life.pending if view is None else None
    aim = {
        "serial": view.serial if view else None,
        "submission": pending.submission.id if pending else None,
        "asked_at": now(),
        "by": by,
    }
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await life.ask("interrupt", aim, deadline=SECONDS)
    if answer is not None and answer["result"] != "sent":
        return await _missed(life, number, view)
    target = view or await _target(life, answer, pending)
    if target is None:
        return Interrupted("unresponsive" if answer is None else "idle", None)
    seconds = SECONDS_WITH_PROCESSES if answer and answer.get("pending_children") else SECONDS
    left = max(0.0, began + seconds - loop.time())
    await follow(life, lambda: not target.running, Patience(left, left))
    processes = await _processes(life, answer or {}, began + SECONDS_WITH_PROCESSES)
    effect = await _effect(life, target) if answer is not None else None
    if target.running:
        return Interrupted("interrupt_sent", target, answer is not None, effect, processes)
    return Interrupted(_ended(target), target, effect=effect, processes=processes)


def _ended(view: View) -> str:
    """Another interrupt may have ended it: then it has not "ended, not as interrupted"."""
    return "interrupted" if view.state is State.INTERRUPTED else "ended"


async def _missed(life: Life, number: int | None, view: View | None) -> Interrupted:
    """The kernel says that it does not run; the mirror catches up when it thought otherwise."""
    if view is not None and view.running:
        await life.mend()
    if view is not None and not view.running:
        return Interrupted(_ended(view), view)
    # Where no number was named the kernel may have been asked for a cell that was just sent, and has ended since.
    return Interrupted("idle" if number is None else "not_running", view)


async def _target(life: Life, answer: dict[str, Any] | None, pending: Sent | None) -> View | None:
    """What was interrupted, or will be when the kernel comes to it, though nobody had heard of its start."""
    if not (pending and pending.decided):
        await life.mend()
    if answer is not None and answer.get("serial") is not None:
        return life.mirror.by_serial(answer["serial"])
    return pending.view if pending else life.mirror.running


async def _effect(life: Life, target: View) -> Effect | None:
    """What the kernel says of it now; None when it does not answer, or another cell runs already."""
    status = await life.ask("status", deadline=FELT_SECONDS)
    if status is None or status["last_serial"] != target.serial:
        return None
    own = status.get("taken") == target.serial
    return Effect(own or bool(status["felt"]), own, status.get("obstacle"))


async def _processes(life: Life, answer: dict[str, Any], until: float) -> Processes:
    """Wait for the end of the processes that are pursued; what is there then."""
    pursued, away = set(answer.get("pending_children", ())), set(answer.get("left_children", ()))
    if not pursued and not away:
        return Processes()
    while True:
        there = [(p.pid, p.command) for p in await life.process.descendants()]
        alive = tuple(p for p in there if p[0] in pursued)
        if not alive or asyncio.get_running_loop().time() >= until:
            return Processes(len(pursued) - len(alive), alive, tuple(p for p in there if p[0] in away))
        await asyncio.sleep(LOOK_SECONDS)
