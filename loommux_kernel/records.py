"""The record store of one kernel process: what ran, what it printed, what it showed.

Owns the shapes of what is read from a store and the names that others import;
the parts are one writer, any number of readers, and the finisher that completes a store after
its process died.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from loommux_kernel.protocol import Counts, Origin, State, Stream
from loommux_kernel.recordtypes import DisplayRecord, ExecutionRecord, NoticeRecord, SearchResult

__all__ = ["DisplayRecord", "ExecutionRecord", "NoticeRecord", "RecordReader", "RecordWriter", "SearchResult", "finish"]



class RecordWriter:
    """The one writer of a store; used on the kernel's IOPub thread. (Signatures; being built.)"""

    @classmethod
    def open(cls, path: Path, budget_bytes: int, on_trouble: Callable[[str], None]) -> RecordWriter:
        raise NotImplementedError

    def begin(
        self, serial: int, number: int | None, origin: Origin, source: str, submitted_at: float, started_at: float
    ) -> None:
        raise NotImplementedError

    def text(self, serial: int, stream: Stream, text: str) -> None:
        raise NotImplementedError

    def display(
        self,
        serial: int,
        *,
        kind: str,
        number: int | None,
        bundle: dict[str, Any],
        metadata: dict[str, Any],
        display_id: str | None,
    ) -> int:
        raise NotImplementedError

    def update_display(self, serial: int, display_id: str, bundle: dict[str, Any], metadata: dict[str, Any]) -> None:
        raise NotImplementedError

    def clear(self, serial: int, wait: bool) -> None:
        raise NotImplementedError

    def traceback(self, serial: int, text: str) -> None:
        raise NotImplementedError

    def end(self, serial: int, state: State, completed_at: float, ename: str | None, evalue: str | None) -> None:
        raise NotImplementedError

    def notice(self, serial: int | None, label: str, text: str, at: float) -> None:
        raise NotImplementedError

    def descriptor(self, serial: int, stream: Stream, path: Path, offset: int) -> None:
        raise NotImplementedError

    def counts(self, serial: int, stream: Stream = Stream.COMBINED) -> Counts:
        raise NotImplementedError

    def late_lines(self, serial: int) -> int:
        raise NotImplementedError

    def last_line(self, serial: int) -> str:
        raise NotImplementedError

    def body(self, serial: int) -> str | None:
        raise NotImplementedError

    def mark_told(self, serial: int) -> None:
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class RecordReader:
    """Reads a store from any thread or process, also after its writer died. (Signatures; being built.)"""

    def __init__(self, path: Path) -> None:
        raise NotImplementedError

    def executions(self, limit: int = 5, before: int | None = None) -> list[ExecutionRecord]:
        raise NotImplementedError

    def by_number(self, number: int) -> ExecutionRecord | None:
        raise NotImplementedError

    def by_serial(self, serial: int) -> ExecutionRecord | None:
        raise NotImplementedError

    def lines(self, serial: int, stream: Stream, first: int, last: int) -> list[str]:
        raise NotImplementedError

    def text(self, serial: int, stream: Stream) -> str:
        raise NotImplementedError

    def tail(self, serial: int, stream: Stream, count: int, nonblank: bool = False) -> list[str]:
        raise NotImplementedError

    def search(self, serial: int, stream: Stream, query: Any, before: int, after: int) -> SearchResult:
        raise NotImplementedError

    def displays(self, serial: int) -> list[DisplayRecord]:
        raise NotImplementedError

    def notices(self, after: int = 0) -> list[NoticeRecord]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def finish(path: Path, ended_at: float) -> None:
    """Complete the store of a process that died."""
    raise NotImplementedError
