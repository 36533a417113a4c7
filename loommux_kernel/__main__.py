"""``python -m loommux_kernel LAUNCH.json``: one kernel process."""

from __future__ import annotations

import sys
from pathlib import Path

from loommux_kernel.app import run
from loommux_kernel.shared.protocol import PROTOCOL_VERSION, LaunchFile


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m loommux_kernel LAUNCH.json")
    launch = LaunchFile.read(Path(sys.argv[1]))
    if launch.version != PROTOCOL_VERSION:
        sys.exit(f"this kernel speaks version {PROTOCOL_VERSION} of the protocol, its server {launch.version}")
    run(launch)


if __name__ == "__main__":
    main()
