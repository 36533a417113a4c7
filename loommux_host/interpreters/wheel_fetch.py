"""Fetching one wheel for another Python, by `uv` or by this interpreter's `pip`.

Owns the command line of both. Which wheel is wanted says `overlay_plan`; where it is kept, `overlay_store`.
"""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from loommux_host.interpreters.overlay_plan import Piece
from loommux_host.interpreters.probe import Interpreter, run

#: A wheel has a few megabytes; a slow line may take a while.
FETCH_SECONDS = 180.0


class NotFetched(Exception):
    """The wheel could not be fetched; the message says why, and which command fetches it."""


def command(piece: Piece, interpreter: Interpreter, target: Path) -> list[str] | None:
    """What fetches a wheel into a directory, unpacked; None when there is neither uv nor pip."""
    version = ".".join(map(str, interpreter.version[:2]))
    wanted = f"{piece.name}=={piece.version}"
    if find_spec("pip") is not None:
        abi = ["--abi", f"cp{version.replace('.', '')}t"] if interpreter.threaded else []
        return [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input",
            "--no-deps", "--only-binary", ":all:", "--no-compile", "--python-version", version,
            "--implementation", "cp", *abi, "--target", str(target), wanted,
        ]  # fmt: skip
    if (uv := shutil.which("uv")) is not None:
        return [
            uv, "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--python",
            str(interpreter.python), "--target", str(target), wanted,
        ]  # fmt: skip
    return None


async def fetch(piece: Piece, interpreter: Interpreter, target: Path) -> None:
    """Put the files of a wheel into `target`. Raises `NotFetched`."""
    words = command(piece, interpreter, target)
    wheel = f"the wheel {piece.name} {piece.version} for {interpreter.named}"
    if words is None:
        raise NotFetched(f"{wheel} is needed, and there is neither pip in {sys.prefix} nor uv on PATH to fetch it")
    try:
        code, _, err = await run(words, FETCH_SECONDS)
    except (OSError, TimeoutError) as error:
        raise NotFetched(f"{wheel} could not be fetched: {error}") from error
    if code != 0:
        said = [line.strip() for line in err.splitlines() if line.strip()]
        raise NotFetched(f"{wheel} could not be fetched: {said[-1] if said else f'code {code}'}")
