"""Twenty seconds of what `make stress` does for two minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(400)
@pytest.mark.skipif(sys.platform != "linux", reason="the oracle reads /proc")
def test_sixteen_clients_at_random_find_nothing_untrue_and_leave_nothing() -> None:
    command = [sys.executable, "-m", "stress", "--seconds", "20", "--seed", "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "clean: no fault, no process and no file left" in done.stdout
