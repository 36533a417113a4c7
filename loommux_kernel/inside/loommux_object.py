"""The `loommux` object that every kernel has in its namespace (contract 8).

Owns what a cell sees of it: the server's kernels (`client`), this kernel, what is told to the
agent (`capture.notices`), work beside the cells (`watches`). What it knows of its kernel is in `Itself`,
which `running.control_requests` changes when the kernel is renamed. Made by `kernel`.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loommux_kernel.capture.notices import Notices
from loommux_kernel.executions.contexts import current_execution
from loommux_kernel.inside.watches import Watch, Watches
from loommux_kernel.shared.api_client import Daemon
from loommux_kernel.shared.handles import KernelHandle

NAME = "loommux"
NAME_VARIABLE = "LOOMMUX_KERNEL_NAME"
EXPORT_SECONDS = 120.0


@dataclass
class Itself:
    """This kernel: its name, its id, and the number of its process."""

    name: str
    id: str
    process: int

    def renamed(self, name: str) -> None:
        """Known from here on, also to programs that cells start."""
        self.name = os.environ[NAME_VARIABLE] = name


class OwnKernel(KernelHandle):
    """This kernel, as `loommux.self`: its name follows renames."""

    def __init__(self, server: Daemon, itself: Itself) -> None:
        super().__init__(server, itself.id, itself.name)
        self._itself = itself

    @property
    def name(self) -> str:
        """The name that it has now."""
        return self._itself.name

    @property
    def process(self) -> int:
        """The number of its process."""
        return self._itself.process

    def renamed(self, name: str) -> None:
        self._itself.renamed(name)

    def __repr__(self) -> str:
        return f"<this kernel {self.name!r}, id {self.id}, process {self.process}>"


class Loommux(Daemon):
    """The kernels of this server, and the agent that works here.

    kernels(timeout=2)             every kernel of the server, as a table
    self                           this kernel: name, id, process, and the eight tools
    create("lab")                  a child kernel of this home, opened if missing
    loommux["lab"]                 find one by name, path (/main/lab) or id; never opens
    rename(loommux.self, "report") the name it got: report-2 if taken
    recycle("lab", force=False)    end a kernel of this home; recycle_idle(), recycle_all()
    notify("text")                 tell the agent something now, apart from the output
    watch("build", work)           work beside the cells: an awaitable, or a function in a thread
    watches()                      the watches that are pending
    export("run.ipynb")            this kernel's executions as a notebook

    A kernel that was found or created has the eight tools as methods, which return structured results:

        lab = loommux.create("lab")
        n = lab.run_cell("train()", wait_seconds=0)["execution"]
        lab.wait(n, timeout_seconds=1450, silence_seconds=140)
        lab.read_output(n, line_range="-20:")["text"]
        lab.search_output("loss", n); lab.status(); lab.execution_status(n)
        lab.interrupt(); lab.restart()
        for text in lab.follow(n): ...   # combined output as it arrives

    What the server refuses raises `DaemonError` with `status`. Calls block their thread, and none hangs:
    a server that does not answer costs `timeout` seconds. To run a whole cell in a child, begin it with
    the line ``%%loommux --kernel NAME``.
    """

    def __init__(self, itself: Itself, notices: Notices, watches: Watches) -> None:
        super().__init__()
        #: This kernel.
        self.self = OwnKernel(self, itself)
        self._notices = notices
        self._watches = watches

    def notify(self, text: object) -> None:
        """Tell the agent something now; cut at 500 characters, ten per cell are kept.

        Works in a cell, a hook, a thread and a task; the notice belongs to the cell that started it.
        """
        self._notices.give(current_execution.get(None), text if isinstance(text, str) else str(text))

    def watch(self, name: str, work: Awaitable[Any] | Callable[[], Any]) -> Watch:
        """Start work beside the cells: an awaitable on this kernel's loop, a function in a thread of its own.

        What it prints goes to the record of the cell that started it. Its end is a notice, its failure a
        traceback there; ``wait(watch=name)`` waits for it, ``wait(watch="next")`` for whichever ends first.
        An awaitable makes no progress while a blocking cell holds the kernel; a thread does. A restart
        ends it. Returns a `Watch`: `pending`, `outcome`, `result()`, `cancel()`.
        """
        return self._watches.start(name, work)

    def watches(self) -> list[Watch]:
        """The watches that are pending, oldest first."""
        return self._watches.pending()

    def export(self, path: str | os.PathLike[str], *, overwrite: bool = False, timeout: float = EXPORT_SECONDS) -> str:
        """Write this kernel's executions, with their outputs, as a notebook; the path that was written.

        Raises `FileExistsError` when there is that file and `overwrite` is not set.
        """
        place = Path(path).expanduser().absolute()
        if place.exists() and not overwrite:
            raise FileExistsError(f"{place} exists; overwrite=True replaces it")
        notebook = self.ask_raw("GET", f"/api/resources/{self.self.id}/notebook", timeout=timeout)
        with place.open("wb" if overwrite else "xb") as file:
            file.write(notebook)
        return str(place)

    def _handle(self, snapshot: dict[str, Any]) -> KernelHandle:
        if snapshot["resource_id"] == self.self.id:
            self.self.home = snapshot.get("home")
            return self.self
        return super()._handle(snapshot)

    def _find(self, kernel: KernelHandle | str) -> KernelHandle:
        found = super()._find(kernel)
        return self.self if found.id == self.self.id else found

    def __repr__(self) -> str:
        return f"<loommux in {self.self!r}; help(loommux)>"


def put_in_namespace(shell: Any, loommux: Loommux) -> None:
    """Give the user `loommux`, out of sight of %who. A variable of that name stays the user's."""
    if shell.user_ns.setdefault(NAME, loommux) is loommux:
        shell.user_ns_hidden[NAME] = loommux
