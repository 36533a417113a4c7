"""``python -m bench [NAME …]``: every measurement, or those named; a table with ratios to the floor."""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys
from importlib.metadata import version

from bench.kernels import from_keeper
from bench.measures import MEASURES as OVER_STDIO
from bench.measures import Row
from bench.page import idle_page
from bench.sessions import sessions
from bench.takeover import takeover

MEASURES = {
    **OVER_STDIO,
    "from_keeper": from_keeper,
    "sessions": sessions,
    "idle_page": idle_page,
    "takeover": takeover,
}


def table(rows: list[Row]) -> str:
    head = ("measurement", "plain ipykernel", "loommux", "ratio", "bound")
    cells = [head, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in cells]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASURES))
    names = parser.parse_args().names or list(MEASURES)
    if unknown := [n for n in names if n not in MEASURES]:
        parser.error(f"no measurement {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    rows: list[Row] = []
    for name in names:
        print(f"… {name}", file=sys.stderr, flush=True)
        rows += await MEASURES[name]()
    packages = ", ".join(f"{p} {version(p)}" for p in ("loommux", "ipykernel", "mcp"))
    print(f"Python {platform.python_version()}, {packages}\n")
    print(table(rows))
    missed = [row.name for row in rows if row.missed()]
    if missed:
        print(f"\nOver their bound: {', '.join(missed)}")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
