"""What a library gets wrong in a kernel, mended when a cell imports it.

Owns the hook into imports and the mends of foreign libraries, each with its reason. The
shell installs those; `processes` has one of its own. Nothing is imported that a cell does
not import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Mend = Callable[[Any], None]

_mends: dict[str, Mend] = {}


def when_imported(name: str, mend: Mend) -> None:
    """Call `mend` with the module when it is imported, or at once if it is there."""
    if name in sys.modules:
        mend(sys.modules[name])
        return
    if not any(isinstance(finder, _Mender) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Mender())
    _mends[name] = mend


def mend_libraries() -> None:
    """See the module."""
    when_imported("rich.live", _rich_live)


class _Mender(MetaPathFinder):
    """Finds the modules that have a mend, as the usual finder does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        mend = _mends.get(fullname)
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
