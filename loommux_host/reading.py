"""Reading record stores in worker threads, so that the event loop never waits for a disk.

Called by `life` and `service`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread

from loommux_kernel.records import ExecutionRecord, NoticeRecord, RecordReader, starting

#: How many of the latest executions mend a mirror.
MENDED = 64
T = TypeVar("T")


class RecordsGone(Exception):
    """The store is not there: its process never got so far, or its records were let go."""


async def in_thread(work: Callable[..., T], *args: Any) -> T:
    """Run file and database work in a worker thread; a cancelled caller leaves at once."""
    return await anyio.to_thread.run_sync(lambda: work(*args), abandon_on_cancel=True)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[RecordReader]:
    """A reader for the length of one transaction or a few. Raises `RecordsGone`."""
    try:
        reader = RecordReader(path)
    except FileNotFoundError:
        raise RecordsGone(path) from None
    try:
        yield reader
    finally:
        reader.close()


def read_latest(path: Path, notice_id: int) -> tuple[list[ExecutionRecord], list[NoticeRecord]]:
    """The latest executions, newest first, and the notices after `notice_id`; nothing without a store.

    One that has begun and did not reach the store is among them.
    """
    begun = starting(path)
    try:
        with reading(path) as reader:
            records, notices = reader.executions(limit=MENDED), reader.notices(after=notice_id)
    except RecordsGone:
        return [], []
    if begun is not None and all(record.serial < begun.serial for record in records):
        records.insert(0, begun)
    return records, notices
