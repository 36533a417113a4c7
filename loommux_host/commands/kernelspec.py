"""Install or remove the kernelspec "loommux session", with which JupyterLab works in an agent's kernel.

It starts a small proxy with this very interpreter, so Jupyter's own environment needs
nothing of loommux.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from loommux_host.command_line.reporting import DONE, Refused, show

#: The spec's name in Jupyter's lists, as in ``jupyter console --kernel loommux``.
NAME = "loommux"
_HERE = Path(__file__).parent.parent
#: In an installed package, and in a checkout.
_SOURCES = (_HERE / "spec", _HERE.parent / "kernelspec")
PROXY = "loommux_host.jupyter.proxy"


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", help="put it there, or take it away", choices=("install", "remove"))
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="for every Jupyter of this user (default)")
    where.add_argument("--sys-prefix", action="store_true", help="in this Python's environment")
    where.add_argument("--prefix", metavar="DIR", help="in the environment below DIR")


def run(options: Namespace) -> int:
    try:
        return install(options) if options.action == "install" else remove(options)
    except OSError as error:
        raise Refused("file_not_writable", f"{error.filename or 'the kernelspec'}: {error.strerror}") from None


def install(options: Namespace) -> int:
    from jupyter_client.kernelspec import KernelSpecManager

    with tempfile.TemporaryDirectory() as temporary:
        spec = Path(temporary) / NAME
        shutil.copytree(source(), spec)
        described = json.loads((spec / "kernel.json").read_text())
        described["argv"][0] = sys.executable
        (spec / "kernel.json").write_text(json.dumps(described, indent=1) + "\n")
        prefix = _prefix(options)
        where = KernelSpecManager().install_kernel_spec(str(spec), NAME, user=prefix is None, prefix=prefix)
    show(f'installed "{described["display_name"]}" in {where}')
    return DONE


def remove(options: Namespace) -> int:
    from jupyter_core.paths import jupyter_data_dir

    prefix = _prefix(options)
    below = Path(jupyter_data_dir()) if prefix is None else Path(prefix) / "share" / "jupyter"
    where = below / "kernels" / NAME
    if not _is_ours(where):
        raise Refused("kernelspec_not_found", f"no kernelspec of loommux in {where}")
    shutil.rmtree(where)
    show(f"removed {where}")
    return DONE


def source() -> Path:
    """The directory with the spec and its logos."""
    return next(path for path in _SOURCES if path.is_dir())


def _prefix(options: Namespace) -> str | None:
    return sys.prefix if options.sys_prefix else options.prefix


def _is_ours(where: Path) -> bool:
    try:
        return PROXY in json.loads((where / "kernel.json").read_text())["argv"]
    except (FileNotFoundError, KeyError, ValueError):
        return False
