"""The file behind a record store: its tables, how a drain is written, who may touch it.

Owns the schema and the one statement of every write. Knows rows, not what they
mean: `transcript` and `writer` make them, `reader` reads them.

A whole drain is one ``INSERT INTO drain VALUES ...``: rows of all kinds go to one view,
whose triggers sort them into the tables. One statement is atomic by itself and
hands the interpreter over twice, however many rows it has; beside a busy loop
each of those hand-overs costs up to a switch interval, and BEGIN, five
statements and COMMIT have fourteen.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import weakref
from pathlib import Path
from typing import Any

from loommux_kernel.shared.private_directories import make_again
from loommux_kernel.shared.protocol import Stream

#: The number a stream has in the tables.
CODES = {stream: code for code, stream in enumerate(Stream)}
STREAMS = {code: stream for stream, code in CODES.items()}
#: Larger than any line number or part.
END = (1 << 62) - 1
#: Rows of one statement. More of them share a transaction.
BATCH = 64
#: Seconds to wait for a lock; nobody but this module ever holds one for long.
WRITER_PATIENCE = 0.2

_SETTINGS = ("journal_mode = WAL", "synchronous = OFF", "temp_store = MEMORY", f"journal_size_limit = {1 << 24}")
_COLUMNS = "abcdefghijklmno"
_TABLES = """
CREATE TABLE IF NOT EXISTS executions (
    serial INTEGER PRIMARY KEY, number INTEGER, origin TEXT, source TEXT, submitted_at REAL, started_at REAL,
    state TEXT, completed_at REAL, ename TEXT, evalue TEXT, late_lines INTEGER, told INTEGER, dropped TEXT,
    lost INTEGER, lines_at_end INTEGER);
