"""What every kernel has from its start: the imports, and a helper, of this project."""

import csv
import statistics
from pathlib import Path


def rows(name: str) -> list[dict[str, str]]:
    """The lines of data/NAME as dicts."""
    with Path(name).open(newline="") as file:
        return list(csv.DictReader(file))
