"""Making a private directory again that somebody has removed.

A temporary directory is emptied under a program that runs for long: by the system's cleaner
after ten days, or by ``rm -rf /tmp/*``. Whoever needs a directory of ours makes it again, and
what is missing above it. Knows nothing of what is in it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def make_again(directory: Path) -> None:
    """Make it with all that is missing above it, for us alone, below what is ours or the system's. Raises OSError."""
    missing = [path for path in (directory, *directory.parents) if not path.is_dir()]
    if not missing:
        return
    above = missing[-1].parent
    if sys.platform != "win32" and above.stat().st_uid not in (os.geteuid(), 0):
        raise PermissionError(f"{above} is not ours")
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
