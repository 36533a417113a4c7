"""Lines of one cell that are too much for one answer, had in as many as it takes.

Owns how a range is divided: into fewer lines, and a line that is too long by itself into
columns. Called by `commands.logs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from loommux_host.command_line.reach import Found

#: Characters of a line that are asked for at once; fewer when so many do not fit into an answer.
CHARACTERS = 100_000
ANSWER_SECONDS = 60.0


@dataclass(frozen=True)
class Pieces:
    """One stream of one cell."""

    found: Found
    execution: int | None
    process: int | None
    stream: str

    def of_lines(self, first: int, last: int) -> Iterator[str]:
        """The text of the lines, each with its end."""
        read = self._read(first, last)
        if read["text"] is not None:
            yield f"{read['text']}\n"
        elif first == last:
            yield from self._of_line(first)
        else:
            middle = (first + last) // 2
            yield from self.of_lines(first, middle)
            yield from self.of_lines(middle + 1, last)

    def _of_line(self, number: int) -> Iterator[str]:
        start, size, length = 1, CHARACTERS, 1
        while start <= length:
            read = self._read(number, number, start_char=start, max_chars=size)
            length = read["line_characters"]
            if read["text"] is None:
                size = max(1, size // 2)
                continue
            yield read["text"][:size]
            start += size
        yield "\n"

    def _read(self, first: int, last: int, **columns: int) -> dict[str, Any]:
        return self.found.handle.read_output(
            self.execution, self.stream, f"{first}:{last}", process=self.process, timeout=ANSWER_SECONDS, **columns
        )
