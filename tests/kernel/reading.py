"""What kernel tests read from a record store."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loommux_kernel.shared.protocol import Stream
from loommux_kernel.shared.record_types import DisplayRecord, ExecutionRecord
from loommux_kernel.shared.records.reader import RecordReader
from tests.kernel.kernel_process import TIMEOUT, KernelProcess


def text(kernel: KernelProcess, serial: int, stream: Stream = Stream.COMBINED) -> str:
    """One stream of one execution, whole."""
    return _read(kernel, lambda reader: reader.text(serial, stream))


def displays(kernel: KernelProcess, serial: int) -> list[DisplayRecord]:
    return _read(kernel, lambda reader: reader.displays(serial))


def execution(kernel: KernelProcess, serial: int) -> ExecutionRecord:
    found = _read(kernel, lambda reader: reader.by_serial(serial))
    assert found is not None
    return found


def wait_text(kernel: KernelProcess, serial: int, wanted: str, stream: Stream = Stream.COMBINED) -> str:
    """The stream, once it holds `wanted`; output that arrives after an execution's end takes its time."""
    until = time.monotonic() + TIMEOUT
    while wanted not in (found := text(kernel, serial, stream)):
        assert time.monotonic() < until, f"{wanted!r} never came; there is {found!r}"
        time.sleep(0.02)
    return found


def _read(kernel: KernelProcess, ask: Callable[[RecordReader], Any]) -> Any:
    reader = RecordReader(Path(kernel.launch.records))
    try:
        return ask(reader)
    finally:
        reader.close()
