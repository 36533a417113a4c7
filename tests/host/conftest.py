"""What tests of the host share: a temporary directory for sockets, cells under a test's control."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from loommux_host.processes import runtime_files
from tests.host.twins import Script


@pytest.fixture
def short_temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory for servers, with a path short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="lm-", dir="/tmp"))
    monkeypatch.setattr(runtime_files.tempfile, "gettempdir", lambda: str(path))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def script() -> Script:
    """Cells that run until they are let go."""
    return Script()
