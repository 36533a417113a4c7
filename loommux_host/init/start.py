"""The init of one kernel process: its parent, and the end of everything that it starts.

Runs as ``python -I -S start.py KEY=VALUE... -- COMMAND...`` and is only the way in: a
script is compiled at every start, modules are not, and a kernel's start waits for this.
What it is and does stands in `roles`. Started by `processes.spawn`.
"""
# ruff: noqa: PTH100, PTH120

import os
import sys

# Last, so that nothing installed beside this package can stand in for the standard library.
sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from loommux_host.init.roles import main

if __name__ == "__main__":
    main()
