"""The display hook: `Out` stays empty and `_` is the last value only (contract 8.3).

Owns what a result leaves behind in the kernel: nothing but `_`, so that an object whose
variables are gone is gone. Sending and formatting are ipykernel's. The shell makes one.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any

from ipykernel.displayhook import ZMQShellDisplayHook
from IPython.core.display_trap import DisplayTrap

_MISSING = object()


class WatchedTrap(DisplayTrap):
    """Puts `sys.displayhook` in place around a cell, as IPython's; says so when the cell has put another there."""

    say: Callable[[str], object]

    def unset(self) -> None:
        if sys.displayhook is not self.hook:
            self.say("sys.displayhook was replaced; put back for later cells")
        super().unset()


class LastValueHook(ZMQShellDisplayHook):
    """Remembers the last value, and numbers a result as its cell."""

    shell: Any
    #: The running execution's number; None for IPython's own count.
    number: Callable[[], int | None] = staticmethod(lambda: None)

    @property
    def prompt_count(self) -> int:
        number = self.number()
        return self.shell.execution_count - 1 if number is None else number

    def update_user_ns(self, result: Any) -> None:
        """Set `_`, unless the user has made it their own."""
        namespace = self.shell.user_ns
        held = namespace.get("_", _MISSING)
        if (held is _MISSING or held is self._) and "_" not in builtins.__dict__:
            self._ = namespace["_"] = result
        else:
            self._ = ""

    def log_output(self, format_dict: dict[str, Any]) -> None:
        """`%logstart` may want it; the history keeps no outputs."""
        if self.shell.logger.log_output and "text/plain" in format_dict:
            self.shell.logger.log_write(format_dict["text/plain"], "output")
