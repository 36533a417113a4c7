"""The environment of a kernel's process (contract 8.3), and the programs that go with it.

Decides which variables are set, kept and removed, and what ``python`` and ``pip`` mean in
``!cmd``. Reads nothing but what it is given and whether a few files exist. Called by
`launcher`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

SET = {
    "NO_COLOR": "1",
    "PY_COLORS": "0",
    "PYTHONUNBUFFERED": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "GIT_EDITOR": "true",
    "TERM": "dumb",
}
REMOVED = {
    "CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR",
    # What configures Jupyter; where its files are (JUPYTER_RUNTIME_DIR, ...) stays.
    "JUPYTER_CONFIG_DIR", "JUPYTER_CONFIG_PATH", "JUPYTER_NO_CONFIG", "JUPYTER_PREFER_ENV_PATH",
    "JUPYTER_TOKEN", "JUPYTER_PASSWORD",
    # What makes an interpreter do more, or other, than it is asked to.
    "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__",
}  # fmt: skip
REMOVED_PREFIXES = ("LOOMMUX_", "IPYTHON", "IPY_", "JPY_")
PROGRAMS = ("python", "python3", "pip", "pip3")


def kernel_environment(
    inherited: Mapping[str, str],
    *,
    python: Path,
    programs: Path | None,
    kernel_id: str,
    kernel_name: str,
    control_url: str | None,
    secrets: Iterable[str] = (),
) -> dict[str, str]:
    """Variables for a kernel that runs with `python`; `programs` is a directory for what it lacks.

    Without one, ``PATH`` is left as it is.
    A variable that contains one of `secrets` is left out, whatever its name.
    """
    hidden = [secret for secret in secrets if secret]
    kept = {
        name: value
        for name, value in inherited.items()
        if name not in REMOVED
        and not name.startswith(REMOVED_PREFIXES)
        and not any(secret in value for secret in hidden)
    }
    kept |= SET | {"LOOMMUX_KERNEL_ID": kernel_id, "LOOMMUX_KERNEL_NAME": kernel_name}
    if control_url is not None:
        kept["LOOMMUX_CONTROL_URL"] = control_url
    if not _same(python, Path(sys.executable)):
        _forget_own_interpreter(kept)
    return kept if programs is None else _with_programs(kept, python, programs)


def _forget_own_interpreter(environment: dict[str, str]) -> None:
    """Nothing of the server's own interpreter on the path of another one."""
    environment.pop("PYTHONHOME", None)
    entries = environment.pop("PYTHONPATH", "").split(os.pathsep)
    own = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.exec_prefix)} - {Path("/usr")}
    foreign = [e for e in entries if e and not own & {Path(e), *Path(e).parents} and "site-packages" not in e]
    if foreign:
        environment["PYTHONPATH"] = os.pathsep.join(foreign)


def _with_programs(environment: dict[str, str], python: Path, programs: Path) -> dict[str, str]:
    """Have ``python`` and ``pip`` be those of `python`.

    An environment's directory of programs comes first, as when it is activated. One that
    many other programs live in (``/usr/bin``) must not change its place: small programs
    of ours stand in, also for what an environment lacks, so that no ``pip`` of another
    one installs elsewhere.
    """
    own = python.parent
    virtual = (own.parent / "pyvenv.cfg").is_file()
    environment.pop("VIRTUAL_ENV", None)
    first: list[str] = []
    lacking = [name for name in PROGRAMS if not (_program(own, name)).exists()]
    if virtual:
        environment["VIRTUAL_ENV"] = str(own.parent)
    if virtual or (own.parent / "conda-meta").is_dir():
        first = [str(own)]
    elif not _means(environment.get("PATH"), python):
        lacking = list(PROGRAMS)
    else:
        lacking = []
    if lacking:
        _stand_in(programs, python, lacking)
        first.append(str(programs))
    environment["PATH"] = os.pathsep.join([*first, environment.get("PATH", os.defpath)])
    return environment


def _means(path: str | None, python: Path) -> bool:
    """Whether the programs on `path` are those beside `python` already."""
    found = [shutil.which(name, path=path) for name in PROGRAMS]
    return all(f is not None and Path(f).parent == python.parent for f in found)


def _stand_in(directory: Path, python: Path, names: Iterable[str]) -> None:
    directory.mkdir(mode=0o700, exist_ok=True)
    for name in names:
        path = _program(directory, name, script=True)
        module = ["-m", "pip"] if name.startswith("pip") else []
        if sys.platform == "win32":
            path.write_text("@" + " ".join([f'"{python}"', *module, "%*"]) + "\n")
        else:
            path.write_text(f'#!/bin/sh\nexec {shlex.join([str(python), *module])} "$@"\n')
            path.chmod(0o700)


def _program(directory: Path, name: str, *, script: bool = False) -> Path:
    if sys.platform == "win32":
        return directory / (f"{name}.cmd" if script else f"{name}.exe")
    return directory / name


def _same(one: Path, other: Path) -> bool:
    return one == other or (one.parent == other.parent and one.resolve() == other.resolve())
