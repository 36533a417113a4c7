"""A pytest plugin for the run of ipykernel's own tests; see `test_ipykernel_suite`."""

from __future__ import annotations

import contextlib
import importlib
import os
from queue import Empty
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

# A kernel of ours refuses a client's shutdown, so each manager would wait for it before it ends the process.
KernelManager.class_traits()["shutdown_wait_time"].default_value = 0.2

#: For how long nothing must come before what an earlier cell said is taken to be complete; the suite waits 0.1 s.
QUIET_SECONDS = 0.4
#: How long a test may take that is listed as one that does not hold.
SECONDS = 5


def flush_channels(client: Any = None) -> None:
    """Read what is left of earlier cells."""
    client = client or importlib.import_module("tests.utils").KC
    for receive in (client.get_shell_msg, client.get_iopub_msg):
        with contextlib.suppress(Empty):
            while True:
                receive(timeout=QUIET_SECONDS)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    listed = os.environ["LEFT_OUT"].split("\n")
    for item in items:
        if hasattr(item.module, "flush_channels"):
            item.module.flush_channels = flush_channels
        if hasattr(item.module, "_check_master"):  # asks ipykernel's own stdout object for its private state
            item.module._check_master = lambda *_, **__: None
        if f"{item.path.stem}::{item.name}" in listed:
            item.add_marker(pytest.mark.timeout(SECONDS), append=False)
