"""How code is run: the part of the kernel that stands between a request and IPython's shell.

Owns what stock ipykernel does around a cell and gets wrong or does twice: leftovers of an
earlier failure, a second transformation, an `await` that an interrupt does not end, a
forked child that would return as a second kernel. Knows neither the gate nor records.
`kernel.GatedKernel` builds on it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from ipykernel.ipkernel import IPythonKernel
from ipykernel.jsonutil import json_clean
from IPython.core.async_helpers import _asyncio_runner
from traitlets import Type

from loommux_kernel.executions.end_states import message_of, safe_text
from loommux_kernel.running import payloads
from loommux_kernel.running.disabled_functions import ServerStdin
from loommux_kernel.running.display_hook import LastValueHook
from loommux_kernel.running.interrupts import Interrupts
from loommux_kernel.running.shell import Shell
from loommux_kernel.running.shell_endings import Guard

#: What the kernel needs for itself, between a cell's calls and the process's first.
LOWEST_RECURSION = 200


class ZMQInteractiveShell(Guard, Shell):
    """The shell of every kernel; rich, Keras and others know a notebook by this name of its class."""

    displayhook_class = Type(LastValueHook)


class RunningKernel(ServerStdin, IPythonKernel):
    """Runs code; leaves in `error` what it raised."""

    interrupts: Interrupts
    # traits that ipykernel declares as possibly missing
    parent: Any
    session: Any
    shell: Any
    shell_stream: Any
    control_stream: Any
    error: BaseException | None = None
    #: ipykernel sleeps here before each reply, hoping that output gets there first; ours waits for the record.
    _execute_sleep = 0.0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._pid = os.getpid()

    def start_base(self) -> None:
        """ipykernel's own start, without what it does for its debugger."""
        super(IPythonKernel, self).start()
        loop: asyncio.AbstractEventLoop = self.io_loop.asyncio_loop  # type: ignore[attr-defined]
        if hasattr(os, "register_at_fork"):
            # whatever forked, in a callback or a task: a child that gets back to the loop ends there
            os.register_at_fork(after_in_child=lambda: loop.call_soon(self._leave_child, None))

    def pre_handler_hook(self) -> None:
        """ipykernel installs a SIGINT handler around each request; ours stays."""

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: dict[str, str] | None = None,
        allow_stdin: bool = False,
        *,
        cell_meta: dict[str, Any] | None = None,
        cell_id: str | None = None,
    ) -> dict[str, Any]:
        """Run a cell; the content of its reply."""
        shell = self.shell
        shell.forget_failures()
        self._forward_input(allow_stdin)
        expressions: dict[str, Any] = {}
        try:
            self.error = await self._run_cell(code, silent, store_history, cell_id, cell_meta)
            if shell.capture is not None:
                shell.capture.settle_widgets()
            if self.error is None and user_expressions:
                expressions = shell.user_expressions(user_expressions)
        except BaseException as error:  # raised in IPython's own work; no reason to leave the sender waiting
            self.error = error
            shell.showtraceback()
        finally:
            self._restore_input()
            self._leave_room_to_recurse()
        if os.getpid() != self._pid:
            self._leave_child(self.error)
        payload = self._take_payload()
        content: dict[str, Any] = {
            "status": "ok",
            "execution_count": shell.execution_count - 1,
            "user_expressions": json_clean(expressions),
            "payload": payload,
        }
        if self.error is not None:
            content |= {
                "status": "error",
                "ename": safe_text(type(self.error).__name__),
                "evalue": message_of(self.error),
                "traceback": [safe_text(line) for line in shell._last_traceback or []],
            }
        return content

    def _leave_room_to_recurse(self) -> None:
        """A limit that is for a script of a few calls is too low for what displays a result."""
        limit = sys.getrecursionlimit()
        if limit < LOWEST_RECURSION:
            sys.setrecursionlimit(LOWEST_RECURSION)
            self.shell.say(f"the recursion limit of {limit} is too low here; {LOWEST_RECURSION} for later cells")

    def _take_payload(self) -> list[dict[str, Any]]:
        """What the code asked of the program that shows it; told here when no client will do it."""
        manager = self.shell.payload_manager
        payload = manager.read_payload()
        manager.clear_payload()
        if payload and not self.shell._foreign():
            payloads.tell(payload, sys.stdout.write, self.shell.say)
        return payload

    async def _run_cell(
        self, code: str, silent: bool, store_history: bool, cell_id: str | None, cell_meta: dict[str, Any] | None
    ) -> BaseException | None:
        shell = self.shell
        transformed, failure = code, None
        try:
            transformed = shell.transform_cell(code)
        except Exception:
            failure = sys.exc_info()
        runs_async = shell.loop_runner is _asyncio_runner and shell.should_run_async(
            code, transformed_cell=transformed, preprocessing_exc_tuple=failure
        )
        options = {"store_history": store_history, "silent": silent, "cell_id": cell_id, "cell_meta": cell_meta}
        if runs_async:
            result = await self._run_coroutine(
                shell.run_cell_async(code, transformed_cell=transformed, preprocessing_exc_tuple=failure, **options),
                silent,
            )
        else:
            shell.prepared = (code, transformed, False) if failure is None else None
            try:
                result = shell.run_cell(code, **options)
            finally:
                shell.prepared = None
        if result.error_before_exec is not None:
            return self.interrupts.instead_of(result.error_before_exec)
        return self.interrupts.instead_of(result.error_in_exec) or shell.display_error()

    async def _run_coroutine(self, coroutine: Any, silent: bool) -> Any:
        """Await a cell in this task: then an interrupt can cancel it, and its context stays for later cells."""
        events, result = self.shell.events, None
        try:
            with self.interrupts.awaiting():
                result = await coroutine
        finally:
            if os.getpid() != self._pid:
                self._leave_child(sys.exception() or getattr(result, "error_in_exec", None))
            task = asyncio.current_task()
            while task is not None and task.cancelling():
                task.uncancel()
            events.trigger("post_execute")
            if not silent:
                events.trigger("post_run_cell", result)
        return result

    async def run_file(self, path: Path, source: str) -> BaseException | None:
        """Run a startup file in the user's namespace; what it raised, shown already."""
        shell = self.shell
        shell.forget_failures()
        try:
            if path.suffix == ".ipy":
                return await self._run_cell(source, True, False, None, None)
            with shell.builtin_trap:
                exec(compile(source, str(path), "exec"), shell.user_global_ns, shell.user_ns)
        except BaseException as error:
            if os.getpid() != self._pid:
                self._leave_child(error)
            if isinstance(error, SystemExit) and not error.code:
                return None
            shell.showtraceback()
            return error
        if os.getpid() != self._pid:
            self._leave_child(None)
        return None

    def leave_if_forked(self, error: BaseException) -> None:
        """End a forked child whose work on the loop has ended it."""
        if os.getpid() != self._pid:
            self._leave_child(error)

    def _leave_child(self, error: BaseException | None) -> NoReturn:
        """End a forked child that has come to the end of its cell, as a script would end."""
        code = 0 if error is None else 1
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # nobody is left to tell
                continue
        os._exit(code & 0xFF)
