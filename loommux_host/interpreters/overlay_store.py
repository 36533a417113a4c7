"""Overlays on disk: laid out once in the user's cache, and shared by every kernel of the same plan.

Owns the cache's directories and the way in which one is made: beside its place, then moved there, so that two servers
may make the same one and a broken one is never used. Files are hard links where the file system allows them, else
copies; never links into another environment, which may be removed. Called by `overlays`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

from loommux_host.interpreters.finders import BEHIND, CONTENTS, FRONT
from loommux_host.interpreters.overlay_plan import Piece
from loommux_host.interpreters.probe import Interpreter

#: A change of what lies in an overlay, or how, makes others of all.
FORMAT = 1

Fetch = Callable[[Piece, Interpreter, Path], Awaitable[None]]


def key_of(pieces: Sequence[Piece], interpreter: Interpreter) -> str:
    """The name of an overlay in the cache: the same for the same packages and the same kind of Python."""
    kind = [FORMAT, interpreter.implementation, interpreter.version[:2], interpreter.threaded, interpreter.platform]
    said = json.dumps([kind, [[piece.name, piece.version, piece.place, piece.source] for piece in pieces]])
    return f"{interpreter.version[0]}.{interpreter.version[1]}-{hashlib.sha256(said.encode()).hexdigest()[:16]}"


def find(cache: Path, key: str) -> Path | None:
    """The overlay, if it is whole."""
    overlay = cache / "overlays" / key
    try:
        contents = json.loads((overlay / CONTENTS).read_text())
        whole = all(_there(overlay / place, name) for place in (FRONT, BEHIND) for name in contents[place])
    except (OSError, ValueError, KeyError):
        return None
    return overlay if whole else None


def make(cache: Path, pieces: Sequence[Piece], interpreter: Interpreter) -> Path:
    """Lay it out; returns where. The wheels are there. Raises `OSError`; nothing half made is left. Blocks."""
    overlays = cache / "overlays"
    overlays.mkdir(mode=0o700, parents=True, exist_ok=True)
    place = overlays / key_of(pieces, interpreter)
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=overlays))
    try:
        contents: dict[str, list[str]] = {FRONT: [], BEHIND: []}
        for which in (FRONT, BEHIND):
            (making / which).mkdir()
            for piece in pieces:
                if piece.place == which:
                    contents[which] += _lay_out(piece, interpreter, making / which, cache)
        (making / CONTENTS).write_text(json.dumps(contents))
        return _move(making, place)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _move(making: Path, place: Path) -> Path:
    """Put it where it belongs; one that another server has made meanwhile is as good, a broken one goes."""
    with contextlib.suppress(OSError):
        making.rename(place)
        return place
    if find(place.parent.parent, place.name) is None:
        broken = Path(tempfile.mkdtemp(prefix=".broken-", dir=place.parent))
        place.rename(broken / place.name)
        making.rename(place)
        shutil.rmtree(broken, ignore_errors=True)
    return place


def _lay_out(piece: Piece, interpreter: Interpreter, target: Path, cache: Path) -> list[str]:
    """Put one package into a place of the overlay; returns its top-level names."""
    if piece.source == "own":
        names = _link_distribution(distribution(piece.name), target)
    else:
        wheel = wheel_place(cache, piece, interpreter)
        names = {entry.name for entry in wheel.iterdir()}
        for entry in sorted(names):
            _link(wheel / entry, target / entry)
    return sorted(_importable(names))


def wheel_place(cache: Path, piece: Piece, interpreter: Interpreter) -> Path:
    """Where the files of a fetched wheel are kept."""
    kind = f"cp{interpreter.version[0]}{interpreter.version[1]}{'t' if interpreter.threaded else ''}"
    return cache / "wheels" / f"{piece.name}-{piece.version}-{kind}-{interpreter.platform}"


async def with_wheel(cache: Path, piece: Piece, interpreter: Interpreter, fetch: Fetch) -> None:
    """Have the files of a wheel in the cache, fetched once. Raises `OSError` and what `fetch` raises."""
    place = wheel_place(cache, piece, interpreter)
    if place.is_dir():
        return
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=".fetching-", dir=place.parent))
    try:
        await fetch(piece, interpreter, making)
        with contextlib.suppress(OSError):  # another server was faster
            os.rename(making, place)  # noqa: PTH104 -- one call
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _link_distribution(found: Distribution, target: Path) -> set[str]:
    """The files of an installed package, as its RECORD has them, without compiled code of another Python."""
    names: set[str] = set()
    for file in found.files or ():
        if file.parts[0] == ".." or "__pycache__" in file.parts or Path(str(file)).is_absolute():
            continue
        names.add(file.parts[0])
        _link(Path(str(found.locate_file(file))), target / str(file))
    return names


def _link(source: Path, target: Path) -> None:
    """The same file, or the same tree, at another place."""
    if source.is_dir():
        for entry in sorted(source.iterdir()):
            _link(entry, target / entry.name)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)


def _importable(names: set[str]) -> set[str]:
    """What a program imports: not metadata, programs and libraries beside it."""
    modules = {name.partition(".")[0] for name in names if not name.endswith((".dist-info", ".libs", ".data"))}
    return {name for name in modules if name.isidentifier() and name != "bin"}


def _there(directory: Path, name: str) -> bool:
    return (directory / name).is_dir() or any(directory.glob(f"{name}.*"))
