"""The record store of one kernel process: what ran, what it printed, what it showed.

Everything that others need of it, in one place. One process writes a store
(`RecordWriter`), any number of others read it meanwhile and after its death
(`RecordReader`), and when the writer died, `finish` completes it. The store is
one SQLite file that survives the process, not the machine; what has begun and is not in
it yet stands in a note beside it (`starting`).

========================  ====================================================
`recordwriter`            when what was said reaches the disk; disk faults
`execution`               one execution's facts, and what of its output is late
`transcript`              one execution's streams and displays
`streamlog`               one stream's settled text, in chunks
`terminal`, `screen`      one stream's screen
`budget`                  what goes when there is too much
`recorddisk`              the store as long as it can be written
`recordstore`             the file: tables, and the statement of a drain
`recordreader`            chunks and screens back into lines
`finisher`                what a death leaves undone
`retained`                what ended processes keep beside the one that runs
`starting`                the note of what begins
========================  ====================================================
"""

from __future__ import annotations

from loommux_kernel.finisher import finish
from loommux_kernel.recordreader import RecordReader
from loommux_kernel.recordtypes import DisplayRecord, ExecutionRecord, NoticeRecord, SearchResult
from loommux_kernel.recordwriter import RecordWriter
from loommux_kernel.retained import retain
from loommux_kernel.starting import claim, starting

__all__ = [
    "DisplayRecord", "ExecutionRecord", "NoticeRecord", "RecordReader", "RecordWriter", "SearchResult",
    "claim", "finish", "retain", "starting",
]  # fmt: skip
