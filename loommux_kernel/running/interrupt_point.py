"""Where a signal has caught the main thread, read from its frames.

Owns the rule which point in a program may be left by a `KeyboardInterrupt`: the user's
code may, IPython's own work around it may not, since an exception there would leave
IPython half done and the record untrue. Knows IPython's code objects (pinned by a test),
not signals. Called by `interrupts` inside the signal handler, so it takes no lock.
"""

from __future__ import annotations

import dis
import sys
from enum import Enum, auto
from types import FrameType
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.events import EventManager
from IPython.core.interactiveshell import InteractiveShell

from loommux_kernel.capture.fork_hooks import FORKING
from loommux_kernel.running.hooks import Events

_TRIGGERS = {EventManager.trigger.__code__, Events.trigger.__code__}
_DISPLAY = DisplayHook.__call__.__code__
_RUN_NODES = InteractiveShell.run_ast_nodes.__code__
_RUN_CELL = InteractiveShell.run_cell_async.__code__
#: What may follow the last call of a cell without anything of the user's happening any more.
_TRAILING = {"CACHE", "POP_TOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST", "NOP", "PRINT_EXPR", "CALL_INTRINSIC_1"}


class InterruptPoint(Enum):
    """What the main thread was doing."""

    #: The user's code, or code that it called: raise.
    INSIDE = auto()
    #: Code that IPython calls around the cell and whose failures it shrugs off: raise, and again
    #: before the next statement.
    HOOK = auto()
    #: IPython's own work before, between or after the user's statements: put off.
    MACHINERY = auto()
    #: At the last call of the user's last statement, which may have returned: put off,
    #: unless the next signal finds it there again.
    FINISHING = auto()
    #: The cell's coroutine waits, and the loop waits with it: cancel.
    SUSPENDED = auto()
    #: The cell's coroutine waits while other work on the loop runs: cancel.
    ELSEWHERE = auto()


def root_of(frame: FrameType | None) -> FrameType | None:
    """The outermost frame of that stack."""
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


def interrupt_point(
    frame: FrameType | None, namespace: dict[str, Any], *, awaiting: bool, root: FrameType | None
) -> InterruptPoint:
    """Classify the innermost frame. `awaiting`: the cell is a coroutine that the loop drives.

    `root` is the outermost frame of all that runs on the main thread, but for greenlets.
    """
    user: FrameType | None = None
    running = not awaiting
    hooked = finalising = displaying_nothing = False
    pool = getattr(sys.modules.get("multiprocessing.pool"), "Pool", None)
    making_pool = pool.__init__.__code__ if pool is not None else None
    here = outermost = frame
    while here is not None:
        code = here.f_code
        if here.f_globals is namespace:
            user = user or here
        elif code in _TRIGGERS:
            hooked = True
        elif code is _RUN_CELL:
            running = True
        elif user is None and code is _DISPLAY:
            displaying_nothing = here.f_locals.get("result") is None
        finalising = finalising or code.co_name == "__del__" or code is FORKING or code is making_pool
        outermost, here = here, here.f_back
    if root is not None and outermost is not None and outermost is not root and not finalising:
        return InterruptPoint.INSIDE  # the cell waits as gevent waits: what is raised in its hub comes to the cell
    if not running:
        return InterruptPoint.ELSEWHERE if user else InterruptPoint.SUSPENDED
    if finalising:  # an exception there is printed and forgotten, or leaves a pool that starts workers for ever
        return InterruptPoint.MACHINERY
    if user is not None:
        over = (user is frame or displaying_nothing) and _nothing_left(user)
        return InterruptPoint.FINISHING if over else InterruptPoint.HOOK if hooked else InterruptPoint.INSIDE
    return InterruptPoint.HOOK if hooked else InterruptPoint.MACHINERY


def _nothing_left(user: FrameType) -> bool:
    """Whether this is the cell's last statement at its last call, with nothing to be done after it.

    The interpreter looks for signals right after a call: raised there, an interrupt would
    say of a cell that it did not do what it has done. A call that still goes on (a sleep)
    looks the same.
    """
    if user.f_code.co_name != "<module>":
        return False
    here = user.f_back
    while here is not None and here.f_code is not _RUN_NODES:
        here = here.f_back
    if here is None:
        return False
    last = here.f_locals.get("to_run") or [(None, "")]
    if here.f_locals.get("node") is not last[-1][0]:
        return False
    rest = [i for i in dis.get_instructions(user.f_code) if i.offset > user.f_lasti]
    at = next((i for i in dis.get_instructions(user.f_code) if i.offset == user.f_lasti), None)
    returned = at is not None and (at.opname.startswith(("CALL", "PRINT_EXPR", "PRECALL")))
    return returned and all(i.opname in _TRAILING for i in rest)
