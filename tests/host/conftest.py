"""What tests of the host share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from loommux_host.processes import runtime_files as files_module


@pytest.fixture
def short_temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory with a path short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="lm-", dir="/tmp"))
    monkeypatch.setattr(files_module.tempfile, "gettempdir", lambda: str(path))
    yield path
    shutil.rmtree(path)
