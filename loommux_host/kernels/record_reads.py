"""Reading record stores in worker threads, so that the event loop never waits for a disk.

Called by `process_life` and `usecases.service`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from loommux_host.processes.process_protocol import Process
from loommux_kernel.shared.protocol import Submission
from loommux_kernel.shared.record_types import ExecutionRecord, NoticeRecord
from loommux_kernel.shared.records.finisher import finish
from loommux_kernel.shared.records.reader import RecordReader
from loommux_kernel.shared.records.start_note import claim, starting

log = logging.getLogger(__name__)

#: How many of the latest executions mend a mirror.
MENDED = 64
#: How long finishing the records of a dead process may hold up telling of its death,
#: and reading the note of the last start when that fails.
FINISH_SECONDS, NOTE_SECONDS = 30.0, 2.0
T = TypeVar("T")
#: Stores that could not be read when they were last tried: each is told of once.
_unreadable: set[Path] = set()


class RecordsGone(Exception):
    """The store is not there: its process never got so far, or its records were let go."""


class RecordsUnreadable(Exception):
    """The store is there and cannot be read: it is damaged, or its disk gives an error."""


class RecordsBehind(RecordsUnreadable):
    """The store has not taken in the end of that execution: it cannot be written at the moment."""


async def in_thread(work: Callable[..., T], *args: Any) -> T:
    """Run file and database work in a worker thread; a cancelled caller leaves at once."""
    return await asyncio.to_thread(work, *args)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[RecordReader]:
    """A reader for the length of one transaction or a few. Raises `RecordsGone`, `RecordsUnreadable`."""
    try:
        reader = RecordReader(path)
    except FileNotFoundError:
        raise RecordsGone(path) from None
    except sqlite3.DatabaseError as error:
        raise RecordsUnreadable(path) from error
    try:
        yield reader
    except sqlite3.DatabaseError as error:
        raise RecordsUnreadable(path) from error
    finally:
        reader.close()


async def taken_back(store: Path, submission: Submission) -> bool:
    """Whether a kernel that does not answer will not start that any more; what it has begun is in its records."""
    with contextlib.suppress(OSError):
        return await in_thread(claim, store.parent, submission.id)
    return False


def read_latest(path: Path, notice_id: int) -> tuple[list[ExecutionRecord], list[NoticeRecord]]:
    """The latest executions, newest first, and the notices after `notice_id`; nothing without a store.

    One that has begun and did not reach the store is among them; of a store that cannot be read, it alone.
    """
    begun = starting(path)
    try:
        with reading(path) as reader:
            records, notices = reader.executions(limit=MENDED), reader.notices(after=notice_id)
    except RecordsGone:
        return [], []
    except RecordsUnreadable as error:
        if path not in _unreadable:
            _unreadable.add(path)
            log.exception("the records at %s cannot be read", path, exc_info=error)
        return [begun] if begun is not None else [], []
    _unreadable.discard(path)
    if begun is not None and all(record.serial < begun.serial for record in records):
        records.insert(0, begun)
    return records, notices


async def read_finished(
    process: Process, records: Path, at: float, *, relay: str | None, after: int
) -> tuple[list[ExecutionRecord], list[NoticeRecord], bool]:
    """Finish the records of a process that ended `at`, and read them; the last says whether they tell what has begun.

    Notices up to the id `after` are left out. The note of the last start stands in for a
    store that cannot be finished.
    """
    try:
        async with asyncio.timeout(FINISH_SECONDS):
            await in_thread(finish, records, at, process.launch.records_budget_bytes, relay)
            return *await in_thread(read_latest, records, after), True
    except Exception:
        log.exception("the records of process %d could not be finished", process.process)
    try:
        async with asyncio.timeout(NOTE_SECONDS):
            begun = await in_thread(starting, records)
    except Exception:
        log.exception("what process %d began last cannot be read", process.process)
        begun = None
    return [begun] if begun is not None else [], [], begun is not None
