"""A kernel as another kernel, or a script, drives it: the eight tools as methods (contract 8).

Owns what a handle offers, and how the arguments of a tool become a request. How a server is
reached is `transport`'s, how kernels are found `client`'s, which makes the handles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from loommux_kernel.shared.clock import monotonic
from loommux_kernel.shared.transport import TIMEOUT

#: The longest that one request may ask a server to wait, in seconds, and how long one of `follow` does.
LONGEST_WAIT = 3600.0
FOLLOW_SECONDS = 10.0
#: Without a mark the server cannot see that something came since the last answer.
UNMARKED_SECONDS = 1.0

Result = dict[str, Any]


class Asks(Protocol):
    """What a handle needs of its server."""

    def ask(
        self,
        method: str,
        path: str,
        query: dict[str, Any] | None = None,
        body: dict[str, Any] | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> Result: ...


class KernelHandle:
    """A kernel of the server. Its methods are the eight tools and return their structured results.

        n = lab.run_cell("train()", wait_seconds=0)["execution"]
        lab.wait(n, timeout_seconds=1450, silence_seconds=140)
        lab.read_output(n, line_range="-20:")["text"]
        for text in lab.follow(n): ...      # combined output as it arrives

    A refusal raises `DaemonError` with its status. Every method blocks its thread; a server that does
    not answer costs `timeout` seconds beside the time it was asked to wait.
    """

    def __init__(self, server: Asks, id: str, name: str, home: str | None = None) -> None:
        self._server = server
        #: The kernel's id, which it keeps for life.
        self.id = id
        self._name = name
        #: Id of the main kernel that it is a child of; None for a main kernel.
        self.home = home

    @property
    def name(self) -> str:
        """The name that it had when it was found."""
        return self._name

    def renamed(self, name: str) -> None:
        """It has another name now."""
        self._name = name

    def run_cell(
        self, freeform: str, wait_seconds: float = 10, silence_seconds: float = 10, *, timeout: float = TIMEOUT
    ) -> Result:
        """Submit one cell as written; its result, or how far it is when the waiting ends."""
        body = {"source": freeform, "wait_seconds": wait_seconds, "silence_seconds": silence_seconds}
        return self._post("executions", body, timeout + min(wait_seconds, silence_seconds))

    def wait(
        self,
        execution: int | None = None,
        timeout_seconds: float = 10,
        silence_seconds: float = 10,
        watch: str | None = None,
        process: int | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> Result:
        """Wait for an execution, or for a watch; never ends it. Half an hour in one call is fine."""
        until = monotonic() + timeout_seconds
        while True:
            seconds = min(max(0.0, until - monotonic()), LONGEST_WAIT)
            body = {"execution": execution, "process": process, "watch": watch, "wait_seconds": seconds}
            body["silence_seconds"] = min(silence_seconds, LONGEST_WAIT)
            result = self._post("wait", body, timeout + seconds)
            if result.get("wait_ended_by") != "timeout" or monotonic() >= until:
                return result

    def status(self, *, timeout: float = TIMEOUT) -> Result:
        """The kernel: state, process, workspace, executions, children, watches, notices."""
        return self._get("status", {}, timeout)

    def execution_status(
        self, execution: int | None = None, process: int | None = None, *, timeout: float = TIMEOUT
    ) -> Result:
        """State and metadata of one execution, without its output."""
        return self._get(f"executions/{'latest' if execution is None else execution}", {"process": process}, timeout)

    def read_output(
        self,
        execution: int | None = None,
        stream: str = "combined",
        line_range: str | None = None,
        max_chars: int | None = None,
        process: int | None = None,
        *,
        start_char: int | None = None,
        timeout: float = TIMEOUT,
    ) -> Result:
        """Lines of one stream: ``["text"]``. `line_range` is ``start:stop``, from 1, negatives from the end.

        `start_char` and `max_chars` are the columns of each line, from 1: the way to all of a very long one.
        """
        query = {"execution": execution, "stream": stream, "line_range": line_range, "max_chars": max_chars}
        return self._get("output", {**query, "start_char": start_char, "process": process}, timeout)

    def search_output(
        self,
        query: str,
        execution: int | None = None,
        stream: str = "combined",
        query_mode: str = "auto",
        context_before: int = 0,
        context_after: int = 0,
        ignore_case: bool = False,
        max_chars: int | None = None,
        process: int | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> Result:
        """Lines that match, with their numbers."""
        asked = {
            "query": query,
            "execution": execution,
            "stream": stream,
            "query_mode": query_mode,
            "context_before": context_before,
            "context_after": context_after,
            "ignore_case": ignore_case,
            "max_chars": max_chars,
            "process": process,
        }
        return self._get("search", asked, timeout)

    def interrupt(self, execution: int | None = None, *, timeout: float = TIMEOUT) -> Result:
        """Interrupt the running cell, or only that one."""
        return self._post("interrupt", {"execution": execution}, timeout)

    def restart(self, *, timeout: float = 120) -> Result:
        """Replace the kernel's process; its variables, and what it started, are gone."""
        return self._post("restart", {}, timeout)

    def follow(
        self, execution: int | None = None, process: int | None = None, *, timeout: float = TIMEOUT
    ) -> Iterator[str]:
        """The combined output in whole lines as it arrives, from its beginning to the execution's end.

        Lines that change after they were told (a table that redraws itself) are told again from the first
        that changed. A last line without its end, as a progress bar, comes when it is final.
        """
        told, since = Told(), 0
        mark: str | None = None
        while True:
            wait = UNMARKED_SECONDS if mark is None else FOLLOW_SECONDS
            query = {"execution": execution, "process": process, "since": since, "mark": mark, "wait": wait}
            answer = self._get("combined", query, timeout + wait)
            execution, process = answer["execution"] or execution, answer["process"]
            settled, tail, since = answer["text"], answer["tail"], answer["offset"]
            mark = answer.get("mark")
            # what did not fit into this answer comes with the next: the tail does not follow what is here
            ended = answer["state"] != "running" and not settled
            text = told.of(settled, tail, ended)
            if text:
                yield text
            if ended:
                return

    # -- inside ------------------------------------------------------------------------

    def _get(self, what: str, query: Result, timeout: float) -> Result:
        return self._server.ask("GET", self._at(what), query, timeout=timeout)

    def _post(self, what: str, body: Result, timeout: float) -> Result:
        body = {name: value for name, value in body.items() if value is not None}
        return self._server.ask("POST", self._at(what), None, body, timeout=timeout)

    def _at(self, what: str) -> str:
        return f"/api/resources/{self.id}/{what}"

    def __repr__(self) -> str:
        return f"<{'child ' if self.home else ''}kernel {self.name!r}, id {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KernelHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)


class Told:
    """How much of the lines that may still change was told already. Pure."""

    def __init__(self) -> None:
        self._tail = ""

    def of(self, settled: str, tail: str, ended: bool) -> str:
        """What is new: `settled` lines came after those of the last call, `tail` may change."""
        text = settled + tail
        if text.startswith(self._tail):
            start = len(self._tail)
        else:
            same = next((i for i, (a, b) in enumerate(zip(text, self._tail, strict=False)) if a != b), len(text))
            start = text.rfind("\n", 0, same) + 1
        stop = len(text) if ended else text.rfind("\n") + 1
        new = text[start:stop] if stop > start else ""
        known = max(start, stop)
        self._tail = text[len(settled) : known] if known > len(settled) else ""
        return new
