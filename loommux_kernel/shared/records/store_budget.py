"""How much output a store keeps, and what goes first when that is too much.

Owns the rule of contract 7: the oldest finished bodies go first, told ones before
others; what nobody has been told of, and a running execution over half the
budget, lose only their middle, and their records say so. Called by
`disk` after each drain and by `kernel_budget`; reads sizes from the store, gives rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from loommux_kernel.shared.protocol import Stream
from loommux_kernel.shared.records.database import CODES, END, Kind, Row, Store

#: What an execution that was not told of keeps at the least, in bytes.
UNTOLD_KEEPS = 2 << 20
#: Chunks of a stream and parts of a long row that are never taken: the ends.
LAST_CHUNKS = 4
LAST_PARTS = 64


@dataclass
class Relief:
    """What to write so that the store becomes smaller, and what to say about it."""

    serial: int
    rows: list[Row]
    dropped: str
    untold: bool = False


class Budget:
    """Sizes of the executions of a store, in bytes."""

    def __init__(self, limit: int, of: int | None = None) -> None:
        self.limit = limit
        #: What is said to be the limit: of several stores together.
        self._said = limit if of is None else of
        #: Of executions that have output, in the order in which they began to have it.
        self._sizes: dict[int, int] = {}
        self._total = 0
        self._running: set[int] = set()
        #: Finished, and nobody was told of the end.
        self._untold: set[int] = set()
        #: Bytes that are gone, and which combined lines.
        self._thinned: dict[int, int] = {}
        self._missing: dict[int, tuple[int, int]] = {}

    def began(self, serial: int) -> None:
        self._running.add(serial)

    def finished(self, serial: int) -> None:
        self._running.discard(serial)
        self._untold.add(serial)

    def told(self, serial: int) -> None:
        self._untold.discard(serial)

    def grew(self, serial: int, size: int) -> None:
        """An execution's output has that size, what was dropped of it included."""
        size = max(0, size - self._thinned.get(serial, 0))
        self._total += size - self._sizes.get(serial, 0)
        if size:
            self._sizes[serial] = size

    @property
    def total(self) -> int:
        """What the store has, in bytes."""
        return self._total

    def over(self, serial: int) -> bool:
        """Whether something must go after that execution grew."""
        return self._total > self.limit or self._sizes.get(serial, 0) > self.limit // 2

    def relief(self, store: Store, serial: int | None = None) -> Iterator[Relief]:
        """What must go, after that execution grew if one did; each is to be written before the next is asked for."""
        if serial is not None and serial in self._running and self._sizes.get(serial, 0) > self.limit // 2:
            yield from self._thin(store, serial, self.limit // 2 * 7 // 8)
        while self._total > self.limit:
            spared = self._running | self._untold
            told = next((s for s in self._sizes if s not in spared), None)
            if told is None:
                break
            yield self._drop(told)
        for untold in [s for s in self._sizes if s in self._untold]:
            if self._total <= self.limit:
                break
            yield from self._thin(store, untold, UNTOLD_KEEPS)

    def _drop(self, serial: int) -> Relief:
        size = self._sizes.pop(serial)
        self._total -= size
        self._thinned[serial] = self._thinned.get(serial, 0) + size
        return Relief(serial, [(Kind.BODY_GONE, serial)], f"the output was dropped to keep {self._limit_words()}")

    def _thin(self, store: Store, serial: int, keep: int) -> Iterator[Relief]:
        """Take the middle out of an execution until it has `keep` bytes; an eighth of them is its beginning."""
        excess = self._sizes.get(serial, 0) - keep
        cut = _Cut(serial, keep // 8, excess)
        cut.chunks(store)
        if cut.freed < excess:
            cut.parts(store)
        if not cut.rows:
            return
        self._thinned[serial] = self._thinned.get(serial, 0) + cut.freed
        self._sizes[serial] -= cut.freed
        self._total -= cut.freed
        which = "the middle of the output was"
        if cut.last:
            first, last = self._missing.get(serial, (cut.first, cut.last))
            first, last = self._missing[serial] = min(first, cut.first), max(last, cut.last)
            which = f"lines {first:,}–{last:,} were"
        yield Relief(serial, cut.rows, f"{which} dropped to keep {self._limit_words()}", serial in self._untold)

    def _limit_words(self) -> str:
        size, unit = float(self._said), "B"
        for unit in ("B", "KiB", "MiB", "GiB"):
            if size < 1024 or unit == "GiB":
                break
            size /= 1024
        return f"the records within {size:.1f} {unit}"


class _Cut:
    """What is taken out of the middle of one execution's streams."""

    def __init__(self, serial: int, head: int, excess: int) -> None:
        self.rows: list[Row] = []
        self.freed = 0
        #: Combined lines that go.
        self.first, self.last = END, 0
        self._serial = serial
        self._head = head
        self._excess = excess

    def chunks(self, store: Store) -> None:
        """Settled lines, from each stream in proportion to its size."""
        select = "SELECT stream, first, lines, size, long FROM chunks WHERE serial = ? ORDER BY stream, first"
        found = store.query(select, self._serial)
        total = sum(size for *_, size, _ in found) or 1
        for code, group in groupby(found, lambda chunk: chunk[0]):
            chunks = list(group)[:-LAST_CHUNKS]
            share = self._excess * sum(size for *_, size, _ in chunks) // total + 1
            gone = [chunks[i] for i in self._middle([size for *_, size, _ in chunks], share)]
            if not gone:
                continue
            first, last = gone[0][1], gone[-1][1] + gone[-1][2] - 1
            self.rows.append((Kind.CHUNKS_GONE, self._serial, code, first, last))
            self.rows += [(Kind.PARTS_GONE, self._serial, code, chunk[4], 0, END) for chunk in gone if chunk[4]]
            if code == CODES[Stream.COMBINED]:
                self.first, self.last = first, last

    def parts(self, store: Store) -> None:
        """The inside of lines that are longer than everything else."""
        select = "SELECT stream, long, part, size FROM parts WHERE serial = ? ORDER BY stream, long, part"
        for (code, row), group in groupby(store.query(select, self._serial), lambda part: part[:2]):
            parts = list(group)[:-LAST_PARTS]
            gone = [parts[i][2] for i in self._middle([part[3] for part in parts], self._excess - self.freed)]
            if gone:
                self.rows.append((Kind.PARTS_GONE, self._serial, code, row, gone[0], gone[-1]))

    def _middle(self, sizes: list[int], share: int) -> range:
        """The indexes to take, after the head, to free `share` bytes."""
        start = passed = freed = 0
        while start < len(sizes) and passed < self._head:
            passed += sizes[start]
            start += 1
        stop = start
        while stop < len(sizes) and freed < share:
            freed += sizes[stop]
            stop += 1
        self.freed += freed
        return range(start, stop)
