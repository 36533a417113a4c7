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

from loommux_host.kernels.record_files import RecordFiles
from loommux_host.processes.process_protocol import Process
from loommux_kernel.shared.protocol import Submission
from loommux_kernel.shared.record_types import ExecutionRecord, NoticeRecord
from loommux_kernel.shared.records.finisher import finish
from loommux_kernel.shared.records.reader import RecordReader
from loommux_kernel.shared.records.start_note import claim

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
    """The store is not there: its process never got so far, its records were dropped, or somebody removed them."""


class RecordsUnreadable(Exception):
    """The store is there and cannot be read: it is damaged, or its disk gives an error."""


class RecordsBehind(RecordsUnreadable):
    """The store has not taken in the end of that execution: it cannot be written at the moment."""


async def in_thread(work: Callable[..., T], *args: Any) -> T:
    """Run file and database work in a worker thread; a cancelled caller leaves at once."""
    return await asyncio.to_thread(work, *args)


@contextlib.contextmanager
def reading(files: RecordFiles, *, patient: bool = False) -> Iterator[RecordReader]:
    """A reader for the length of one transaction or a few; `patient` as `RecordFiles.reader` has it.

    Raises `RecordsGone`, `RecordsUnreadable`.
    """
    with contextlib.ExitStack() as stack:
        try:
            reader = stack.enter_context(files.opened(patient=patient))
        except FileNotFoundError:
            raise RecordsGone(files.path) from None
        except sqlite3.DatabaseError as error:
            raise RecordsUnreadable(files.path) from error
        try:
            yield reader
        except sqlite3.DatabaseError as error:
            raise RecordsUnreadable(files.path) from error


async def taken_back(files: RecordFiles, submission: Submission) -> bool:
    """Whether a kernel that does not answer will not start that any more; what it has begun is in its records."""
    with contextlib.suppress(OSError):
        return await in_thread(claim, files.path.parent, submission.id)
    return False


def read_latest(files: RecordFiles, notice_id: int) -> tuple[list[ExecutionRecord], list[NoticeRecord]]:
    """The latest executions, newest first, and the notices after `notice_id`.

    One that has begun and did not reach the store is among them; of a store that is gone or cannot be read, it alone.
    """
    path, begun = files.path, files.starting()
    try:
        with reading(files) as reader:
            records, notices = reader.executions(limit=MENDED), reader.notices(after=notice_id)
    except RecordsGone:
        return [begun] if begun is not None else [], []
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
    process: Process, files: RecordFiles, at: float, *, relay: str | None, after: int
) -> tuple[list[ExecutionRecord], list[NoticeRecord], bool]:
    """Finish the records of a process that ended `at`, and read them; the last says whether they tell what has begun.

    Notices up to the id `after` are left out. Files that somebody has removed are written again first, as far
    as they were open. The note of the last start stands in for a store that cannot be finished.
    """
    try:
        async with asyncio.timeout(FINISH_SECONDS):
            await in_thread(_restored, files)
            await in_thread(finish, files.path, at, process.launch.records_budget_bytes, relay)
            return *await in_thread(read_latest, files, after), await in_thread(files.tells_what_began)
    except Exception:
        log.exception("the records of process %d could not be finished", process.process)
    try:
        async with asyncio.timeout(NOTE_SECONDS):
            begun = await in_thread(files.starting)
    except Exception:
        log.exception("what process %d began last cannot be read", process.process)
        begun = None
    return [begun] if begun is not None else [], [], begun is not None


def _restored(files: RecordFiles) -> None:
    try:
        files.restore()
    except (OSError, sqlite3.Error) as error:
        log.warning("the records at %s were removed and cannot be written again: %s", files.path, error)
