"""``python suite_kernel.py -f FILE``: a kernel of ours for ipykernel's own tests, which start it by a kernelspec."""

from __future__ import annotations

import sys
import tempfile
import uuid
from pathlib import Path

from loommux_kernel.app import run
from loommux_kernel.shared.protocol import LaunchFile

directory = Path(tempfile.mkdtemp(prefix="lm-"))  # in TMPDIR, which is the test's
(directory / "fd").mkdir()
run(
    LaunchFile(
        kernel_id=str(uuid.uuid4()),
        kernel_name="suite",
        process=1,
        connection_file=sys.argv[sys.argv.index("-f") + 1],
        server_session=uuid.uuid4().hex,
        records=str(directory / "records.sqlite"),
        descriptors=str(directory / "fd"),
        log=str(directory / "log"),
        workspace=str(Path.cwd()),
    )
)
