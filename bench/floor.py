"""The floor: plain ipykernel, driven by jupyter_client's blocking client."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

import psutil
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager


class PlainKernel:
    """One plain ipykernel process; a context manager."""

    def __init__(self) -> None:
        self.manager = KernelManager()
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self.manager._kernel_spec = KernelSpec(argv=argv, display_name="plain", language="python")

    def __enter__(self) -> PlainKernel:
        self.manager.start_kernel()
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def run(self, source: str, timeout: float = 120) -> str:
        """Runs a cell, takes in all of its output as a frontend does; returns the last 4 kB of text."""
        sent = self.client.execute(source)
        kept, deadline = "", time.monotonic() + timeout
        while True:
            message: dict[str, Any] = self.client.get_iopub_msg(timeout=deadline - time.monotonic())
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                kept = (kept + content["text"])[-4096:]
            elif kind == "execute_result":
                kept = content["data"].get("text/plain", "")
            elif kind == "status" and content["execution_state"] == "idle":
                break
        while self.client.get_shell_msg(timeout=30)["parent_header"].get("msg_id") != sent:
            pass
        return kept

    def rss(self) -> int:
        """Resident bytes of the kernel process."""
        provisioner: Any = self.manager.provisioner
        return psutil.Process(provisioner.pid).memory_info().rss
