"""Startup files: what runs in the user's namespace before the first cell (contract 9.5).

Owns their order, their time limit, and that a failure is told and the next one still runs.
How code is run and recorded is the kernel's. Called by `app` on the kernel's loop, before
it says that it is ready.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from loommux_kernel.executions import native_threads
from loommux_kernel.executions.end_states import End
from loommux_kernel.executions.native_threads import Flag
from loommux_kernel.shared.protocol import Origin, OriginKind, State

SUFFIXES = (".py", ".ipy")
LIMIT_SECONDS = 60.0
LABEL = "Startup"


class Runner(Protocol):
    """What runs a startup file: the kernel."""

    async def run_startup(self, path: Path, source: str, origin: Origin, limit: Limit) -> End: ...

    def say_startup(self, text: str) -> None: ...


class Limit:
    """Interrupts a startup file that takes too long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.reached = False

    @contextmanager
    def on(self, interrupt: Any) -> Iterator[None]:
        """Call `interrupt` from another thread when the time is up before the block ends."""

        def up() -> None:
            self.reached = True
            interrupt()

        over = Flag()
        native_threads.start(lambda: over.wait(self.seconds) or up())
        try:
            yield
        finally:
            over.set()


def files(directory: Path) -> list[Path]:
    """The startup files in the order in which they run."""
    return sorted((p for p in directory.iterdir() if p.suffix in SUFFIXES and p.is_file()), key=lambda p: p.name)


async def run_all(directory: Path, runner: Runner, limit_seconds: float) -> None:
    """Run every file; whatever happens in one, the next one follows."""
    try:
        found = files(directory)
    except OSError as error:
        runner.say_startup(f"{directory.name} cannot be read: {error.strerror}")
        return
    for path in found:
        try:
            source = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            runner.say_startup(f"{path.name} cannot be read: {error}")
            continue
        text = await _run(path, source, runner, limit_seconds)
        if text is not None:
            runner.say_startup(f"{path.name} {text}")


async def _run(path: Path, source: str, runner: Runner, limit_seconds: float) -> str | None:
    """Run one file; what there is to say about it."""
    limit = Limit(limit_seconds)
    end = await runner.run_startup(path, source, Origin(OriginKind.STARTUP, path.name), limit)
    if limit.reached:
        return f"took more than {limit_seconds:g} s" + (" and was stopped" if end.state is State.INTERRUPTED else "")
    return None if end.state is State.COMPLETED else f"failed: {end.ename}: {end.evalue}".removesuffix(": ")


@contextmanager
def as_script(path: Path, namespace: dict[str, Any]) -> Iterator[None]:
    """As for a script: its directory is importable, `__file__` is its path, `sys.argv` is its own."""
    missing = object()
    before, argv = namespace.get("__file__", missing), sys.argv
    sys.path.insert(0, str(path.parent))
    namespace["__file__"], sys.argv = str(path), [str(path)]
    try:
        yield
    finally:
        sys.argv = argv
        if str(path.parent) in sys.path:
            sys.path.remove(str(path.parent))
        if before is missing:
            namespace.pop("__file__", None)
        else:
            namespace["__file__"] = before
