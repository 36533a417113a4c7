"""Which interpreter a kernel runs with: the one that was named, the project's own, or the server's.

Owns the order in which environments are looked for, and what a name on a command line means. Looks at files and asks
programs for their version; starts no kernel. Called by `config`, which resolves what was named, and `server.host`.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

#: A directory that has one of these is where a project begins.
MARKS = ("pyproject.toml", ".git", ".loommux")
ENVIRONMENTS = (".venv", "venv")
VERSION = re.compile(r"3(\.\d+){0,2}")
#: What a program may take to say its version: the shims of pyenv are slow.
VERSION_SECONDS = 10.0
OWN = "loommux's own"


class NotFound(Exception):
    """No interpreter is meant by what was named; the message says what was tried."""


@dataclass(frozen=True)
class Choice:
    """An interpreter, and why it is that one. `skipped` says what else was found and is not used, and why."""

    python: Path
    why: str
    skipped: tuple[str, ...] = field(default=(), compare=False)


class Wanted(Protocol):
    """What of a server's configuration says which interpreter its kernels have."""

    @property
    def kernel_python(self) -> Path | None: ...
    @property
    def python_named_by(self) -> str | None: ...
    @property
    def workspace(self) -> Path: ...


def choose(config: Wanted, environment: Mapping[str, str]) -> Choice:
    """The interpreter of the next process: the one that was named, or what is found at this moment."""
    if config.kernel_python is not None:
        return Choice(config.kernel_python, config.python_named_by or "")
    return found(config.workspace, environment)


def found(workspace: Path, environment: Mapping[str, str]) -> Choice:
    """The interpreter for kernels that work there when none was named.

    An active environment inside the project; the project's own; another active one, but conda's base; the server's.
    """
    root = project(workspace)
    active = _active(environment)
    inside = [(path, why) for path, why in active if _within(path, root)]
    own = [(place / name, f"project {name}") for place in dict.fromkeys((workspace, root)) for name in ENVIRONMENTS]
    skipped: list[str] = []
    for path, why in (*inside, *own, *active):
        python = program(path)
        if not python.exists():
            continue
        if (reason := _untrusted(path)) is not None:
            skipped.append(f"{path} is not used: {reason}")
        elif _same(path, Path(sys.prefix)):
            return Choice(Path(sys.executable), why, tuple(dict.fromkeys(skipped)))
        else:
            return Choice(python, why, tuple(dict.fromkeys(skipped)))
    return Choice(Path(sys.executable), OWN, tuple(dict.fromkeys(skipped)))


def named(text: str, workspace: Path, environment: Mapping[str, str]) -> Path:
    """What somebody means by a path, a version or a name. Raises `NotFound`.

    With a separator it is the path of an interpreter or of an environment, relative to the workspace; ``3``,
    ``3.12``, ``3.12.4`` are the first such on PATH, then uv's and pyenv's; anything else is a program on PATH.
    """
    if os.sep in text or (os.altsep and os.altsep in text) or text.startswith("~"):
        path = workspace / Path(text).expanduser()
        for one in (path, program(path)):
            if one.is_file() and os.access(one, os.X_OK):
                return one
        raise NotFound(f"{os.path.normpath(path)} is no Python interpreter and no environment that has one")
    if VERSION.fullmatch(text):
        return _of_version(text, environment)
    if (on_path := shutil.which(text, path=environment.get("PATH"))) is not None:
        return Path(on_path)
    raise NotFound(f"no program {text!r} is on PATH; allowed: a path, a name on PATH, or a version like 3.12")


def project(workspace: Path) -> Path:
    """The nearest directory at or above the workspace where a project begins; the workspace itself when none does."""
    for directory in (workspace, *workspace.parents):
        if any((directory / mark).exists() for mark in MARKS):
            return directory
    return workspace


def program(environment: Path) -> Path:
    """The interpreter of an environment."""
    return environment / "Scripts" / "python.exe" if sys.platform == "win32" else environment / "bin" / "python"


def _active(environment: Mapping[str, str]) -> list[tuple[Path, str]]:
    """The environments that are active, the innermost first; conda's base never is one of a project."""
    active: list[tuple[Path, str]] = []
    if virtual := environment.get("VIRTUAL_ENV"):
        active.append((Path(virtual), "active environment"))
    if (conda := environment.get("CONDA_PREFIX")) and not (Path(conda) / "condabin").is_dir():
        active.append((Path(conda), "active conda environment"))
    return [(path, why) for path, why in active if path.is_absolute() and not _same(path, Path(sys.prefix))]


def _untrusted(path: Path) -> str | None:
    """Why what lies there is not run unasked: others own it or may write it. Not looked at on Windows."""
    if sys.platform == "win32":
        return None
    for one in (path, program(path).parent):
        facts = one.stat()
        if facts.st_uid not in (os.geteuid(), 0):
            return f"{one} belongs to user {facts.st_uid}"
        if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not facts.st_mode & stat.S_ISVTX:
            return f"others may write {one}"
    return None


def _of_version(text: str, environment: Mapping[str, str]) -> Path:
    wanted = [int(part) for part in text.split(".")]
    for candidate in _candidates(wanted, environment):
        if (known := _version(candidate)) is not None and list(known[1][: len(wanted)]) == wanted:
            return known[0]
    raise NotFound(f"no Python {text} is on PATH, nor among those of uv and pyenv; nothing is downloaded")


def _candidates(wanted: list[int], environment: Mapping[str, str]) -> Iterator[Path]:
    """Programs that may be of that version: those on PATH, then uv's, then pyenv's, newest first."""
    names = dict.fromkeys((f"python{'.'.join(map(str, wanted[:2]))}", "python3", "python"))
    for directory in environment.get("PATH", os.defpath).split(os.pathsep):
        for name in names:
            if directory and (on_path := shutil.which(name, path=directory)) is not None:
                yield Path(on_path)
    home = Path.home()
    uv = Path(environment.get("UV_PYTHON_INSTALL_DIR", home / ".local/share/uv/python"))
    pyenv = Path(environment.get("PYENV_ROOT", home / ".pyenv")) / "versions"
    number = ".".join(map(str, wanted))
    for directory, pattern in ((uv, f"cpython-{number}*"), (pyenv, f"{number}*")):
        yield from (one / "bin" / "python" for one in sorted(directory.glob(pattern), key=_natural, reverse=True))


def _natural(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]


def _version(python: Path) -> tuple[Path, tuple[int, ...]] | None:
    """The interpreter behind a program, which may be a shim, and its version; None when it does not say."""
    ask = "import sys; print(sys.executable, *sys.version_info[:3], sep='\\n')"
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", ask],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=VERSION_SECONDS, check=True,
        )  # fmt: skip
        executable, *version = done.stdout.split("\n")[:4]
        return Path(executable), tuple(map(int, version))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _within(path: Path, directory: Path) -> bool:
    return path == directory or directory in path.parents


def _same(one: Path, other: Path) -> bool:
    return one == other or (one.exists() and other.exists() and one.samefile(other))
