"""`%%bash` and its like: scripts that write straight to the cell's descriptors.

Owns what differs from IPython's: commands in the script have no stdin, output keeps
its order, and a process that the script leaves in the background does not hold the
cell. Loaded by IPython when such a magic is first used; `shell` declares it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import PurePath
from subprocess import DEVNULL, CalledProcessError
from typing import IO, Any

from IPython.core import magic_arguments
from IPython.core.magic import cell_magic, line_magic, magics_class
from IPython.core.magics.script import ScriptMagics, script_args
from IPython.utils.process import arg_split  # type: ignore[attr-defined]

from loommux_kernel.running import subprocesses

#: Shells that take a script as an argument, which leaves stdin to the script's commands.
SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh"})
#: A longer script does not fit into one argument and is read from stdin after all.
ARGUMENT_BYTES = 100_000


@magics_class
class Scripts(ScriptMagics):
    """See the module."""

    shell: Any

    @magic_arguments.magic_arguments()
    @script_args
    @cell_magic("script")
    def shebang(self, line: str, cell: str) -> None:
        """Run a cell with a program, as in `%%script python3 -u`.

        With `--bg` in the background. Raises CalledProcessError when the program fails.
        """
        parser: Any = self.shebang.parser  # type: ignore[attr-defined]
        args, command = parser.parse_known_args(arg_split(line, posix=os.name == "posix"))
        if args.bg or not command:
            super().shebang(line, cell)
            return
        source = (cell if cell.endswith("\n") else f"{cell}\n").encode("utf-8", "replace")
        with contextlib.ExitStack() as stack:
            file = lambda: stack.enter_context(tempfile.TemporaryFile())  # noqa: E731
            kept: dict[str, IO[bytes]] = {name: file() for name in (args.out, args.err) if name}
            try:
                code = self._run(command, source, file, kept.get(args.out), kept.get(args.err))
            except FileNotFoundError:
                print(f"Couldn't find program: {command[0]!r}", file=sys.stdout)  # noqa: T201 (IPython's answer)
                return
            finally:
                for name, written in kept.items():
                    self.shell.user_ns[name] = subprocesses.text_of(written)
        if code != 0 and args.raise_error:
            raise CalledProcessError(code, source)

    @line_magic("killbgscripts")
    def killbgscripts(self, _line: str = "") -> None:
        """Kill what `%%script --bg` has started."""
        super().killbgscripts(_line)

    def _run(
        self, command: list[str], source: bytes, file: Any, stdout: IO[bytes] | None, stderr: IO[bytes] | None
    ) -> int:
        signalled = self.shell.signalled
        if _takes_script(command) and len(source) < ARGUMENT_BYTES and b"\0" not in source:
            return subprocesses.run(
                [*command, "-c", source.decode()], stdin=DEVNULL, stdout=stdout, stderr=stderr, signalled=signalled
            )
        script = file()
        script.write(source)
        script.seek(0)
        return subprocesses.run(command, stdin=script, stdout=stdout, stderr=stderr, signalled=signalled)


def _takes_script(command: list[str]) -> bool:
    """Whether `command` is a shell with options only, none of which says where its script is."""
    options = command[1:]
    short = "".join(o[1:] for o in options if not o.startswith("--"))
    plain = all(o.startswith("-") and o != "-" for o in options)
    return PurePath(command[0]).name in SHELLS and plain and not set(short) & set("sco") and "--" not in options
