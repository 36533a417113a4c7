"""Looking for files while servers make and remove them.

`Path.rglob` raises when a directory goes between its being listed and its being entered; `glob` passes it by.
"""

from __future__ import annotations

import glob
from pathlib import Path


def below(directory: Path, pattern: str = "*") -> list[Path]:
    """What is there now at any depth below `directory` under that name or path, hidden files too."""
    found = glob.iglob(f"**/{pattern}", root_dir=directory, recursive=True, include_hidden=True)  # noqa: PTH207
    return [directory / path for path in found]
