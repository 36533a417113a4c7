"""``loommux kernelspec install|remove``: the kernelspec *loommux session* for JupyterLab and others.

Owns where the spec goes, and that it starts the proxy with this very interpreter: Jupyter's
own environment needs to have nothing of ours. The spec itself lies in ``kernelspec/``.
Called by `cli`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

#: The spec's name in Jupyter's lists, as in ``jupyter console --kernel loommux``.
NAME = "loommux"
_HERE = Path(__file__).parent
#: In an installed package, and in a checkout.
_SOURCES = (_HERE / "spec", _HERE.parent / "kernelspec")
PROXY = "loommux_host.proxy"


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        return install(options) if options.action == "install" else remove(options)
    except OSError as error:
        sys.stderr.write(f"loommux: {error.filename or 'the kernelspec'}: {error.strerror}\n")
        return 1


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="loommux kernelspec",
        description='Install or remove the kernelspec "loommux session": a notebook with it works in the newest'
        " kernel of an agent, or in the one that the environment variable LOOMMUX_SESSION names.",
        allow_abbrev=False,
    )
    made.add_argument("action", choices=("install", "remove"))
    where = made.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="for every Jupyter of this user (default)")
    where.add_argument("--sys-prefix", action="store_true", help="in this Python's environment")
    where.add_argument("--prefix", metavar="DIR", help="in the environment below DIR")
    return made


def install(options: argparse.Namespace) -> int:
    from jupyter_client.kernelspec import KernelSpecManager

    with tempfile.TemporaryDirectory() as temporary:
        spec = Path(temporary) / NAME
        shutil.copytree(source(), spec)
        described = json.loads((spec / "kernel.json").read_text())
        described["argv"][0] = sys.executable
        (spec / "kernel.json").write_text(json.dumps(described, indent=1) + "\n")
        prefix = _prefix(options)
        where = KernelSpecManager().install_kernel_spec(str(spec), NAME, user=prefix is None, prefix=prefix)
    sys.stdout.write(f'installed "{described["display_name"]}" in {where}\n')
    return 0


def remove(options: argparse.Namespace) -> int:
    from jupyter_core.paths import jupyter_data_dir

    prefix = _prefix(options)
    below = Path(jupyter_data_dir()) if prefix is None else Path(prefix) / "share" / "jupyter"
    where = below / "kernels" / NAME
    if not _is_ours(where):
        sys.stderr.write(f"loommux: no kernelspec of loommux in {where}\n")
        return 1
    shutil.rmtree(where)
    sys.stdout.write(f"removed {where}\n")
    return 0


def source() -> Path:
    """The directory with the spec and its logos."""
    return next(path for path in _SOURCES if path.is_dir())


def _prefix(options: argparse.Namespace) -> str | None:
    return sys.prefix if options.sys_prefix else options.prefix


def _is_ours(where: Path) -> bool:
    try:
        return PROXY in json.loads((where / "kernel.json").read_text())["argv"]
    except (FileNotFoundError, KeyError, ValueError):
        return False
