"""What a keeper imports before it forks, and whether the files of that are still the same.

Owns the list of modules (all that a kernel imports up to its first reply, and nothing a
cell would miss) and the look at their files. Knows nothing of processes or sockets.
Called by `keeper`; runs in the kernels' interpreter, standard library only besides.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import time

#: Beyond what ``loommux_kernel`` imports when it is imported: what its start and a first cell import.
#: A test compares with what a kernel has then. Nothing of the user's, nothing that starts a thread.
MODULES = (
    "loommux_kernel.app",
    "tornado.gen",
    "tornado.locks",
    "tornado.queues",
    "tornado.platform.asyncio",
    "IPython.utils.wildcard",
    "IPython.core.oinspect",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.logger",
    "IPython.extensions.storemagic",
    "unicodedata",
)

#: For so long files that were the same are taken to be.
SEEN_SECONDS = 0.1

Facts = tuple[int, int, int] | None


class Preloaded:
    """The modules of this process, and what their files were like when they were imported."""

    def __init__(self) -> None:
        #: Why nothing could be imported; then every kernel gets an interpreter of its own.
        self.failure: str | None = None
        self._seen_at = float("-inf")
        self._files: dict[str, Facts] = {}
        self._paths: dict[str, list[str]] = {}

    def run(self) -> None:
        """Import everything, and put it where the collector does not look, so that forks share it."""
        gc.disable()
        try:
            for name in MODULES:
                importlib.import_module(name)
            with importlib.import_module("loommux_kernel.app").without_debugpy():
                pass
        except Exception as error:
            self.failure = f"the kernel's modules could not be imported ({type(error).__name__}: {error})"
            return
        for module in list(sys.modules.values()):
            if file := getattr(module, "__file__", None):
                self._files[file] = facts(file)
        self._paths = {entry: path_files(entry) for entry in sys.path}
        for files in self._paths.values():
            self._files |= {file: facts(file) for file in files}
        gc.collect()
        gc.freeze()

    def obstacle(self) -> str | None:
        """Why a fork now would not be what a new interpreter is; None when it would."""
        if self.failure is not None:
            return self.failure
        tasks = len(os.listdir("/proc/self/task"))  # noqa: PTH208
        if tasks != 1:
            return f"the keeper has {tasks} threads"
        return self._change()

    def _change(self) -> str | None:
        """What is different on the disk; not looked at again for each of many that start together."""
        if time.monotonic() - self._seen_at < SEEN_SECONDS:
            return None
        for file, before in self._files.items():
            if facts(file) != before:
                return f"{file} has changed since it was imported"
        for entry, before in self._paths.items():
            if path_files(entry) != before:
                return f"the .pth files in {entry} have changed"
        self._seen_at = time.monotonic()
        return None


def facts(file: str) -> Facts:
    """What changes with a file's content; None when it is not there."""
    try:
        found = os.stat(file)  # noqa: PTH116
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def path_files(entry: str) -> list[str]:
    """The files in a directory of the path that extend the path, as an interpreter reads them at its start."""
    if not entry.endswith(("site-packages", "dist-packages")):
        return []
    try:
        return sorted(f"{entry}/{name}" for name in os.listdir(entry) if name.endswith(".pth"))  # noqa: PTH208
    except OSError:
        return []
