"""`Daemon`: a server and its kernels, for code that runs in one of them or anywhere else (contract 8).

    from loommux_kernel.client import Daemon
    lab = Daemon()["/main/lab"]
    print(lab.run_cell("1 + 1")["output_text"])

Owns how kernels are listed, found, opened, named and ended, and the table they are shown in.
What can be done with one is `handles`', how the server is reached `transport`'s. It imports
next to nothing: every kernel has one of it from its start (`inside.loommux_object.Loommux`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from loommux_kernel.shared.clock import now
from loommux_kernel.shared.handles import KernelHandle
from loommux_kernel.shared.transport import ID_VARIABLE, TIMEOUT, Address, DaemonError, Line, read_json

__all__ = ["Daemon", "DaemonError", "KernelHandle", "Kernels"]

#: Columns of a kernel's row, and what the server calls them where that is another word.
COLUMNS = {
    "name": "name", "id": "resource_id", "state": "kernel_state", "busy": "busy", "idle": "idle_since",
    "pid": "kernel_pid", "executions": "execution_count", "leases": "lease_count",
    "kept": "retention_remaining_seconds", "scope": "scope", "home": "home",
}  # fmt: skip


class Daemon:
    """A loommux server and its kernels.

    kernels(timeout=2)            every kernel of the server, as a table
    daemon["/main/lab"]           find one by path, by id or, inside a kernel, by bare name; never opens
    create("lab")                 a child kernel of this home, opened if missing
    rename(kernel, "report")      the name it got: report-2 if taken
    recycle(kernel, force=False)  end it with its children
    recycle_idle(), recycle_all()

    `url` is ``http://host:port`` or ``http+unix://`` with the socket's path percent-encoded; without it
    LOOMMUX_CONTROL_URL counts, then http://127.0.0.1:8801. `token` is the server's bearer token. Every call
    blocks its thread, from any thread; what the server refuses raises `DaemonError` with `status`.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, client: str | None = None) -> None:
        self._given = (url, token, client)
        self._known: Address | None = None

    @property
    def _address(self) -> Address:
        """Looked up when it is first needed."""
        if self._known is None:
            self._known = Address.of(*self._given)
        return self._known

    def __getattr__(self, name: str) -> Any:
        """`self` is the kernel that this runs in; `loommux` in a cell has it as an attribute."""
        if name != "self":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        own = os.environ.get(ID_VARIABLE)
        if own is None:
            raise AttributeError(
                "there is no `self` outside a kernel; kernels() lists them, and daemon[…] has one by path, name or id"
            )
        return self[own]

    def line(self) -> Line:
        """A connection of the caller's own."""
        return Line(self._address)

    def ask(
        self,
        method: str,
        path: str,
        query: dict[str, Any] | None = None,
        body: dict[str, Any] | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> dict[str, Any]:
        """One request to the API; its answer. Raises `DaemonError`."""
        return read_json(self.ask_raw(method, path, query, body, timeout=timeout))

    def ask_raw(
        self,
        method: str,
        path: str,
        query: dict[str, Any] | None = None,
        body: dict[str, Any] | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> bytes:
        """The same, with the answer as it came."""
        with self.line() as line:
            return line.ask(method, path, query, body, timeout=timeout)

    # -- kernels ---------------------------------------------------------------------

    def kernels(self, timeout: float = 2) -> Kernels:
        """Every kernel of the server: name, id, state, busy, idle, pid, executions, leases, kept, scope, home.

        A list of dicts that shows itself as a table. `idle` and `kept` are seconds; `home` is the name of
        the main kernel that a child belongs to.
        """
        return Kernels.of(self.ask("GET", "/api/resources", timeout=timeout)["resources"])

    def __getitem__(self, path: str) -> KernelHandle:
        """Find a kernel by bare name, path or id; never opens one. ``kernel_not_found`` when there is none."""
        return self._handle(self.ask("GET", "/api/resources/lookup", {"path": _text("a path", path)}))

    def create(self, name: str, *, timeout: float = TIMEOUT) -> KernelHandle:
        """The child kernel of that name in this home, opened if missing.

        Outside a kernel it is a main kernel, or the child at a path ``/main/name``.
        """
        return self._handle(self.ask("POST", "/api/resources", None, {"path": _text("a name", name)}, timeout=timeout))

    def rename(self, kernel: KernelHandle | str, name: str, *, timeout: float = TIMEOUT) -> str:
        """Give it another name; the name it got, with a number when that one is taken."""
        found = self._find(kernel)
        body = {"name": _text("a name", name)}
        got = str(self.ask("POST", f"/api/resources/{found.id}/rename", None, body, timeout=timeout)["name"])
        found.renamed(got)
        return got

    def recycle(self, kernel: KernelHandle | str, force: bool = False, *, timeout: float = 60) -> list[str]:
        """End it with its children and all that they started; a busy one only with `force`. The names."""
        path = f"/api/resources/{self._find(kernel).id}/recycle"
        return self.ask("POST", path, None, {"force": bool(force)}, timeout=timeout)["recycled"]

    def recycle_idle(self, *, timeout: float = 60) -> list[str]:
        """End what is idle and not held: inside a kernel the children of its home; the names."""
        return self.ask("POST", "/api/resources/recycle-idle", timeout=timeout)["recycled"]

    def recycle_all(self, *, timeout: float = 60) -> list[str]:
        """End all, also busy ones: inside a kernel the children of its home; the names."""
        return self.ask("POST", "/api/resources/recycle-all", timeout=timeout)["recycled"]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._address.url}>"

    # -- inside ------------------------------------------------------------------------

    def _find(self, kernel: KernelHandle | str) -> KernelHandle:
        return kernel if isinstance(kernel, KernelHandle) else self[kernel]

    def _handle(self, snapshot: dict[str, Any]) -> KernelHandle:
        return KernelHandle(self, snapshot["resource_id"], snapshot["name"], snapshot.get("home"))


class Kernels(list[dict[str, Any]]):
    """Rows that show themselves as a plain table."""

    @classmethod
    def of(cls, snapshots: Iterable[dict[str, Any]]) -> Kernels:
        rows = [_row(snapshot) for snapshot in snapshots]
        names = {row["id"]: row["name"] for row in rows}
        for row in rows:
            row["home"] = names.get(row["home"], row["home"])
        return cls(rows)

    def __repr__(self) -> str:
        if not self:
            return "no kernels"
        lines = [list(COLUMNS), *([_cell(row.get(name)) for name in COLUMNS] for row in self)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
        return "\n".join("  ".join(line).rstrip() for line in padded)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


def _row(snapshot: dict[str, Any]) -> dict[str, Any]:
    row = {name: snapshot.get(key) for name, key in COLUMNS.items()}
    row["idle"] = _seconds_since(row["idle"])
    return row


def _seconds_since(at: float | None) -> float | None:
    """Seconds since a time by the server's clock, which its kernels keep; None while something runs."""
    return None if at is None else round(max(0.0, now() - at), 1)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} is a string, got {type(value).__name__}")
    return value
