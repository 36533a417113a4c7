"""How a kernel's process finds the packages of its overlay, without an entry of ``sys.path``.

Entries of the path go to children (`multiprocessing` hands them on, code reads and prints them); finders do not. One
stands before Python's own and finds what the interpreter has too old, one behind it what it lacks; each knows its
top-level names and no others. Standard library only: it is the first thing that a kernel's interpreter runs
(`enter`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder, MetadataPathFinder
from types import ModuleType

#: In the directory of an overlay: which top-level names each of its two places has. It is written last.
CONTENTS = "overlay.json"
FRONT, BEHIND = "front", "behind"
EVERYTHING = DistributionFinder.Context()


class OverlayFinder(DistributionFinder):
    """Finds modules with these top-level names, and their packages' metadata, in one directory."""

    def __init__(self, directory: str, names: Iterable[str]) -> None:
        self._directory, self._names = directory, frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`; what is within a package is found by the package's own path."""
        if path is not None or fullname not in self._names:
            return None
        return PathFinder.find_spec(fullname, [self._directory], target)

    def find_distributions(self, context: DistributionFinder.Context = EVERYTHING) -> Iterator[Distribution]:
        """Those of the directory, by the context's name or all."""
        here = DistributionFinder.Context(name=context.name, path=[self._directory])
        return iter(MetadataPathFinder.find_distributions(here))

    def invalidate_caches(self) -> None:
        """Nothing is remembered here."""


def install(overlay: str) -> None:
    """Have this process find the packages of an overlay."""
    with open(os.path.join(overlay, CONTENTS), encoding="utf-8") as file:  # noqa: PTH118, PTH123
        contents = json.load(file)
    path_finder = next((i for i, one in enumerate(sys.meta_path) if one is PathFinder), len(sys.meta_path))
    sys.meta_path.insert(path_finder, OverlayFinder(os.path.join(overlay, FRONT), contents[FRONT]))  # noqa: PTH118
    sys.meta_path.append(OverlayFinder(os.path.join(overlay, BEHIND), contents[BEHIND]))  # noqa: PTH118
