"""The way into a kernel's process, for any interpreter: ``python enter.py LAUNCH.json``.

Runs ``loommux_kernel`` from beside this package, wherever the interpreter has it or not,
and whatever lies in the working directory under its name. Nothing else of the server's
environment comes onto the kernel's path; packages that the interpreter lacks come from an
overlay (``--overlay DIRECTORY`` first, see `interpreters.finders`). ``python enter.py --keeper …`` is the keeper
(see `keeper`) until it is forked as a kernel, which then goes on here as any other.
Standard library only. Started by `processes.launcher` and `keeper.supervisor`.
"""
# ruff: noqa: PTH100, PTH118, PTH120

import os
import runpy
import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

HERE = os.path.dirname(os.path.abspath(__file__))


def main() -> None:
    """Put the package in place, then go on as ``python -m loommux_kernel`` would."""
    if sys.path and os.path.abspath(sys.path[0]) == HERE:
        del sys.path[0]  # the directory of this script holds the host's modules
    if (overlay := taken_overlay()) is not None:
        load("interpreters/finders.py").install(overlay)
    place("loommux_kernel")
    if sys.argv[1:2] == ["--keeper"]:
        place("loommux_host")
        from loommux_host.keeper.fork_server import main as keep

        keep()
        taken_overlay()  # a kernel is forked only where it is the keeper's own
        for name in [n for n in sys.modules if n.partition(".")[0] == "loommux_host"]:
            del sys.modules[name]
    runpy.run_module("loommux_kernel", run_name="__main__", alter_sys=True)


def taken_overlay() -> str | None:
    """The overlay that the command line names, which is taken out of it."""
    if sys.argv[1:2] != ["--overlay"]:
        return None
    overlay = sys.argv[2]
    del sys.argv[1:3]
    return overlay


def load(file: str) -> ModuleType:
    """Run one module from beside this one, and leave no trace of it among the imported ones."""
    spec = spec_from_file_location("loommux_overlay_finders", os.path.join(HERE, file))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def place(package: str) -> None:
    """Import a package from beside this one."""
    directory = os.path.join(os.path.dirname(HERE), package)
    spec = spec_from_file_location(
        package, os.path.join(directory, "__init__.py"), submodule_search_locations=[directory]
    )
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
