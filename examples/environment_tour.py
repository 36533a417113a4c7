"""The tutorial, run: a project with a kernel environment of its own, and an agent that works in it.

    python examples/environment_tour.py

Works on a copy of examples/environment in a temporary directory and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tour import Tour, server

ENVIRONMENT = Path(__file__).resolve().parent / "environment"


async def tour(t: Tour) -> None:
    t.say("The startup files have run: the kernel works in data/, with the project's helper in place.")
    await t.call("run_cell", freeform="Path('scores.csv').write_text('name,score\\nann,3\\nbob,5\\n')\nPath.cwd().name")
    await t.call("run_cell", freeform="statistics.mean(int(row['score']) for row in rows('scores.csv'))")

    t.say("Memory passes the alarm: the agent is told apart from the output.")
    await t.call("run_cell", freeform="MEMORY_ALARM_BYTES = 1\nimport time; time.sleep(1.2)")
    await t.call("run_cell", freeform="MEMORY_ALARM_BYTES = 1 << 40\nimport time; time.sleep(1.2)")

    t.say("A restart runs the startup files again.")
    await t.call("restart")
    await t.call("run_cell", freeform="len(rows('scores.csv'))")


async def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        project = Path(temporary) / "environment"
        shutil.copytree(ENVIRONMENT, project)
        for path in (project / ".loommux", *(project / ".loommux").rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)
        async with server(project) as t:
            await tour(t)


if __name__ == "__main__":
    asyncio.run(main())
