"""Interrupting one execution, and seeing what came of it (contract 4).

The kernel aims and escalates; here the aim is chosen and the outcome is watched, so that
nothing is claimed that was not seen. Who may interrupt whom is decided by `service`.
Called by `kernel`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from loommux_host.life import Life
from loommux_host.mirror import View
from loommux_host.submission import Sent
from loommux_host.waiting import Patience, follow
from loommux_kernel.protocol import State, now

#: How long an interrupt waits to see what it did; processes are killed after two seconds.
SECONDS = 2.0
SECONDS_WITH_PROCESSES = 3.0


@dataclass(frozen=True)
class Interrupted:
    """`result` is a word of contract 4, or ``unresponsive`` when not even the aim is known.

    `answered`: the kernel has taken the request. `survivors` are processes out of its reach.
    """

    result: str
    view: View | None
    answered: bool = True
    survivors: tuple[tuple[int, str], ...] = ()


async def interrupt(life: Life, number: int | None) -> Interrupted:
    """Interrupt what runs, or only In [`number`]; waits two seconds, three while processes are being ended."""
    view = life.mirror.running if number is None else life.mirror.by_number(number)
    if number is not None and (view is None or not view.running):
        return Interrupted("not_running", view)
    pending = life.pending if view is None else None
    aim = {
        "serial": view.serial if view else None,
        "submission": pending.submission.id if pending else None,
        "asked_at": now(),
    }
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await life.ask("interrupt", aim, deadline=SECONDS)
    if answer is not None and answer["result"] != "sent":
        return await _missed(life, str(answer["result"]), number, view)
    target = view or await _target(life, answer, pending)
    if target is None:
        return Interrupted("unresponsive" if answer is None else "idle", None)
    seconds = SECONDS_WITH_PROCESSES if answer and answer.get("pending_children") else SECONDS
    left = max(0.0, began + seconds - loop.time())
    await follow(life, lambda: not target.running, Patience(left, left))
    if target.running:
        return Interrupted("interrupt_sent", target, answer is not None, await _survivors(life, answer))
    result = "interrupted" if target.state is State.INTERRUPTED else "ended"
    return Interrupted(result, target, survivors=await _survivors(life, answer))


async def _missed(life: Life, result: str, number: int | None, view: View | None) -> Interrupted:
    """The kernel says that it does not run; the mirror catches up when it thought otherwise."""
    if view is not None and view.running:
        await life.mend()
    if view is not None and not view.running:
        return Interrupted("ended", view)
    return Interrupted("not_running" if number is not None else result, view)


async def _target(life: Life, answer: dict[str, Any] | None, pending: Sent | None) -> View | None:
    """What was interrupted, or will be when the kernel comes to it, though nobody had heard of its start."""
    if not (pending and pending.decided):
        await life.mend()
    if answer is not None and answer.get("serial") is not None:
        return life.mirror.by_serial(answer["serial"])
    return pending.view if pending else life.mirror.running


async def _survivors(life: Life, answer: dict[str, Any] | None) -> tuple[tuple[int, str], ...]:
    """The processes of the cell that are out of an interrupt's reach, as far as they still live."""
    left = set((answer or {}).get("left_children", ()))
    if not left:
        return ()
    return tuple((p.pid, p.command) for p in await life.process.descendants() if p.pid in left)
