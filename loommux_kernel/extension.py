"""The `loommux` object that every kernel has in its namespace (contract 8).

Owns what a cell sees of it. What it says goes through `notices`; what it knows of its
kernel is in `Itself`, which `control` changes when the kernel is renamed. Made by `kernel`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loommux_kernel.contexts import current_execution
from loommux_kernel.notices import Notices

NAME = "loommux"


@dataclass
class Itself:
    """This kernel: its name, its id, and the number of its process."""

    name: str
    id: str
    process: int

    def __repr__(self) -> str:
        return f"<kernel {self.name!r}, id {self.id}, process {self.process}>"


class Loommux:
    """Talk to the agent that works in this kernel.

    notify(text)   tell the agent something now, apart from the output
    self           this kernel: name, id, process
    """

    def __init__(self, itself: Itself, notices: Notices) -> None:
        self.self = itself
        self._notices = notices

    def notify(self, text: object) -> None:
        """Tell the agent something now; cut at 500 characters, ten per cell are kept.

        Works in a cell, a hook, a thread and a task; the notice belongs to the cell that started it.
        """
        self._notices.give(current_execution.get(None), text if isinstance(text, str) else str(text))

    def __repr__(self) -> str:
        return f"<loommux in {self.self!r}; help(loommux)>"


def put_in_namespace(shell: Any, loommux: Loommux) -> None:
    """Give the user `loommux`, out of sight of %who. A variable of that name stays the user's."""
    if shell.user_ns.setdefault(NAME, loommux) is loommux:
        shell.user_ns_hidden[NAME] = loommux
