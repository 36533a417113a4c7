"""What is read from a record store: plain values, without behaviour.

`records` hands them out; the host's answers are made of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loommux_kernel.shared.protocol import Counts, Origin, State, Stream


@dataclass(frozen=True)
class ExecutionRecord:
    """One recorded execution, without its text. Times are seconds since the epoch.

    `counts` has all five streams. `dropped` says in words which text is gone for
    lack of space, or was lost by a failing disk; None when everything is there.
    """

    serial: int
    number: int | None
    origin: Origin
    source: str
    state: State
    submitted_at: float
    started_at: float
    updated_at: float
    completed_at: float | None = None
    ename: str | None = None
    evalue: str | None = None
    counts: dict[Stream, Counts] = field(default_factory=dict)
    late_lines: int = 0
    dropped: str | None = None


@dataclass(frozen=True)
class DisplayRecord:
    """One display or result bundle as it was sent, images in base64.

    `ordinal` counts the bundles of its execution from 1. `kind` is ``display`` or
    ``result``. `line` is how many lines of the combined stream stand before its
    images: the display's own text is among them, since it comes first (contract
    3.6).
    """

    ordinal: int
    line: int
    kind: str
    bundle: dict[str, Any]
    metadata: dict[str, Any]
    display_id: str | None = None


@dataclass(frozen=True)
class NoticeRecord:
    """One notice. `id` rises from 1 within the store; `serial` is None outside any execution."""

    id: int
    serial: int | None
    label: str
    text: str
    at: float


@dataclass(frozen=True)
class SearchResult:
    """What a search found, in the stream's order.

    `rows` are (line number, ``M`` for a match or ``C`` for context, line). When there
    are more than any answer can show, `omitted_rows` were left out between the
    first and the last ones; the counts are of everything. A row that was cut around
    its first match has that match's column, from 1, in `columns`, by its line number.
    """

    matching_lines: int
    matches: int
    rows: list[tuple[int, str, str]]
    total_lines: int
    omitted_rows: int = 0
    columns: dict[int, int] = field(default_factory=dict)
