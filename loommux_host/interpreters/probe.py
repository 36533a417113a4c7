"""What an interpreter is and has: asked of itself, in a process of its own.

Owns the question and its answer, an `Interpreter`. Decides nothing. Called by `overlays` and `diagnosis`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The oldest Python that the newest IPython of `overlay_plan.ROOTS` runs on.
OLDEST = (3, 11)
#: How long an interpreter may take to say what it has, on a busy machine with a slow disk.
ANSWER_SECONDS = 60.0
#: Run as ``python -c``; for any Python 3, so that one that is too old says which it is.
QUESTION = """
import json, sys, sysconfig
sys.path[:] = [entry for entry in sys.path if entry]
found = {}
if sys.version_info >= (3, 8):
    import importlib.metadata as metadata
    for one in metadata.distributions():
        name = one.metadata["Name"]
        if name:
            found.setdefault(name, one.version)
print(json.dumps({
    "executable": sys.executable, "prefix": sys.prefix, "version": list(sys.version_info[:3]),
    "implementation": sys.implementation.name, "platform": sysconfig.get_platform(),
    "threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")), "path": sys.path, "distributions": found,
}))
"""


class NoInterpreter(Exception):
    """What was named is no Python that answers; the message says which and why."""


@dataclass(frozen=True)
class Interpreter:
    """What an interpreter says of itself. `distributions` are its packages by name as written, with versions."""

    python: Path
    prefix: Path
    version: tuple[int, int, int]
    implementation: str
    platform: str
    #: Built without the global lock: it needs wheels of its own.
    threaded: bool
    path: tuple[str, ...]
    distributions: dict[str, str]

    @property
    def named(self) -> str:
        """``Python 3.13.0 at /opt/python``."""
        return f"Python {'.'.join(map(str, self.version))} at {self.python}"


async def probe(python: Path, environment: Mapping[str, str]) -> Interpreter:
    """Ask it, as a kernel's process would find itself in `environment`. Raises `NoInterpreter`."""
    try:
        code, out, err = await run([str(python), "-c", QUESTION], ANSWER_SECONDS, environment)
        said: dict[str, Any] = json.loads(out) if code == 0 else {}
    except (OSError, TimeoutError, ValueError) as error:
        raise NoInterpreter(f"{python} cannot be run as a Python: {error}") from error
    if not said:
        last = err.strip().rpartition("\n")[2] or f"it ended with code {code}"
        raise NoInterpreter(f"{python} cannot be run as a Python: {last}")
    major, minor, micro = said["version"]
    return Interpreter(
        python, Path(said["prefix"]), (major, minor, micro), said["implementation"], said["platform"],
        said["threaded"], tuple(said["path"]), said["distributions"],
    )  # fmt: skip


async def run(
    words: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run a program to its end: exit code, output, errors. It does not outlive the wait for it.

    Raises `OSError`, and `TimeoutError` when it takes longer than `seconds`.
    """
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *words, stdin=null, stdout=pipe, stderr=pipe, env=environment, cwd=os.sep
    )
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate()
    except TimeoutError:
        raise TimeoutError(f"it did not end within {seconds:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")
