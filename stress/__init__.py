"""Many clients at one server, random from a seed, each result held to the truth: ``make stress``.

The ways to start and drive servers are those of the tests.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "e2e"))
