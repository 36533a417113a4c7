"""The use-cases that end something: interrupt and restart, and whose cell may be interrupted.

A running cell of someone who is still there is interrupted only when its number is named
(contract 4); its owner is then told. Called by `service`.
"""

from __future__ import annotations

from loommux_host.facts.phrases import cell, one_line, sender
from loommux_host.facts.refusals import NOT_FELT, Refused, kernel_unresponsive, not_yours
from loommux_host.facts.results import InterruptAnswer, RestartAnswer
from loommux_host.kernels.interrupt_wait import SECONDS, Interrupted
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.mirror import View
from loommux_host.kernels.registry import Registry, caller_id
from loommux_host.sessions.callers import PRESENCE, Caller, Sessions
from loommux_host.usecases.execution_selection import of_view
from loommux_kernel.shared.protocol import OriginKind, now

#: Said whatever the cell did then.
OWN_HANDLER = "; the cell's own handler of SIGINT has taken the interrupt"
NATIVE_CODE = "native code holds it off"
#: By the kernel's word.
OBSTACLES = {"ignored": "SIGINT is ignored while it runs", "blocked": "the cell blocks SIGINT"}


async def interrupt(sessions: Sessions, caller: Caller, kernel: Kernel, number: int | None) -> InterruptAnswer:
    """Interrupt the running cell, or only In [`number`]. Raises `Refused`."""
    life = kernel.life
    running = life.mirror.running if life else None
    theirs = running if running and running.origin.client != caller.id else None
    if theirs and number is None and not caller.person and await _still_there(sessions, kernel, theirs):
        raise Refused(not_yours(theirs.number, kernel.name, now() - theirs.submitted_at, theirs.origin))
    outcome = await kernel.interrupt(number, sender(caller.origin()) if theirs else None)
    if outcome.result == "unresponsive":
        seconds = max(kernel.facts().stale_seconds or 0.0, SECONDS)
        raise Refused(kernel_unresponsive(kernel.name, seconds, NOT_FELT))
    if theirs and outcome.view is theirs and outcome.result != "not_running":
        _tell_owner(caller, kernel, theirs, outcome)
    return InterruptAnswer(
        result=outcome.result,
        asked=number,
        execution=of_view(life, outcome.view) if life and outcome.view else None,
        detail=_detail(outcome),
        own_handler=outcome.effect is not None and outcome.effect.by_own_handler,
        ended_processes=outcome.processes.ended,
        still_alive=list(outcome.processes.alive),
        survivors=list(outcome.processes.away),
    )


async def restart(caller: Caller, kernel: Kernel, registry: Registry) -> RestartAnswer:
    """Replace the process; says what ended with it. Raises `KernelStartFailed`."""
    done = await kernel.restart(sender(caller.origin()), caller.id)
    old = done.old
    return RestartAnswer(
        ended_execution=of_view(old, done.killed) if old and done.killed else None,
        ended_processes=max(done.started, old.death.ended_processes) if old and old.death else 0,
        left=old.death.left if old and old.death else (),
        ended_watches=list(done.watches),
        goes_on=_sent_by(kernel, registry),
        attached_clients=list(done.clients),
        old_process=old.process.process if old else 0,
        old_pid=old.pid if old else None,
        new_process=done.new.process.process,
        new_pid=done.new.pid,
    )


def _sent_by(kernel: Kernel, registry: Registry) -> list[str]:
    """What runs in other kernels and was sent by code in this one."""
    running = [(one, one.life.mirror.running) for one in registry.all() if one.life is not None and one.life.alive]
    return [
        f"{cell(view.number)} of {one_line(registry.path(one))}"
        for one, view in running
        if view is not None and view.origin.client == caller_id(kernel)
    ]


async def _still_there(sessions: Sessions, kernel: Kernel, running: View) -> bool:
    """Whether the sender could still want the cell: a call or stream, or a sign within a minute."""
    origin = running.origin
    if origin.kind is not OriginKind.CLIENT:
        return sessions.present(origin.client)
    heard_at = await kernel.heard_from(origin.client)
    return now() - (running.started_at if heard_at is None else heard_at) < PRESENCE


def _tell_owner(caller: Caller, kernel: Kernel, view: View, outcome: Interrupted) -> None:
    what = "was interrupted" if outcome.result == "interrupted" else "was sent an interrupt"
    process = kernel.life.process.process if kernel.life else 0
    text = f"{cell(view.number)} {what} by {sender(caller.origin())}"
    kernel.journal.notice(process, now(), text, only_for=view.origin.client)


def _detail(outcome: Interrupted) -> str:
    """What is known of how the cell took it, to follow ``In [7] still runs after 12.4 s``."""
    effect = outcome.effect
    if effect is not None and effect.by_own_handler:
        return OWN_HANDLER
    if outcome.result != "interrupt_sent":
        return ""
    if not outcome.answered:
        return ", and the kernel has not taken the interrupt yet: native code holds the interpreter, or it is stopped"
    if effect is None:
        return "; it has caught the interrupt, or native code holds it off"
    if effect.felt:
        return "; it has caught the interrupt and goes on"
    return f"; it has not felt the interrupt: {OBSTACLES.get(effect.obstacle or '', NATIVE_CODE)}"
