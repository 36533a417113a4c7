"""What all tests share: one event loop backend, private Jupyter directories."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

# A suite that a shell has started in the background ignores SIGINT, and all that it starts would, as programs do.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def private_jupyter(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Connection files go to a directory of this test's own; leftovers fail the test."""
    runtime = tmp_path_factory.mktemp("jupyter-runtime")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(runtime))
    yield runtime
    left = [p.name for p in runtime.iterdir()]
    assert not left, f"left in the Jupyter runtime directory: {left}"
