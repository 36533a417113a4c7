"""Fixtures: real servers over stdio.

Every server gets a temporary directory and a mark of its own; a test that leaves a
process or a file behind fails. The `conftest.py` of each directory that uses them names them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.driving import COMMAND, GONE, Agent, Lines, Place, Start, serving
from tests.e2e.http_driving import Web, web


@contextlib.contextmanager
def checked(workspace: Path, runtime: Path) -> Iterator[Place]:
    # Not below the workspace: the paths of sockets are short.
    made = Place(workspace, Path(tempfile.mkdtemp(prefix="lm-")), runtime)
    try:
        yield made
        left = made.wait_until_empty()
        assert not left, f"processes left: {left}\n{made.log()}"
        assert not made.files(), f"files left: {made.files()}\n{made.log()}"
        assert "loommux: ERROR" not in made.log(), made.log()
    finally:
        shutil.rmtree(made.temporary)


@pytest.fixture
def place(tmp_path: Path, private_jupyter: Path) -> Iterator[Place]:
    with checked(tmp_path, private_jupyter) as made:
        yield made


@pytest.fixture
def start(place: Place) -> Start:
    """``async with start("--flag", mode=…) as agent``: a server with one client."""
    return functools.partial(serving, place)


@pytest.fixture(scope="module")
def common_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Where the server of `agent` runs."""
    with checked(tmp_path_factory.mktemp("workspace"), tmp_path_factory.mktemp("runtime")) as made:
        yield made


@pytest.fixture(scope="module")
async def agent(common_place: Place) -> AsyncIterator[Agent]:
    """One server with one client for all tests of a module; each leaves a kernel that runs no cell."""
    async with serving(common_place) as made:
        yield made


@pytest.fixture(scope="module")
async def server(common_place: Place) -> AsyncIterator[Web]:
    """One server over HTTP for all tests of a module; each works in kernels of its own names."""
    async with web(common_place) as made:
        yield made


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
