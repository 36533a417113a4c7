"""What a cell sees of the world around it: shell commands, stdin, exits, the pager, tracebacks.

Owns the places where a kernel for agents differs from IPython's shell for people:
nobody answers a prompt, nobody sees a terminal, and the process goes on after a
cell says `exit`. How a cell ends is `shell_endings`'s, what is refused `disabled_functions`'s, how a
traceback is written `text.tracebacks`'s. The kernel's shell class builds on it.
"""

from __future__ import annotations

import codeop
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import CalledProcessError
from typing import Any, cast

from ipykernel.jsonutil import json_clean
from ipykernel.zmqshell import ZMQDisplayPublisher, ZMQInteractiveShell
from IPython.core.error import StdinNotImplementedError, UsageError
from IPython.utils.text import LSString, SList
from traitlets import Type, default

from loommux_kernel.capture import figures, library_fixes
from loommux_kernel.executions.end_states import message_of, safe_text
from loommux_kernel.running import disabled_functions, subprocesses
from loommux_kernel.text import tracebacks


class Publisher(ZMQDisplayPublisher):
    """Displays keep their place in the ordered queue: nothing has to be flushed before."""

    def _flush_streams(self) -> None:
        """See the class."""


class Shell(ZMQInteractiveShell):
    """See the module. `capture` is set when the kernel takes its seams."""

    display_pub_class = Type(Publisher)
    capture: Any = None
    displayhook: Any
    payload_manager: Any

    @default("exiter")
    def _exiter_default(self) -> disabled_functions.Exiter:
        return disabled_functions.Exiter(self)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # said after every `sys.exit()`, and wrong here
        warnings.filterwarnings("ignore", message="To exit: use 'exit', 'quit', or Ctrl-D.")
        # for those who complete what they type; with it, what is unfinished is no ordinary SyntaxError from 3.13 on
        self.compile.flags &= ~codeop.PyCF_ALLOW_INCOMPLETE_INPUT  # type: ignore[attr-defined]
        disabled_functions.refuse_debuggers(self._foreign)
        disabled_functions.refuse_second_loop()
        library_fixes.mend_libraries()
        figures.always_an_image(cast(Any, self.display_formatter).formatters["image/png"])

    def init_magics(self) -> None:
        super().init_magics()
        manager = self.magics_manager
        for name, function in list(manager.magics["cell"].items()):
            if getattr(function, "spec", "").endswith(":ScriptMagics"):
                manager.register_lazy(name, "loommux_kernel.running.script_magics:Scripts", "cell")
        manager.register_lazy("killbgscripts", "loommux_kernel.running.script_magics:Scripts", "line")

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> Any:
        __tracebackhide__ = True
        if not self._foreign():
            disabled_functions.refuse_debugging_magic(magic_name, line)
        return super().run_line_magic(magic_name, line, _stack_depth=_stack_depth + 1)

    def run_cell_magic(self, magic_name: str, line: str, cell: str) -> Any:
        __tracebackhide__ = True
        if not self._foreign():
            disabled_functions.refuse_debugging_magic(magic_name, line)
        return super().run_cell_magic(magic_name, line, cell)

    @contextmanager
    def _tee(self, channel: str) -> Iterator[None]:
        """IPython would keep a copy of all that is printed, for `%notebook`, as long as the process lives."""
        yield

    def _foreign(self) -> bool:
        """Whether a client that can answer prompts has sent the running cell."""
        return self.capture is not None and self.capture.foreign

    # -- shell commands ------------------------------------------------------------------

    def system(self, cmd: str) -> None:
        """`!cmd`: run it in the user's shell, without stdin, its output in the cell's streams.

        Sets `_exit_code`; a failure is told on stderr and leaves the cell alone.
        """
        command = self.var_expand(cmd, depth=1)
        written = self.capture.written() if self.capture is not None else []
        code = subprocesses.run(subprocesses.shell_command(command), signalled=self.signalled)
        self._ran(command, code, fresh=self.capture is None or self.capture.at_line_start(written))

    system_piped = system_raw = system

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Any:
        """`!!cmd` and `x = !cmd`: its output as a list of lines, or as one string."""
        command = self.var_expand(cmd, depth=depth + 1)
        code, text = subprocesses.run_for_text(subprocesses.shell_command(command), self.signalled)
        self._ran(command, code)
        return SList(text.splitlines()) if split else LSString(text)

    def signalled(self, pid: int) -> bool:
        """Whether an interrupt ends that process; `shell_endings` knows."""
        return False

    def _ran(self, command: str, returncode: int, *, fresh: bool = True) -> None:
        self.user_ns["_exit_code"] = subprocesses.exit_code(returncode)
        if returncode != 0 and self.system_raise_on_error:
            raise CalledProcessError(returncode, command)
        words = subprocesses.words(returncode, command)
        if words is not None:
            sys.stderr.write(("" if fresh else "\n") + words + "\n")

    # -- exits, pager ------------------------------------------------------------------------

    def ask_exit(self) -> None:
        """`exit` and `quit`: end the cell; a foreign client may close its window."""
        if not self._foreign():
            raise SystemExit(disabled_functions.NO_EXIT)
        self.keepkernel_on_exit = True
        super().ask_exit()

    def payloadpage_page(self, strg: Any, start: int = 0, screen_lines: int = 0, pager_cmd: str | None = None) -> None:
        """What IPython would page is printed; a foreign client pages it, and the record has it."""
        text = strg.get("text/plain", "") if isinstance(strg, dict) else str(strg)
        text = text if text.endswith("\n") else f"{text}\n"
        if self._foreign():
            super().payloadpage_page(strg, start, screen_lines, pager_cmd)
            self.capture.text_for_record(text)
        else:
            sys.stdout.write(text)

    # -- tracebacks ------------------------------------------------------------------------------

    def showtraceback(
        self,
        exc_tuple: Any = None,
        filename: str | None = None,
        tb_offset: int | None = None,
        exception_only: bool = False,
        running_compiled_code: bool = False,
    ) -> None:
        """Show an error, however odd it is, in bounded time."""
        try:
            etype, value, trace = cast(Any, self._get_exc_info(exc_tuple))
        except ValueError:
            sys.stderr.write("No traceback available to show.\n")
            return
        if issubclass(etype, SyntaxError | UsageError) or hasattr(value, "_render_traceback_"):
            super().showtraceback(exc_tuple, filename, tb_offset, exception_only, running_compiled_code)
            return
        self._showtraceback(etype, value, self._rendered(etype, value, trace, tb_offset))
        if self.call_pdb and not exception_only:
            try:
                self.debugger(force=True)
            except StdinNotImplementedError as refusal:
                sys.stderr.write(f"{refusal}\n")

    def rendered(self, error: BaseException) -> tuple[str, str | None]:
        """The traceback of an error outside any cell: in full, and shortened when it is long."""
        text = "\n".join(self._rendered(type(error), error, error.__traceback__, 0))
        return text, tracebacks.shortened(text)

    def rendered_plainly(self, error: BaseException) -> tuple[str, str | None]:
        """The same from any thread: in Python's own format, for IPython's is the main thread's."""
        trace = disabled_functions.without_our_frames(error.__traceback__)
        text = "\n".join(tracebacks.plain(error, trace, self._cell_name))
        return text, tracebacks.shortened(text)

    def _rendered(self, etype: Any, value: BaseException, trace: Any, tb_offset: int | None) -> list[str]:
        """IPython's own format where that is quick and knows the error, else Python's."""
        trace = disabled_functions.without_our_frames(trace)
        if not tracebacks.is_ordinary(value):
            return tracebacks.plain(value, trace, self._cell_name)
        try:
            return self.InteractiveTB.structured_traceback(etype, value, trace, tb_offset=tb_offset)
        except Exception:  # an error whose text cannot be had, source that is gone
            return tracebacks.plain(value, trace, self._cell_name)

    def _cell_name(self, filename: str) -> str | None:
        """``Cell In[3]`` for a cell's file name."""
        name = self.compile.format_code_name(filename)
        return f"{name[0]} {name[1]}" if name is not None else None

    def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        """As ipykernel's, for any exception: its text may raise, or hold what JSON cannot."""
        hook = self.displayhook
        content = {
            "traceback": [safe_text(line) for line in stb],
            "ename": safe_text(etype.__name__),
            "evalue": message_of(evalue),
        }
        if getattr(hook, "msg", None) is not None:
            self._last_traceback_during_displayhook = True
        topic = hook.topic.replace(b"execute_result", b"error") if hook.topic else None
        hook.session.send(hook.pub_socket, "error", json_clean(content), hook.parent_header, ident=topic)
        self._last_traceback = content["traceback"]
