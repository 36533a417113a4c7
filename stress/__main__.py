"""``python -m stress --seconds 120 --seed N``: one run; its exit code is 1 when there is a fault."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys

from stress.run import run

parser = argparse.ArgumentParser(prog="python -m stress", description=__doc__)
parser.add_argument("--seconds", type=float, default=120.0)
parser.add_argument("--seed", type=int, default=None, help="repeats what each client decides")
chosen = parser.parse_args()
seed = random.randrange(10**6) if chosen.seed is None else chosen.seed
print(f"seed {seed}", file=sys.stderr, flush=True)
report = asyncio.run(run(seed, chosen.seconds))
print(report.text())
sys.exit(bool(report.faults))
