"""What kernel tests share: real kernel processes, each ended with its test or its module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kernel.kernel_process import Client, KernelProcess, Launch


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Starts kernel processes of the test's own and ends them with it."""
    started: list[KernelProcess] = []

    def start(**options: Any) -> KernelProcess:
        started.append(KernelProcess(**options))
        started[-1].wait_ready(90)
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture(scope="module")
def shared_kernel() -> Iterator[KernelProcess]:
    """One kernel process for a module's tests, which leave it idle."""
    process = KernelProcess()
    try:
        process.wait_ready()
        yield process
    finally:
        process.close()


@pytest.fixture
def kernel(shared_kernel: KernelProcess) -> Iterator[KernelProcess]:
    """The module's kernel, alive; what it logs is shown with a test that fails."""
    assert shared_kernel.process.poll() is None, shared_kernel.log()
    logged = len(shared_kernel.log())
    yield shared_kernel
    sys.stderr.write(shared_kernel.log()[logged:])


@pytest.fixture
def server(kernel: KernelProcess) -> Iterator[Client]:
    """The server's client, which knows what the kernel has run so far."""
    client = kernel.server()
    client.seen = client.ask("status")["last_serial"]
    yield client
    client.close()
