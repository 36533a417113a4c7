"""What the records of ended processes keep, so that a kernel stays within its budget.

Owns the rule between the processes of one kernel: those that ended keep at most half of
the budget together, the newest first, and the one that runs gets the rest. Within one
store `store_budget` decides what goes. Called by the host before a process starts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from loommux_kernel.shared.records.database import Kind, Store
from loommux_kernel.shared.records.store_budget import Budget

_SIZES = """
SELECT serial, told, (SELECT ifnull(sum(size), 0) FROM chunks c WHERE c.serial = e.serial)
    + (SELECT ifnull(sum(size), 0) FROM parts p WHERE p.serial = e.serial)
    + (SELECT ifnull(sum(length(bundle)), 0) FROM displays d WHERE d.serial = e.serial)
FROM executions e ORDER BY serial
"""


def retain(stores: Iterable[Path], budget_bytes: int) -> int:
    """Drop what is too much of the stores of ended processes, newest first; the bytes that they keep, about.

    A store that is missing or cannot be read keeps what it has and counts nothing.
    """
    left = budget_bytes // 2
    for path in stores:
        if path.exists():
            try:
                left -= _retain(path, max(left, 0), budget_bytes)
            except (sqlite3.Error, OSError):
                continue
    return budget_bytes // 2 - left


def _retain(path: Path, limit: int, of: int) -> int:
    store = Store.create(path)
    try:
        budget = Budget(limit, of)
        for serial, told, size in store.query(_SIZES):
            budget.finished(serial)
            budget.grew(serial, size)
            if told:
                budget.told(serial)
        for relief in budget.relief(store):
            store.apply([*relief.rows, (Kind.DROPPED, relief.serial, relief.dropped)])
        return budget.total
    finally:
        store.close()
