"""The way into a kernel's process, for any interpreter: ``python enter.py LAUNCH.json``.

Runs ``loommux_kernel`` from beside this package, wherever the interpreter has it or not,
and whatever lies in the working directory under its name. Nothing else of the server's
environment comes onto the kernel's path. Standard library only. Started by `launch`.
"""
# ruff: noqa: PTH100, PTH118, PTH120

import os
import runpy
import sys
from importlib.util import module_from_spec, spec_from_file_location

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(os.path.dirname(HERE), "loommux_kernel")


def main() -> None:
    """Put the package in place, then go on as ``python -m loommux_kernel`` would."""
    if sys.path and os.path.abspath(sys.path[0]) == HERE:
        del sys.path[0]  # the directory of this script holds the host's modules
    spec = spec_from_file_location(
        "loommux_kernel", os.path.join(PACKAGE, "__init__.py"), submodule_search_locations=[PACKAGE]
    )
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["loommux_kernel"] = module
    spec.loader.exec_module(module)
    runpy.run_module("loommux_kernel", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
