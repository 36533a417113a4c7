"""What IPython's shell has to do differently so that a cell ends as it really ended.

Owns the points where a put-off interrupt may be raised, an interrupted `await` shown as
what it is, and that nothing IPython does on the side (formatting an exception again for a
history that nobody keeps, running a transformation twice) changes a cell's end or its time.
What cells see of stdin, exits, shell commands and tracebacks is `shell`'s. Mixed into the
kernel's shell class by `kernel`.
"""

from __future__ import annotations

import os
import sys
from asyncio import CancelledError
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from IPython.core.events import available_events

from loommux_kernel.executions.gate import Execution
from loommux_kernel.inside.loommux_object import Loommux, put_in_namespace
from loommux_kernel.running import hooks
from loommux_kernel.running.display_hook import WatchedTrap
from loommux_kernel.running.interrupts import Interrupts

if TYPE_CHECKING:
    from ipykernel.zmqshell import ZMQInteractiveShell as Base
else:
    Base = object

_PACKAGE = str(Path(__file__).parent.parent) + os.sep
#: `In` is filled up to a number that IPython skipped, but not with millions of blanks.
PADDING_LIMIT = 100_000
Prepared = tuple[str, str, bool]


class Guard(Base):
    """See the module. `interrupts` is set by the kernel, before anything runs."""

    parent: Any
    displayhook: Any
    capture: Any
    user_module: Any
    interrupts: Interrupts | None = None
    #: The cell about to run: as sent, transformed, and whether it awaits anything.
    prepared: Prepared | None = None
    #: Whose code runs, for what is said about it.
    running: Callable[[], Execution | None] = staticmethod(lambda: None)
    _loommux: Loommux | None = None
    _shown: BaseException | None = None
    #: The last failure of a hook that was told of, and of which execution.
    _told_of: tuple[Execution | None, str] | None = None

    def prepare(self, interrupts: Interrupts, running: Callable[[], Execution | None], loommux: Loommux) -> None:
        """Connect with the rest of the kernel, before anything runs."""
        self.interrupts, self.running = interrupts, running
        self.events.tell = self._hook_failed
        self.displayhook.number = lambda: execution.number if (execution := running()) else None
        self._loommux = loommux
        put_in_namespace(self, loommux)

    # -- what is kept from one cell to the next -------------------------------------

    def init_user_ns(self) -> None:
        """Also after a `%reset`: the user finds what was there at first, multiprocessing what a module has."""
        super().init_user_ns()
        for name, value in vars(ModuleType("__main__")).items():
            self.user_module.__dict__.setdefault(name, value)
        if self._loommux is not None:
            put_in_namespace(self, self._loommux)

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> Any:
        """As IPython's; a soft `%reset` takes variables away one by one, and what the user put in our place too."""
        __tracebackhide__ = True
        result = super().run_line_magic(magic_name, line, _stack_depth=_stack_depth + 1)
        if magic_name == "reset" and self._loommux is not None:
            put_in_namespace(self, self._loommux)
        return result

    def forget_failures(self) -> None:
        """ipykernel would report an earlier cell's failure as this one's."""
        self._last_traceback = None
        self._last_traceback_during_displayhook = False
        self._shown = self.displayhook.msg = None

    def display_error(self) -> BaseException | None:
        """What the display of this cell's result raised; IPython shows it and calls the cell a success."""
        shown, self._shown = self._shown, None
        return shown if self._last_traceback_during_displayhook else None

    def take_number(self, number: int) -> bool:
        """Let the next cell be `In[number]`; whether the counter had to be changed for that."""
        changed = self.execution_count != number
        self.execution_count = number
        history = self.history_manager
        if history is not None:
            for inputs in (history.input_hist_parsed, history.input_hist_raw):
                if 0 < number - len(inputs) <= PADDING_LIMIT:
                    inputs.extend([""] * (number - len(inputs)))
            history.db_input_cache.clear()  # nothing writes it out
        return changed

    def say(self, text: str) -> None:
        """Tell the agent, beside the output of what runs."""
        execution = self.running()
        self.parent.notices.give(None if execution is None else execution.serial, text)

    def init_displayhook(self) -> None:
        super().init_displayhook()
        self.display_trap = WatchedTrap(hook=self.displayhook)
        self.display_trap.say = self.say

    # -- hooks ----------------------------------------------------------------------------

    def init_events(self) -> None:
        super().init_events()
        made, self.events = self.events, hooks.Events(self, available_events)
        self.events.callbacks = made.callbacks

    def _hook_failed(self, what: str, hook: Any, error: BaseException) -> None:
        if self.capture is not None and self.capture.forked:
            raise error  # a child that the hook has made ends here
        told, execution = hooks.described(what, hook, error, self.compile.format_code_name), self.running()
        if self._told_of != (execution, told):  # `%time` and its like transform their line again
            self._told_of = execution, told
            self.say(told)

    def _transform(self, raw_cell: str) -> Any:
        """As IPython does; when a transformer fails, once more without those that do."""
        try:
            return super().transform_cell(raw_cell)
        except hooks.VERDICTS:
            raise
        except BaseException:
            manager = self.input_transformer_manager
            lists = manager.cleanup_transforms, manager.line_transforms, self.input_transformers_post
            before = [list(one) for one in lists]
            for one in lists:
                one[:] = [hooks.guarded(transform, self._hook_failed) for transform in one]
            try:
                return super().transform_cell(raw_cell)
            finally:
                for one, transforms in zip(lists, before, strict=True):
                    one[:] = transforms

    def transform_ast(self, node: Any) -> Any:
        return hooks.transformed_tree(node, self.ast_transformers, self._hook_failed)

    def signalled(self, pid: int) -> bool:
        """Whether an interrupt of the running cell sends that process its signals."""
        return self.interrupts is not None and self.interrupts.pursues(pid)

    # -- IPython's own work ------------------------------------------------------------

    def init_environment(self) -> None:
        """ipykernel asks programs for colours here; the environment is the server's to make."""

    def init_ipython_dir(self, ipython_dir: str | None) -> None:
        """None but the process's own: nothing of the user's IPython is read or written."""
        self.ipython_dir = ipython_dir or self.parent.parent.ipython_dir

    def transform_cell(self, raw_cell: str) -> Any:
        if self.prepared is not None and raw_cell is self.prepared[0]:
            return self.prepared[1]
        return self._transform(raw_cell)

    def should_run_async(
        self, raw_cell: str, *, transformed_cell: Any = None, preprocessing_exc_tuple: Any = None
    ) -> bool:
        if self.prepared is not None and transformed_cell is self.prepared[1]:
            return self.prepared[2]
        return super().should_run_async(
            raw_cell, transformed_cell=transformed_cell, preprocessing_exc_tuple=preprocessing_exc_tuple
        )

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> Any:
        """Run one statement; an interrupt that came before it ends the cell here."""
        if self.interrupts is not None:
            self.interrupts.check()
        return await super().run_code(code_obj, result, async_=async_)

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **options: Any) -> None:
        """As IPython's; a coroutine that an interrupt cancelled was interrupted, or failed by what a handler raised."""
        error = (exc_tuple or sys.exc_info())[1]
        if isinstance(error, KeyboardInterrupt):
            without_own_frames(error)
        if isinstance(error, CancelledError) and self.interrupts is not None:
            real = self.interrupts.instead_of(error)
            exc_tuple = (type(real), real, getattr(real, "__traceback__", None))
        super().showtraceback(exc_tuple, *args, **options)

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        if self.capture is not None and self.capture.forked:
            _say_as_a_script(evalue, stb)
        else:
            super()._showtraceback(etype, evalue, stb)
        self._shown = evalue

    def _format_exception_for_storage(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Nothing: the record has the traceback, and `str()` of an exception may raise."""
        return {}


def _say_as_a_script(error: BaseException, traceback: list[str]) -> None:
    """In a forked child: it ends with its cell, and its parent's cell neither failed nor waits for a message of it."""
    if not isinstance(error, SystemExit):
        sys.stderr.write("\n".join(traceback) + "\n")
    elif error.code is not None and not isinstance(error.code, int):
        sys.stderr.write(f"{error.code}\n")


def without_own_frames(error: BaseException) -> None:
    """Let an interrupt's traceback end in the user's code, or what that called, not in this package's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        if trace.tb_next.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            trace.tb_next = None
        trace = trace.tb_next
