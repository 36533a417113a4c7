"""``%%loommux --kernel NAME``: a cell of this kernel that runs in another one (contract 8.2).

Owns the submission there, the way of what it says back into this cell's record (`replay`),
an interrupt passed on, and how the cell ends here. All requests are made on a thread of their
own, so that an interrupt finds the main thread where it may be raised, and a server that does
not answer costs its timeout and an error. Called by `running.cell_input`, on the main thread.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from loommux_kernel.executions import native_threads
from loommux_kernel.executions.contexts import carrying, current_execution
from loommux_kernel.executions.native_threads import Flag
from loommux_kernel.inside.replay import Replay
from loommux_kernel.shared.api_client import Daemon
from loommux_kernel.shared.clock import monotonic
from loommux_kernel.shared.transport import TIMEOUT, DaemonError, Line, read_json

#: Seconds in which what an interrupted cell says while it ends is still relayed.
ENDING_SECONDS = 10.0
#: Seconds that a kernel may take to start, for which its first cell waits.
START_SECONDS = 150.0
#: Seconds that one request waits for something new.
RELAY_SECONDS = 10.0
#: Waiting for ever cannot be interrupted on Windows.
_PATIENCE = 0.1 if sys.platform == "win32" else None
_MESSAGE_CHARACTERS = 500


class ForwardedCellError(Exception):
    """A cell that was run in another kernel did not end well there; one line, under the traceback from there."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class ForwardedInterrupt(KeyboardInterrupt):
    """A cell that was run in another kernel was interrupted there."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


class Forwarding:
    """One cell on its way through another kernel."""

    def __init__(self, kernel: Any, daemon: Daemon, name: str, source: str) -> None:
        self._kernel = kernel
        self._name = name
        self._source = source
        self._line: Line = daemon.line()
        #: For the interrupt, while the other one waits.
        self._second: Line = daemon.line()
        self._serial = current_execution.get(0)
        self._id = ""
        self._number: int | None = None
        self._process: int | None = None
        self._begun = Flag()
        self._over = Flag()
        self._end: dict[str, Any] = {}
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Run it there and end as it ended. Raises `ForwardedCellError`, or what an interrupt raises."""
        native_threads.start(carrying(self._work, restore=False))
        try:
            try:
                self._wait()
            except KeyboardInterrupt:
                self._interrupt()
            except DaemonError as error:
                self._failure = error
        finally:  # also when it is interrupted again
            self._line.hang_up()
            self._second.hang_up()
        self._conclude()

    def _wait(self) -> None:
        asked = monotonic()
        while not self._begun.wait(_PATIENCE or TIMEOUT):
            # a kernel may take long to start, but not its server to say that it is there
            if monotonic() - asked >= TIMEOUT:
                self._second.ask("GET", "/api/health")
                asked = monotonic()
        while not self._over.wait(_PATIENCE):
            pass

    def _interrupt(self) -> None:
        """Pass it on, and listen for some time what the cell says to it."""
        native_threads.start(carrying(self._pass_on, restore=False))
        if not self._over.wait(ENDING_SECONDS):
            what = self._name if self._number is None else f"In [{self._number}] of {self._name}"
            sys.stderr.write(
                f"{what} has not ended within {ENDING_SECONDS:g} s of the interrupt and may go on there.\n"
            )
            raise ForwardedInterrupt(f"{what} was sent an interrupt")

    def _conclude(self) -> None:
        if self._failure is not None:
            error = self._failure
            if isinstance(error, DaemonError):
                raise ForwardedCellError(_line(f"{self._name}: {error}")) from None
            raise error
        state, message = self._end["state"], self._end.get("message")
        if state == "error":
            raise ForwardedCellError(_line(f"{self._name}: {self._end.get('ename')}: {self._end.get('evalue')}"))
        if state == "interrupted":
            self._kernel.interrupts.aim.hit()  # this cell ends as that one did, whoever interrupted it
            raise ForwardedInterrupt(self._name)
        if state != "completed":
            how = (message or "").removeprefix("Killed: ").partition("\n")[0]
            raise ForwardedCellError(_line(f"{self._name}: {state}: {how}".rstrip(": ")))

    # -- on threads of their own -------------------------------------------------------

    def _work(self) -> None:
        try:
            with self._line as line:
                self._submit(line)
                self._begun.set()
                self._relay(line)
        except BaseException as error:  # raised where the cell waits
            self._failure = self._failure or error
        finally:
            self._begun.set()
            self._over.set()

    def _submit(self, line: Line) -> None:
        found = read_json(line.ask("POST", "/api/resources", None, {"path": self._name}))
        self._id = str(found["resource_id"])
        body = {"source": self._source, "wait_seconds": 0, "silence_seconds": 0, "relay": True}
        path = f"/api/resources/{self._id}/executions"
        taken = read_json(line.ask("POST", path, None, body, timeout=START_SECONDS))
        self._number, self._process = taken["execution"], taken["process"]

    def _relay(self, line: Line) -> None:
        """Take in what it says until it has ended and everything is here."""
        replay = Replay(self._kernel, self._serial, (self._id, self._name))
        query: dict[str, Any] = {"execution": self._number, "process": self._process, "after": 0, "wait": RELAY_SECONDS}
        path = f"/api/resources/{self._id}/relay"
        while True:
            *said, end = line.ask("GET", path, query, timeout=RELAY_SECONDS + TIMEOUT).rstrip(b"\n").split(b"\n")
            for one in said:
                replay.play(json.loads(one))
            self._end = read_json(end)
            query["after"] = self._end["next"]
            if self._end["state"] != "running":
                return

    def _pass_on(self) -> None:
        """What the server has to say of the interrupt is told by the cell's end, or by its silence."""
        if self._begun.wait(ENDING_SECONDS) and self._number is not None:
            try:
                with self._second as line:
                    path = f"/api/resources/{self._id}/interrupt"
                    line.ask("POST", path, None, {"execution": self._number}, timeout=ENDING_SECONDS)
            except DaemonError:
                return


def _line(text: str) -> str:
    """Its first line, not too long."""
    first, *more = text.strip().splitlines() or [""]
    if more or len(first) > _MESSAGE_CHARACTERS:
        return first[: _MESSAGE_CHARACTERS - 1] + "…"
    return first
