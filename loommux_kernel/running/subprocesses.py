"""Processes that a cell runs and waits for: shell commands and scripts.

Owns how they are started (no stdin, output straight to the cell's fd 1 and 2),
how an interrupt ends them, and how an exit code is worded. Knows no IPython.
`shell` and `script_magics` use it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from typing import IO, Any

from loommux_kernel.executions.native_threads import sleep
from loommux_kernel.shared.clock import monotonic

#: Seconds that an interrupted process has to end after SIGINT, SIGTERM, SIGKILL.
GRACE = (1.0, 1.0, 5.0)
#: Between two looks whether it has.
LOOK_SECONDS = 0.01
#: Whether an interrupt has reached that process too, and goes on to end it.
Signalled = Callable[[int], bool]
#: Characters of a command that are repeated beside its exit code.
_SHOWN = 200


def shell_command(command: str) -> list[str] | str:
    """The arguments that run `command` in the user's shell."""
    if os.name != "posix":
        return command
    return [os.environ.get("SHELL") or "/bin/sh", "-c", command]


def run(
    command: list[str] | str,
    *,
    stdin: Any = subprocess.DEVNULL,
    stdout: Any = None,
    stderr: Any = None,
    signalled: Signalled = lambda pid: False,
) -> int:
    """Run a process to its end; the exit code, negative for a signal.

    What it leaves running in the background goes on. KeyboardInterrupt ends the
    process before it is raised again; `signalled` says whether somebody else sends
    the signals for that. FileNotFoundError when there is no such program.
    """
    process = subprocess.Popen(command, shell=isinstance(command, str), stdin=stdin, stdout=stdout, stderr=stderr)
    try:
        return process.wait()
    except KeyboardInterrupt:
        _end(process, by_others=signalled(process.pid))
        raise


def run_for_text(command: list[str] | str, signalled: Signalled) -> tuple[int, str]:
    """Run a process to its end; its exit code and what it wrote to fd 1 and 2, as one text.

    Through a file: a pipe would be waited for as long as a background process holds it.
    """
    with tempfile.TemporaryFile() as file:
        code = run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, signalled=signalled)
        return code, text_of(file)


def text_of(file: IO[bytes]) -> str:
    """The whole of a file that a process has written, as text."""
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def exit_code(returncode: int) -> int:
    """As IPython counts: a shell's 128 + n for a signal is -n."""
    return 128 - returncode if returncode > 128 else returncode


def words(returncode: int, command: str) -> str | None:
    """What is said of a command that did not exit with 0, in one line."""
    if returncode == 0:
        return None
    name = _signal_name(exit_code(returncode))
    how = f"ended by {name}" if returncode < 0 and name else f"exit code {returncode}"
    if returncode > 128 and name:
        how += f" ({name})"
    line = " ".join(command.split())
    if len(line) > _SHOWN:
        line = f"{line[:_SHOWN]}…"
    return f"[{how}: {line}]"


def _signal_name(code: int) -> str | None:
    try:
        return signal.Signals(-code).name if code < 0 else None
    except ValueError:
        return None


def _end(process: subprocess.Popen[bytes], *, by_others: bool) -> None:
    """End the process and reap it, whatever interrupts come meanwhile. Each signal is sent to it once."""
    for signum, grace in zip((signal.SIGINT, signal.SIGTERM, signal.SIGKILL), GRACE, strict=True):
        if not by_others:
            process.send_signal(signum)
        if _ended(process, grace):
            return


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether it ends in time; `process.wait` would ask a clock that may stand still."""
    until = monotonic() + seconds
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            if process.poll() is not None:
                return True
            if monotonic() > until:
                return False
            sleep(LOOK_SECONDS)
