"""What came of a kernel that did nothing, as the refusal that the caller is given.

Owns which refusal stands for which outcome and exception of `kernels`. Called by `service`.
"""

from __future__ import annotations

import logging

from loommux_host.facts import refusals
from loommux_host.facts.refusals import Refused
from loommux_host.facts.results import Refusal
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.outcomes import Busy, KernelClosed, KernelStartFailed, NotTaken
from loommux_host.kernels.record_reads import RecordsBehind, RecordsGone, RecordsUnreadable
from loommux_host.kernels.registry import TooManyKernels
from loommux_host.sessions.callers import Caller
from loommux_kernel.shared.protocol import Origin, now

log = logging.getLogger(__name__)

NO_THREAD = "can't start new thread"


def refusal(kernel: Kernel | None, error: Exception, *, stopping: bool = False) -> Refusal:
    """`stopping`: the server is; else only its kernel can be closed."""
    name = kernel.name if kernel else ""
    match error:
        case Refused():
            return error.refusal
        case KernelStartFailed():
            return refusals.kernel_start_failed(name, str(error), error.log_tail)
        case TooManyKernels():
            return refusals.refuse("too_many_kernels", reason=str(error))
        case RecordsGone() if kernel is not None:
            return refusals.refuse("records_gone", kernel=name)
        case RecordsBehind() if kernel is not None:
            return refusals.refuse("records_behind", kernel=name)
        case RecordsUnreadable() if kernel is not None:
            return refusals.refuse("records_unreadable", kernel=name)
        case KernelClosed() if kernel is not None and not stopping:
            return refusals.kernel_closed(name)
        case _:
            return refusals.refuse("server_stopping")


def refused_by_the_system(what: str, error: OSError | MemoryError | RuntimeError) -> Refusal:
    """What is said when there is nothing left to answer with; any other error is ours, and raised again."""
    if isinstance(error, RuntimeError) and NO_THREAD not in str(error):
        raise error
    log.warning("%s: %s: %s", what, type(error).__name__, error)
    return refusals.refuse("system_error", what=what, error=str(error) or "there is no memory left")


def busy(caller: Caller, kernel: Kernel, busy: Busy) -> Refusal:
    view = busy.view
    if view is not None:
        seconds = (view.completed_at or now()) - view.submitted_at
        mine = _is_mine(caller, view.origin)
        return refusals.busy(view.number, kernel.name, seconds, view.origin, mine, waiting=busy.awaits_input)
    submission = busy.sent.submission if busy.sent else None
    if submission is None:
        return refusals.kernel_unresponsive(kernel.name, kernel.facts().stale_seconds or 0.0, "Nothing was run.")
    mine = _is_mine(caller, submission.origin)
    return refusals.busy(None, kernel.name, now() - submission.submitted_at, submission.origin, mine)


def _is_mine(caller: Caller, origin: Origin) -> bool:
    """People share one id, and are told who of them it was."""
    return origin.client == caller.id and not caller.person


def not_taken(kernel: Kernel, outcome: NotTaken, held_at: str | None) -> Refusal:
    if outcome.death is not None:
        return refusals.kernel_died(outcome.death, kernel.name, unknown=outcome.unknown)
    if kernel.closed:
        return refusals.kernel_closed(kernel.name, unknown=outcome.unknown or not outcome.withdrawn)
    undone = refusals.WITHDRAWN if outcome.withdrawn and not outcome.unknown else refusals.MAY_RUN
    return refusals.kernel_unresponsive(kernel.name, outcome.seconds, undone, held_at)
