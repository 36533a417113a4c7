"""The store as long as it can be written, and what is said when it cannot.

Owns the writer's connection: opening it, again if need be, and keeping the store
within its budget after each write. Every fault ends here: it is told once, and
the next attempt comes a little later. Only `writer` uses it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from loommux_kernel.shared.clock import monotonic
from loommux_kernel.shared.records.database import Row, Store
from loommux_kernel.shared.records.store_budget import Budget, Relief
from loommux_kernel.shared.reserve import HELD

#: Seconds between attempts while the store cannot be written.
RETRY = 0.25
UNTOLD = "Records are incomplete: output that nobody was told of lost its middle for lack of space; its records say so."

T = TypeVar("T")


class Unavailable(Exception):
    """The store cannot be used now."""


class Disk:
    """See the module. `on_trouble` is told once when records will not be complete, and why."""

    def __init__(self, path: Path, budget_bytes: int, on_trouble: Callable[[str], None]) -> None:
        self.budget = Budget(budget_bytes)
        self._path = path
        self._on_trouble = on_trouble
        self._told: set[str] = set()
        self._store: Store | None = None
        self._retry_at = 0.0
        self.connect()

    def connect(self) -> bool:
        """Whether the store is open; tries if the last fault is not too recent."""
        if self._store is None and monotonic() >= self._retry_at:
            try:
                with HELD.lent():  # SQLite does not say that it lacks descriptors
                    self._store = Store.create(self._path)
            except (sqlite3.Error, OSError) as error:
                self._fail(error)
        return self._store is not None

    def try_now(self) -> None:
        """The next attempt is the last one."""
        self._retry_at = 0.0

    def write(self, rows: list[Row]) -> bool:
        """Write all rows as one transaction; whether they are written."""
        if not self.connect():
            return False
        try:
            self._with(lambda store: store.apply(rows))
        except Unavailable:
            return False
        return True

    def read(self, work: Callable[[Store], T]) -> T:
        """What `work` finds in the store; raises `Unavailable`."""
        return self._with(work)

    def relief(self, serial: int) -> Iterator[Relief]:
        """What the budget takes out after that execution grew; each is written when the next is asked for."""
        if self._store is None or not self.budget.over(serial):
            return
        try:
            for relief in self.budget.relief(self._store, serial):
                yield relief
                self._with(lambda store, rows=relief.rows: store.apply(rows))
                if relief.untold:
                    self._tell("untold", UNTOLD)
        except sqlite3.Error as error:
            self._fail(error)
        except Unavailable:
            return

    def close(self) -> None:
        if self._store is not None:
            try:
                self._store.close()
            except sqlite3.Error:
                self._store.forget()
            self._store = None

    def forget(self) -> None:
        """In a forked child: the store is the parent's."""
        self._store = None

    def _with(self, work: Callable[[Store], T]) -> T:
        if self._store is None:
            raise Unavailable
        try:
            return work(self._store)
        except sqlite3.Error as error:
            self._fail(error)
            raise Unavailable from error

    def _fail(self, error: Exception) -> None:
        """Begin anew with the store later."""
        self._retry_at = monotonic() + RETRY
        self.close()
        self._tell(
            "disk",
            f"Records are incomplete: the record store cannot be written ({error})."
            " The kernel goes on and keeps recent output in memory.",
        )

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._on_trouble(text)
