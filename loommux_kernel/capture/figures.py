"""Figures of matplotlib reach the record, or a line says why not.

Owns what is done about a backend that shows nothing in a kernel: one that the process has
inherited is put aside, of one that a cell has chosen `show` says so, and a figure that is a
cell's value is an image with any. `library_fixes` calls when a cell imports matplotlib, which
nothing here imports.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

VARIABLE = "MPLBACKEND"
INLINE = "module://matplotlib_inline.backend_inline"
UNSEEN = (
    "[{figures} not in this result: matplotlib's backend is {backend}. %matplotlib inline shows figures; so does a"
    " figure as the last value of a cell]\n"
)
#: Backends that make displays, of whatever kind.
_SHOWING = frozenset({"inline", "nbagg", "notebook", "widget", "ipympl"})


def inherited_backend_put_aside() -> Callable[[Any], None]:
    """What is to be done with an imported matplotlib, so that its backend is none that was inherited and hides figures.

    The environment stays as it is, for programs that cells start.
    """
    return partial(_put_aside, os.environ.get(VARIABLE, ""))


def _put_aside(inherited: str, matplotlib: Any) -> None:
    own = os.environ.get(VARIABLE, "")
    if inherited and own == inherited and not _shows(inherited, _SHOWING & {"inline"}):
        matplotlib.rcParams["backend"] = INLINE


def show_that_says(pyplot: Any) -> None:
    """`pyplot.show` says it when it has shown nothing."""
    show = pyplot.show

    @wraps(show)
    def show_or_say(*args: Any, **options: Any) -> Any:
        shown = show(*args, **options)
        backend, count = str(sys.modules["matplotlib"].get_backend()), len(pyplot.get_fignums())
        if count and not _shows(backend, _SHOWING):
            figures = "1 figure is" if count == 1 else f"{count} figures are"
            sys.stderr.write(UNSEEN.format(figures=figures, backend=backend))
        return shown

    pyplot.show = show_or_say


def always_an_image(formatter: Any) -> None:
    """`formatter`, that for PNG, makes an image of a figure with any backend; inline puts its own in its place."""
    formatter.for_type_by_name("matplotlib.figure", "Figure", _png)


def _png(figure: Any) -> Any:
    from IPython.core.pylabtools import print_figure

    return print_figure(figure, fmt="png", base64=True)


def _shows(backend: str, showing: frozenset[str]) -> bool:
    return backend.startswith("module://") or backend.lower() in showing
