"""What a library gets wrong in a kernel, mended when a cell imports it.

Owns the hook into imports and each mend with its reason. The shell installs it; nothing
is imported that a cell does not import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


def mend_on_import() -> None:
    """Mend libraries as they are imported from now on."""
    sys.meta_path.insert(0, _Mender())


class _Mender(MetaPathFinder):
    """Finds the modules that have a mend, as the usual finder does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        mend = _MENDS.get(fullname)
        spec: Any = None if mend is None else PathFinder.find_spec(fullname, path, target)
        if mend is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_mend(module: ModuleType) -> None:
            execute(module)
            mend(module)

        spec.loader.exec_module = execute_and_mend
        return spec


def _rich_live(module: Any) -> None:
    """In a notebook, `Live.stop` leaves what the last timed refresh has shown: 97 % of a bar, or an old table."""
    stop = module.Live.stop

    @wraps(stop)
    def stop_with_last_state(self: Any) -> None:
        if self.is_started and self.console.is_jupyter and not self.transient:
            self.refresh()
        stop(self)

    module.Live.stop = stop_with_last_state


_MENDS: dict[str, Callable[[Any], None]] = {"rich.live": _rich_live}
