"""What a cell of the server cannot have, refused at once with a reason and a way out.

Owns the texts and the places where they are raised: input and passwords, debuggers,
`exit`, an event loop inside the running one. A foreign client's cells keep what
their client can answer. `shell` and the kernel use it.
"""

from __future__ import annotations

import asyncio
import builtins
import getpass
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from IPython.core.autocall import ZMQExitAutocall
from IPython.core.error import StdinNotImplementedError

if TYPE_CHECKING:
    from ipykernel.ipkernel import IPythonKernel as Base
else:
    Base = object

_HERE = f"{Path(__file__).parent.parent}{os.sep}"
#: Where frames stand between a refusal and the user's code.
_BETWEEN = ("pdb.py", "bdb.py", "debugger.py")

NO_INPUT = (
    "{what} cannot be answered: this cell has no stdin, and nobody sees its prompt. "
    "Put the value into the code, or read it from a file or an environment variable."
)
NO_DEBUGGER = (
    "{what} cannot stop here: this cell has no stdin, so nobody could type a debugger's commands. "
    "Print what you want to see, or look at the variables in the next cell; after an error, "
    "sys.last_exc or sys.last_value has the exception with its frames."
)
NO_EXIT = "this ended the cell, not the kernel: its variables are still there. To replace the process, use `restart`."
NO_SECOND_LOOP = (
    "asyncio.run() cannot be used in a cell: its event loop is running already. Write `await {what}` instead."
)


class ServerStdin(Base):
    """Kernel mixin: `input` and `getpass` fail at once where no client answers.

    They are put in place once, not around each cell: what a cell puts there instead stays, as in Python.
    """

    #: Python's own, which reads whatever `sys.stdin` is.
    _python_input = staticmethod(builtins.input)

    def take_input(self) -> None:
        """Have `input` and `getpass` ask the client. Before the first cell."""
        builtins.input, getpass.getpass = self.raw_input, self.getpass
        self._allow_stdin = False

    def _forward_input(self, allow_stdin: bool = False) -> None:
        self._allow_stdin = allow_stdin

    def _restore_input(self) -> None:
        self._allow_stdin = False

    def raw_input(self, prompt: Any = "") -> str:
        if sys.stdin is not sys.__stdin__:  # the cell, or one before it, has given what is to be read
            return self._python_input(prompt)
        if not self._allow_stdin:
            raise StdinNotImplementedError(NO_INPUT.format(what="input()"))
        return super().raw_input(prompt)

    def getpass(self, prompt: str = "", *args: Any, **options: Any) -> str:
        if not self._allow_stdin:
            raise StdinNotImplementedError(NO_INPUT.format(what="getpass()"))
        return super().getpass(prompt, *args, **options)


class Exiter(ZMQExitAutocall):
    """`exit` and `quit`; named without a call, in a cell of several lines, they say what they do."""

    def __repr__(self) -> str:
        return "<exit() ends this cell, not the kernel; to replace the process, use `restart`>"


def refuse_debugging_magic(name: str, line: str) -> None:
    """Refuse the magics that run code under a debugger; they would show the refusal and carry on."""
    if name == "debug" or (name == "run" and "-d" in line.split()):
        raise StdinNotImplementedError(NO_DEBUGGER.format(what=f"%{name}"))


def refuse_debuggers(allowed: Callable[[], bool]) -> None:
    """Let debuggers start only while `allowed`; those with a stdin of their own always may.

    An interrupt at a debugger's prompt ends its cell: IPython's debugger takes it for its own end.
    """
    import pdb  # imported where it is needed: 8 ms

    def breakpoint_hook(*args: Any, **options: Any) -> Any:
        if not allowed():
            raise StdinNotImplementedError(NO_DEBUGGER.format(what="breakpoint()"))
        return sys.__breakpointhook__(*args, **options)

    def check(debugger: Any) -> None:
        if not allowed() and getattr(debugger, "stdin", None) is sys.stdin:
            raise StdinNotImplementedError(NO_DEBUGGER.format(what="pdb"))

    set_trace, interaction, cmdloop = pdb.Pdb.set_trace, pdb.Pdb.interaction, pdb.Pdb.cmdloop
    interrupted: set[Any] = set()

    @wraps(set_trace)
    def checked_set_trace(self: Any, frame: Any = None, **options: Any) -> Any:
        check(self)
        return set_trace(self, frame or sys._getframe(1), **options)

    @wraps(interaction)
    def checked_interaction(self: Any, *args: Any, **options: Any) -> Any:
        check(self)
        interrupted.discard(self)
        interaction(self, *args, **options)
        if self in interrupted:
            interrupted.discard(self)
            raise KeyboardInterrupt

    @wraps(cmdloop)
    def noted_cmdloop(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return cmdloop(self, *args, **options)
        except KeyboardInterrupt:
            interrupted.add(self)
            raise

    sys.breakpointhook = breakpoint_hook
    pdb.Pdb.set_trace = checked_set_trace  # type: ignore[method-assign]
    pdb.Pdb.interaction = checked_interaction  # type: ignore[method-assign]
    pdb.Pdb.cmdloop = noted_cmdloop  # type: ignore[method-assign]


def refuse_second_loop() -> None:
    """Make `asyncio.run` in a cell one short error that says what to write."""
    run = asyncio.run

    @wraps(run)
    def checked(main: Any, **options: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return run(main, **options)
        name = getattr(main, "__qualname__", "main")
        if asyncio.iscoroutine(main):
            main.close()  # it will never be awaited; a warning would only repeat that
        raise RuntimeError(NO_SECOND_LOOP.format(what=f"{name}()"))

    asyncio.run = asyncio.runners.run = checked


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without this package's frames, and up to the user's own last one when it ends in this package."""
    frames: list[TracebackType] = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    refused = frames and frames[-1].tb_frame.f_code.co_filename.startswith(_HERE)
    while refused and len(frames) > 1 and frames[-1].tb_frame.f_code.co_filename.startswith(_HERE):
        frames.pop()
    while refused and len(frames) > 1 and frames[-1].tb_frame.f_code.co_filename.endswith(_BETWEEN):
        frames.pop()
    theirs = [frame for frame in frames if not frame.tb_frame.f_code.co_filename.startswith(_HERE)]
    shortened: TracebackType | None = None
    for frame in reversed(theirs or frames):
        shortened = TracebackType(shortened, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return shortened
