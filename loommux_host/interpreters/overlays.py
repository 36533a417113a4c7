"""The overlay of a kernel's interpreter: looked for, planned and made when a process is to start there.

Owns what a server knows of interpreters: the last answer of each, for as long as its files are the same. Called by
`server.host` for `processes.launcher` and for the keeper, and by `diagnosis`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from importlib.metadata import distribution, requires
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, parse_tag
from packaging.utils import canonicalize_name

from loommux_host.interpreters import overlay_store
from loommux_host.interpreters.overlay_plan import ROOTS, Package, Piece, plan
from loommux_host.interpreters.probe import OLDEST, Interpreter, NoInterpreter, probe
from loommux_host.interpreters.wheel_fetch import NotFetched, fetch

Mode = Literal["download", "local", "none"]
#: What changes with a package that is installed, upgraded or removed, for each entry of the path.
Seen = tuple[tuple[str, int, int], ...]


class NoOverlay(Exception):
    """A kernel cannot run there; the message says why, and what would help."""


class Overlays:
    """The overlays of one server. `mode` is the setting ``kernel_overlay``."""

    def __init__(self, mode: Mode, cache: Path | None = None) -> None:
        self._mode: Mode = mode
        self._cache = cache or default_cache()
        self._known: dict[Path, tuple[Seen, Interpreter, list[Piece]]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def find(self, python: Path, environment: Mapping[str, str]) -> Path | None:
        """The overlay for a kernel with that interpreter; None when it needs none. Raises `NoOverlay`."""
        async with self._one_at_a_time:
            interpreter, pieces = await self.planned(python, environment)
            return await self._overlay(interpreter, pieces) if pieces else None

    async def planned(self, python: Path, environment: Mapping[str, str]) -> tuple[Interpreter, list[Piece]]:
        """What that interpreter is, and what its overlay has; asked again when its files have changed."""
        known = self._known.get(python)
        if known is not None and known[0] == _seen(known[1]):
            return known[1], known[2]
        try:
            interpreter = await probe(python, environment)
        except NoInterpreter as error:
            raise NoOverlay(str(error)) from error
        if interpreter.implementation != "cpython" or interpreter.version[:2] < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            kind = "" if interpreter.implementation == "cpython" else f" ({interpreter.implementation})"
            raise NoOverlay(f"{interpreter.named}{kind} cannot run a kernel: it has to be CPython {oldest} or newer")
        pieces = await asyncio.to_thread(plan, interpreter, own_package, kernel_needs())
        if pieces and self._mode == "none":
            raise NoOverlay(_lacking(interpreter, pieces))
        self._known[python] = (_seen(interpreter), interpreter, pieces)
        return interpreter, pieces

    async def _overlay(self, interpreter: Interpreter, pieces: list[Piece]) -> Path:
        key = overlay_store.key_of(pieces, interpreter)
        found = await asyncio.to_thread(overlay_store.find, self._cache, key)
        if found is not None:
            return found
        try:
            for piece in pieces:
                if piece.source == "wheel":
                    await overlay_store.with_wheel(self._cache, piece, interpreter, self._fetch)
            return await asyncio.to_thread(overlay_store.make, self._cache, pieces, interpreter)
        except NotFetched as error:
            raise NoOverlay(f"{error}. {_by_hand(interpreter, pieces)}") from error
        except OSError as error:
            raise NoOverlay(
                f"packages for {interpreter.named} cannot be put into {self._cache}: {error.strerror or error}."
                f" {_by_hand(interpreter, pieces)}"
            ) from error

    async def _fetch(self, piece: Piece, interpreter: Interpreter, target: Path) -> None:
        if self._mode == "local":
            raise NotFetched(
                f"the wheel {piece.name} {piece.version} for {interpreter.named} is not in {self._cache}, and"
                ' kernel_overlay is "local"; one start with "download" fetches it'
            )
        await fetch(piece, interpreter, target)


def default_cache() -> Path:
    """The user's cache directory for this program."""
    from platformdirs import user_cache_path  # jupyter_core's; not needed by a server whose kernels run with its own

    return user_cache_path("loommux", appauthor=False)


def kernel_needs() -> dict[str, SpecifierSet]:
    """What `loommux_kernel` imports, with the versions that this server's own package asks for."""
    own = {canonicalize_name(r.name): r.specifier for r in map(Requirement, requires("loommux") or ())}
    return {name: own.get(canonicalize_name(name), SpecifierSet()) for name in ROOTS}


def own_package(name: str) -> Package:
    """A package of the server's own environment."""
    found = distribution(name)
    wheel = found.read_text("WHEEL") or ""
    tags: set[Tag] = set()
    for line in wheel.splitlines():
        if line.startswith("Tag:"):
            tags |= parse_tag(line.removeprefix("Tag:").strip())
    return Package(canonicalize_name(name), found.version, tuple(found.requires or ()), frozenset(tags))


def _seen(interpreter: Interpreter) -> Seen:
    """What changes when the interpreter, or what is installed for it, does."""
    files = (str(interpreter.python), str(interpreter.prefix / "pyvenv.cfg"), *interpreter.path)
    found: list[tuple[str, int, int]] = []
    for file in files:
        try:
            facts = os.stat(file)  # noqa: PTH116
        except OSError:
            continue
        found.append((file, facts.st_mtime_ns, facts.st_ino))
    return tuple(found)


def _lacking(interpreter: Interpreter, pieces: list[Piece]) -> str:
    old = [f"{one.name} {one.instead}" for one in pieces if one.instead is not None]
    missing = [one.name for one in pieces if one.instead is None and one.name in kernel_needs()]
    what = [f"has {', '.join(old)}, too old for a kernel"] if old else []
    what += [f"has no {', '.join(missing)}"] if missing else []
    what = what or [f"lacks {len(pieces)} packages that a kernel needs"]
    return f'{interpreter.named} {" and ".join(what)}; kernel_overlay is "none". {_by_hand(interpreter, pieces)}'


def _by_hand(interpreter: Interpreter, pieces: list[Piece]) -> str:
    """The command that makes an overlay unnecessary."""
    needs = kernel_needs()
    wanted = [f"'{name}{needs[name]}'" for name in ROOTS if any(one.name == canonicalize_name(name) for one in pieces)]
    names = " ".join(wanted or [f"'{one.name}=={one.version}'" for one in pieces])
    return f"Without an overlay: {interpreter.python} -m pip install {names}"
