"""What a library gets wrong in a kernel, mended when a cell imports it.

Owns the hook into imports and the mends of foreign libraries, each with its reason. The
shell installs those; `fork_hooks` has one of its own. Nothing is imported that a cell does
not import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from IPython.display import display

from loommux_kernel.capture import figures

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
    when_imported("matplotlib", figures.inherited_backend_put_aside())
    when_imported("matplotlib.pyplot", figures.show_that_says)


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
    """In a notebook, `Live.stop` leaves what the last timed refresh has shown: 97 % of a bar, or an old table.

    And without ipywidgets it shows nothing but a warning: then its text is a display that is updated.
    """
    stop, refresh = module.Live.stop, module.Live.refresh

    @wraps(stop)
    def stop_with_last_state(self: Any) -> None:
        if self.is_started and self.console.is_jupyter:
            if not self.transient:
                self.refresh()
            elif _SHOWN in vars(self):
                vars(self)[_SHOWN].update({"text/plain": ""}, raw=True)
        stop(self)

    @wraps(refresh)
    def refresh_without_widgets(self: Any) -> None:
        nested = getattr(self, "_nested", False)
        with_widgets = _SHOWN not in vars(self) and find_spec("ipywidgets") is not None
        if nested or not self.console.is_jupyter or with_widgets:
            refresh(self)
            return
        with self._lock:
            segments = self.console.render(self.get_renderable())
            bundle = {"text/plain": "".join(segment.text for segment in segments if not segment.control)}
            if _SHOWN in vars(self):
                vars(self)[_SHOWN].update(bundle, raw=True)
            else:
                vars(self)[_SHOWN] = display(bundle, raw=True, display_id=True)

    module.Live.stop, module.Live.refresh = stop_with_last_state, refresh_without_widgets


#: Where a `Live` keeps the display that is updated.
_SHOWN = "_shown_by_loommux"
