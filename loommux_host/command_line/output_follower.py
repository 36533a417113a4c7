"""Output of one cell, for commands that show it: all there is, or on as it arrives, within a time.

Owns the loop of questions to the server and when it ends. Called by `commands.run` and `commands.logs`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from loommux_host.command_line.reach import Found
from loommux_kernel.shared.handles import Told

#: How long one question may wait for something new.
QUESTION_SECONDS = 5.0
ANSWER_SECONDS = 30.0


@dataclass
class Following:
    """``for text in following: …``; afterwards `state` says how far the cell is, `execution` which one it was."""

    found: Found
    execution: int | None
    process: int | None = None
    stream: str = "combined"
    #: Whether to wait for what a running cell says next, and until when (monotonic seconds).
    onward: bool = True
    end: float | None = None
    state: str = ""
    #: What the last answer looked like: the server answers at once when it is no longer so.
    _mark: object = None

    def __iter__(self) -> Iterator[str]:
        told, since, wait, self._mark = Told(), 0, 0.0, None
        while True:
            answer = self._ask(since, wait)
            self.state, self.process = answer["state"], answer["process"]
            self.execution = answer["execution"] or self.execution
            settled, since, self._mark = answer["text"], answer["offset"], answer["mark"]
            # What did not fit into this answer comes with the next one.
            last = not settled and (self.state != "running" or not self.onward)
            if text := told.of(settled, answer["tail"], last):
                yield text
            if last or self._is_over():
                return
            wait = 0.0 if settled else self._wait()

    def _ask(self, since: int, wait: float) -> dict[str, Any]:
        query = {
            "execution": self.execution, "process": self.process, "stream": self.stream, "since": since, "wait": wait,
            "mark": self._mark,
        }  # fmt: skip
        path = f"/api/resources/{self.found.snapshot['resource_id']}/combined"
        return self.found.place.daemon.ask("GET", path, query, timeout=ANSWER_SECONDS + wait)

    def _is_over(self) -> bool:
        return self.end is not None and time.monotonic() >= self.end

    def _wait(self) -> float:
        left = QUESTION_SECONDS if self.end is None else min(QUESTION_SECONDS, self.end - time.monotonic())
        return max(0.0, left)
