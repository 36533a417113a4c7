"""Real servers over stdio.

Every server gets a temporary directory and a mark of its own; a test that leaves a
process or a file behind fails.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from driving import COMMAND, GONE, Agent, Lines, Place, Start
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client


@pytest.fixture
def place(tmp_path: Path, private_jupyter: Path) -> Iterator[Place]:
    # Not below tmp_path: the paths of sockets are short.
    made = Place(tmp_path, Path(tempfile.mkdtemp(prefix="lm-")))
    try:
        yield made
        left = made.wait_until_empty()
        files = [str(p.relative_to(made.temporary)) for p in made.temporary.rglob("*") if p != made.errors]
        assert not left, f"processes left: {left}\n{made.log()}"
        assert not files, f"files left: {files}\n{made.log()}"
        assert "loommux: ERROR" not in made.log(), made.log()
    finally:
        shutil.rmtree(made.temporary)


@pytest.fixture
def start(place: Place) -> Start:
    """``async with start("--flag", mode=…) as agent``: a server with one client."""

    @contextlib.asynccontextmanager
    async def start(*flags: str, mode: str = "legacy", cwd: Path | None = None) -> AsyncIterator[Agent]:
        parameters = StdioServerParameters(
            command=COMMAND[0], args=[*COMMAND[1:], *flags], env=place.environment, cwd=cwd or place.workspace
        )
        failure: Exception | None = None
        with place.errors.open("a") as errors:
            async with Client(stdio_client(parameters, errlog=errors), mode=mode) as client:
                try:
                    yield Agent(client, mode)
                except Exception as error:  # the client's task groups would wrap it in groups
                    failure = error
        if failure is not None:
            raise failure

    return start


@pytest.fixture
def lines(place: Place) -> Iterator[Callable[..., Lines]]:
    """``lines("--flag")``: a server on three pipes of ours; ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*flags: str, command: list[str] | None = None, stdin: int = subprocess.PIPE) -> Lines:
        with place.errors.open("a") as errors:
            process = subprocess.Popen(
                [*(command or COMMAND), *flags],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=place.workspace,
                env=os.environ | place.environment,
            )
        started.append(process)
        return Lines(process)

    yield start
    for process in started:
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GONE)
        process.kill()
        process.wait()
