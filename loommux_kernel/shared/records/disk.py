"""The store as long as it can be written, and what is said when it cannot.

Owns the writer's connection: opening it, again if need be, writing the store again
when somebody has removed its files, and keeping it within its budget after each write.
Every fault ends here: it is told once, and the next attempt comes a little later.
Only `writer` uses it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from loommux_kernel.shared.clock import monotonic
from loommux_kernel.shared.records.database import Row, Store, files_at, write_again
from loommux_kernel.shared.records.store_budget import Budget, Relief
from loommux_kernel.shared.reserve import HELD

#: Seconds between attempts while the store cannot be written.
RETRY = 0.25
#: Seconds between two looks whether the store's files are still there.
LOOK = 1.0
#: Seconds from then until they are made again.
QUIET = 0.5
MOVED = (
    "Records may be incomplete: somebody removed this kernel's files. The records of this process have been written"
    " again; those of earlier processes are gone."
)
NAMELESS = (
    "Records are incomplete: somebody removed this kernel's files, and they cannot be made again. What can still be"
    " read goes with the process"
)
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
        #: An open store whose files are gone and which could not be written: nobody could open it again.
        self._nameless: Store | None = None
        self._retry_at = self._look_at = 0.0
        #: When the store's files were first seen to be gone.
        self._missed_at: float | None = None
        self.connect()

    def connect(self) -> bool:
        """Whether the store is open; tries if the last fault is not too recent."""
        if self._store is None and monotonic() >= self._retry_at:
            try:
                with HELD.lent():  # SQLite does not say that it lacks descriptors
                    self._store, self._nameless = self._nameless or Store.create(self._path), None
            except (sqlite3.Error, OSError) as error:
                self._fail(error)
        return self._store is not None

    def try_now(self) -> None:
        """The next attempt is the last one."""
        self._retry_at = self._look_at = 0.0

    def write(self, rows: list[Row]) -> bool:
        """Write all rows as one transaction; whether they are written."""
        if not self.connect():
            return False
        self._stay_there()
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

    def _stay_there(self) -> None:
        """Once in a while: a store whose files somebody has removed is written again, from its open connection."""
        at = monotonic()
        if self._store is None or at < self._look_at:
            return
        self._look_at = at + LOOK
        if self._store.files == files_at(self._path):
            self._missed_at = None
            return
        if self._missed_at is None:  # whoever removes them may still be at it, and wants the directory to be empty
            self._missed_at, self._look_at = at, at + QUIET
            return
        try:
            write_again(self._store.connection, self._path)
            again = Store.create(self._path)
        except (sqlite3.Error, OSError) as error:
            # What is written goes on into the files without names, where the host's open reader has it.
            self._tell("moved", f"{NAMELESS} ({error}).")
            return
        self._store.close()  # it has no names any more that it could remove
        self._store, self._missed_at = again, None
        self._tell("moved", MOVED)

    def close(self) -> None:
        """Let go of the store; what was to be done once in a while is done now."""
        self._look_at = self._missed_at = 0.0
        self._stay_there()
        self._let_go()

    def _let_go(self) -> None:
        if self._nameless is not None:
            self._store, self._nameless = self._nameless, None
        if self._store is not None:
            try:
                self._store.close()
            except sqlite3.Error:
                self._store.forget()
            self._store = None

    def forget(self) -> None:
        """In a forked child: the store is the parent's."""
        self._store = self._nameless = None

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
        if self._store is not None and self._store.files != files_at(self._path):
            self._store, self._nameless = None, self._store
        else:
            self._let_go()
        self._tell(
            "disk",
            f"Records are incomplete: the record store cannot be written ({error})."
            " The kernel goes on and keeps recent output in memory.",
        )

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._on_trouble(text)