CREATE INDEX IF NOT EXISTS numbers ON executions (number);
CREATE TABLE IF NOT EXISTS streams (
    serial INTEGER, stream INTEGER, lines INTEGER, characters INTEGER, utf8_bytes INTEGER, settled INTEGER,
    shared INTEGER, sole INTEGER, at REAL, state TEXT, PRIMARY KEY (serial, stream)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS chunks (
    serial INTEGER, stream INTEGER, first INTEGER, lines INTEGER, size INTEGER, long INTEGER, text TEXT,
    PRIMARY KEY (serial, stream, first));
CREATE TABLE IF NOT EXISTS parts (
    serial INTEGER, stream INTEGER, long INTEGER, part INTEGER, size INTEGER, text TEXT,
    PRIMARY KEY (serial, stream, long, part));
CREATE TABLE IF NOT EXISTS displays (
    serial INTEGER, ordinal INTEGER, line INTEGER, kind TEXT, display_id TEXT, metadata TEXT, bundle TEXT,
    PRIMARY KEY (serial, ordinal));
CREATE TABLE IF NOT EXISTS notices (
    id INTEGER PRIMARY KEY, serial INTEGER, label TEXT, text TEXT, at REAL);
CREATE TABLE IF NOT EXISTS descriptors (
    path BLOB PRIMARY KEY, serial INTEGER, stream INTEGER, taken INTEGER);
CREATE TABLE IF NOT EXISTS texts (only INTEGER PRIMARY KEY, taken INTEGER);
"""


class Kind:
    """What a row of a drain does: its first value, plain numbers because sqlite3 is quick with those."""

    EXECUTION = 0
    FACTS = 1
    STREAM = 2
    CHUNK = 3
    CHUNKS_GONE = 4
    PART = 5
    PARTS_GONE = 6
    PARTS_COPY = 7
    DISPLAY = 8
    DISPLAY_LINE = 9
    DISPLAYS_GONE = 10
    NOTICE = 11
    DESCRIPTOR = 12
    BODY_GONE = 13
    DROPPED = 14
    TAKEN = 15


def _values(count: int) -> str:
    return ", ".join(f"NEW.{c}" for c in _COLUMNS[:count])


_ACTIONS = {
    Kind.EXECUTION: f"INSERT OR REPLACE INTO executions VALUES ({_values(15)})",
    Kind.FACTS: "UPDATE executions SET state = NEW.b, completed_at = NEW.c, ename = NEW.d, evalue = NEW.e,"
    " late_lines = NEW.f, told = NEW.g, dropped = NEW.h, lost = NEW.i, lines_at_end = NEW.j WHERE serial = NEW.a",
    Kind.STREAM: f"INSERT INTO streams VALUES ({_values(10)}) ON CONFLICT DO UPDATE SET"
    " lines = NEW.c, characters = NEW.d, utf8_bytes = NEW.e, settled = NEW.f, shared = NEW.g, sole = NEW.h, at = NEW.i,"
    " state = NEW.j",
    Kind.CHUNK: f"INSERT OR REPLACE INTO chunks VALUES ({_values(7)})",
    Kind.CHUNKS_GONE: "DELETE FROM chunks WHERE serial = NEW.a AND stream = NEW.b AND first BETWEEN NEW.c AND NEW.d",
    Kind.PART: f"INSERT OR REPLACE INTO parts VALUES ({_values(6)})",
    Kind.PARTS_GONE: "DELETE FROM parts"
    " WHERE serial = NEW.a AND stream = NEW.b AND long = NEW.c AND part BETWEEN NEW.d AND NEW.e",
    Kind.PARTS_COPY: "INSERT OR REPLACE INTO parts SELECT serial, NEW.c, long, part, size, text FROM parts"
    " WHERE serial = NEW.a AND stream = NEW.b AND long = NEW.d",
    Kind.DISPLAY: f"INSERT OR REPLACE INTO displays VALUES ({_values(7)})",
    Kind.DISPLAY_LINE: "UPDATE displays SET line = NEW.c WHERE serial = NEW.a AND ordinal = NEW.b",
    Kind.DISPLAYS_GONE: "DELETE FROM displays WHERE serial = NEW.a AND ordinal BETWEEN NEW.b AND NEW.c",
    Kind.NOTICE: f"INSERT INTO notices (serial, label, text, at) VALUES ({_values(4)})",
    Kind.DESCRIPTOR: f"INSERT OR REPLACE INTO descriptors VALUES ({_values(4)})",
    Kind.BODY_GONE: "DELETE FROM chunks WHERE serial = NEW.a; DELETE FROM parts WHERE serial = NEW.a;"
    " DELETE FROM displays WHERE serial = NEW.a; UPDATE streams SET state = NULL WHERE serial = NEW.a",
    Kind.DROPPED: "UPDATE executions SET dropped = NEW.b WHERE serial = NEW.a",
    Kind.TAKEN: "INSERT OR REPLACE INTO texts VALUES (0, NEW.a)",
}
_DRAIN = (
    f"CREATE VIEW IF NOT EXISTS drain AS SELECT NULL AS kind, {', '.join(f'NULL AS {c}' for c in _COLUMNS)} WHERE 0;\n"
    + "\n".join(
        f"CREATE TRIGGER IF NOT EXISTS put_{kind} INSTEAD OF INSERT ON drain WHEN NEW.kind = {kind}"
        f" BEGIN {action}; END;"
        for kind, action in _ACTIONS.items()
    )
)
_ROW = f"({', '.join('?' * (len(_COLUMNS) + 1))})"
_PADDING = [(None,) * n for n in range(len(_COLUMNS) + 1)]

#: A `Kind` and its values.
Row = tuple[Any, ...]
#: Device and number of a store's files, None for one that is not there.
Files = tuple[tuple[int, int] | None, ...]
#: What SQLite puts beside a store while it is open.
_BESIDE = ("-wal", "-shm")

_owned: weakref.WeakSet[Forgetful] = weakref.WeakSet()


class Forgetful:
    """What belongs to the process that made it: a forked child calls `forget` on it."""

    def __init__(self) -> None:
        _owned.add(self)

    def forget(self) -> None:
        raise NotImplementedError


class Connected(Forgetful):
    """Whoever holds a connection to a store."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._connection: sqlite3.Connection | None = connection

    @property
    def connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.ProgrammingError("the record store was closed")
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def forget(self) -> None:
        """Never touch the connection again, not even to close it."""
        if self._connection is not None:
            _leak(self._connection)
            self._connection = None


class Store(Connected):
    """The writer's connection."""

    #: Which files it had when it was opened; see `files_at`.
    files: Files = ()

    @classmethod
    def create(cls, path: Path) -> Store:
        """Open the store at `path`, made private (0600) when it is not there; raises sqlite3.Error, OSError."""
        make_again(path.parent)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        store = cls(sqlite3.connect(path, timeout=WRITER_PATIENCE, isolation_level=None, check_same_thread=False))
        try:
            for setting in _SETTINGS:
                store.connection.execute(f"PRAGMA {setting}").fetchall()
            store.connection.executescript(f"BEGIN; {_TABLES} {_DRAIN} COMMIT;")
        except sqlite3.Error:
            store.close()
            raise
        store.files = files_at(path)
        return store

    def apply(self, rows: list[Row]) -> None:
        """Write all rows or none, in their order; raises sqlite3.Error."""
        if len(rows) <= BATCH:
            self._insert(rows)
            return
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            for at in range(0, len(rows), BATCH):
                self._insert(rows[at : at + BATCH])
            self.connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")
            raise

    def _insert(self, rows: list[Row]) -> None:
        values = [value for row in rows for value in row + _PADDING[len(_COLUMNS) + 1 - len(row)]]
        self.connection.execute(f"INSERT INTO drain VALUES {', '.join([_ROW] * len(rows))}", values)

    def part(self, serial: int, code: int, long: int, part: int) -> str | None:
        """One part of a long row; None when it is gone."""
        found = self.query(
            "SELECT text FROM parts WHERE serial = ? AND stream = ? AND long = ? AND part = ?", serial, code, long, part
        )
        return found[0][0] if found else None

    def query(self, statement: str, *values: Any) -> list[Any]:
        return self.connection.execute(statement, values).fetchall()


def files_at(path: Path) -> Files:
    """Which files a store there has now. Others, or None among them, mean that somebody has removed some.

    A connection that is open goes on with the files it has.
    """
    found: list[tuple[int, int] | None] = []
    for suffix in ("", *_BESIDE):
        try:
            status = os.stat(f"{path}{suffix}")  # noqa: PTH116 (a second of cells pays for it)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return tuple(found)


def write_again(connection: sqlite3.Connection, path: Path) -> None:
    """Write the store of an open connection, whose files were removed, to `path`. Raises sqlite3.Error, OSError.

    Whatever is there is replaced, in one step. The connection stays with the files it has.
    """
    make_again(path.parent)
    beside = path.with_name(f"{path.name}.again")
    beside.unlink(missing_ok=True)
    os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        copy = sqlite3.connect(beside, isolation_level=None)
        try:
            copy.execute("PRAGMA synchronous = OFF").fetchall()
            connection.backup(copy)
        finally:
            copy.close()
        for suffix in _BESIDE:  # a log of other files would be taken for this one's
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _forget() -> None:
    """In a forked child: the file belongs to the parent, and a mutex of SQLite may be held for ever."""
    for owned in list(_owned):
        owned.forget()


def _leak(connection: sqlite3.Connection) -> None:
    """Keep the connection from ever being closed by the garbage collector."""
    import ctypes  # only a forked child needs it

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
