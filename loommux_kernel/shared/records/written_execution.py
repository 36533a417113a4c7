"""One execution as the writer knows it: its facts and its transcript.

Owns which of its facts are stored already, and what of its output is late.
`writer` keeps those that can still change, and takes up others from the
store with `load`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache

from loommux_kernel.shared.protocol import Origin, OriginKind, State, Stream
from loommux_kernel.shared.records.database import CODES, Kind, Row, Store
from loommux_kernel.shared.records.stream_log import StreamLog
from loommux_kernel.shared.records.transcript import Transcript
from loommux_kernel.text.terminal import Terminal


@dataclass
class Execution:
    """See the module. Times are seconds since the epoch."""

    transcript: Transcript
    number: int | None
    origin: Origin
    source: str
    submitted_at: float
    started_at: float
    state: State = State.RUNNING
    completed_at: float | None = None
    ename: str | None = None
    evalue: str | None = None
    told: bool = False
    #: What went for lack of space, in words; and whether output was lost because the disk failed.
    dropped: str | None = None
    lost: bool = False
    #: How many combined lines there were at the end, when output came after it.
    lines_at_end: int | None = None
    #: The facts as they are stored, None when the execution is not; and as `rows` gave them.
    stored: Row | None = None
    given: Row | None = None

    #: Stands for one that is stored but cannot be read now: never to be written.
    volatile: bool = False

    @classmethod
    def unknown(cls, transcript: Transcript, at: float) -> Execution:
        """For output of an execution that never began; serial 0 is what was said outside any."""
        return cls(transcript, None, Origin(OriginKind.KERNEL, "kernel"), "", at, at, State.COMPLETED, at)

    @property
    def serial(self) -> int:
        return self.transcript.serial

    @property
    def ended(self) -> bool:
        return self.state is not State.RUNNING

    def end(self, state: State, completed_at: float, ename: str | None, evalue: str | None) -> None:
        self.state, self.completed_at, self.ename, self.evalue = state, completed_at, ename, evalue

    def receive(self) -> Transcript:
        """Output comes; whatever comes after the end is late."""
        if self.ended and self.lines_at_end is None:
            self.lines_at_end = self.transcript.counts(Stream.COMBINED).lines
        return self.transcript

    def late_lines(self) -> int:
        """Lines that came after the end; at least 1 when anything did."""
        if self.lines_at_end is None:
            return 0
        return max(1, self.transcript.counts(Stream.COMBINED).lines - self.lines_at_end)

    def facts(self) -> Row:
        """What can change after the begin."""
        return (
            Kind.FACTS, self.serial, self.state.value, self.completed_at, self.ename, self.evalue,
            self.late_lines(), self.told, self.dropped, self.lost, self.lines_at_end,
        )  # fmt: skip

    def rows(self, at: float) -> list[Row]:
        """What is to be written; the same again until `saved`."""
        facts = self.given = self.facts()
        rows = self.transcript.rows(at)
        if self.stored is None:
            begin = (self.serial, self.number, _origin(self.origin), self.source, self.submitted_at, self.started_at)
            rows.insert(0, (Kind.EXECUTION, *begin, *facts[2:]))
        elif facts != self.stored:
            rows.insert(0, facts)
        return rows

    def saved(self) -> None:
        """The last `rows` are written, and nothing happened since."""
        self.stored = self.given
        self.transcript.saved()


@lru_cache(maxsize=64)
def _origin(origin: Origin) -> str:
    return json.dumps(asdict(origin))


def load(store: Store, transcript: Transcript) -> Execution | None:
    """The execution of an empty transcript as it is stored, to go on; raises sqlite3.Error."""
    found = store.query(
        "SELECT number, origin, source, submitted_at, started_at, state, completed_at, ename, evalue,"
        " told, dropped, lost, lines_at_end FROM executions WHERE serial = ?",
        transcript.serial,
    )
    if not found:
        return None
    number, origin, source, submitted, started, state, completed, ename, evalue, told, dropped, lost, at_end = found[0]
    _take_up(store, transcript)
    execution = Execution(
        transcript, number, Origin.from_wire(json.loads(origin)), source, submitted, started,
        State(state), completed, ename, evalue, bool(told), dropped, bool(lost), at_end,
    )  # fmt: skip
    execution.stored = execution.facts()
    return execution


def _take_up(store: Store, transcript: Transcript) -> None:
    streams = {code: stream for stream, code in CODES.items()}
    logs: dict[Stream, StreamLog] = {}
    sole: Stream | None = None
    for code, lines, characters, utf8_bytes, shared, same, state in store.query(
        "SELECT stream, lines, characters, utf8_bytes, shared, sole, state FROM streams WHERE serial = ?",
        transcript.serial,
    ):
        # The text of a body that was dropped counts as settled.
        state = json.loads(state) if state else {"rows": [""], "at": [0, 0], "settled": lines}
        stream = streams[code]
        terminal = Terminal.from_state(state, transcript.fetch(stream))
        screen = terminal.screen_counts()
        settled = characters - screen.characters, utf8_bytes - screen.utf8_bytes
        log = logs[stream] = StreamLog(stream, transcript.fetch(stream), terminal, *settled)
        log.shared, log.touched = shared, False
        log.written = log.counts()
        if shared:
            sum_of_shared = "SELECT sum(size) FROM chunks WHERE serial = ? AND stream = ? AND first <= ?"
            ((size,),) = store.query(sum_of_shared, transcript.serial, CODES[Stream.COMBINED], shared)
            log.shared_bytes = size or 0
        if same is not None:
            sole = streams[same]
    sizes = store.query("SELECT ordinal, length(bundle) FROM displays WHERE serial = ?", transcript.serial)
    transcript.take_up(logs, sole, dict(sizes), max((ordinal for ordinal, _ in sizes), default=0))
