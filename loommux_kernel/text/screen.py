"""Rows and a cursor: the last 64 lines of a stream, which can still change.

Owns where text stands: writing at the cursor, erasing, rows that leave the
screen as settled lines, blocks of lines that can be replaced. Pure; knows no
control character: its only subclass, `terminal.Terminal`, says what to do.

Columns are code points, there is no width and no wrapping. Rows below the
cursor that are blank do not exist, and neither do blanks at the end of a row
that was drawn over: bars erase themselves with them. How far to the right of
its text the cursor can go is limited to `MAX_COLUMN`.
"""

from __future__ import annotations

from typing import Any

from loommux_kernel.text.counts import Counts, utf8_size
from loommux_kernel.text.long_row import LONG, Fetch, LongRow, no_parts

SCREEN_LINES = 64
MAX_COLUMN = 4_095

Row = str | LongRow


class Screen:
    """The screen of one stream.

    `fetch` gives the parts of rows that were too long to stay in memory.
    Settled lines leave through `take_settled`; what it returned is not kept.
    """

    def __init__(self, fetch: Fetch = no_parts) -> None:
        self._fetch = fetch
        self._rows: list[Row] = [""]
        #: Rows that were drawn over.
        self._drawn: list[bool] = [False]
        self._x = 0
        self._y = 0
        #: Lines that have left the screen, in all.
        self.settled_lines = 0
        self._settled: list[Row] = []
        #: Block key -> how many lines are before it, and up to its end.
        self._blocks: dict[int, tuple[int, int]] = {}
        self._next_long = 1
        #: Ids of long rows that no longer exist: their stored parts are void.
        self.discarded: list[int] = []

    # -- what there is ---------------------------------------------------------

    def take_settled(self) -> list[Row]:
        """What has settled since the last call: texts of whole lines, each ending in a newline, and long rows."""
        settled, self._settled = self._settled, []
        return settled

    def rows(self) -> list[Row]:
        """The rows that can still change; the last one is the line without a newline, maybe empty."""
        last = self._last_row()
        return self._rows[: last + 1] if self._is_plain() else [self._shown(y) for y in range(last + 1)]

    def screen(self) -> str:
        """The text that can still change."""
        return "\n".join(row if isinstance(row, str) else row.text() for row in self.rows())

    def screen_counts(self) -> Counts:
        """The size of the text that can still change."""
        rows = self.rows()
        text = "\n".join([row if isinstance(row, str) else "" for row in rows])
        characters = len(text)
        size = utf8_size(text)
        for row in self.long_rows():
            characters += row.length
            size += row.utf8_bytes
        return Counts(len(rows) - (rows[-1] == ""), characters, size)

    def blocks(self) -> dict[int, tuple[int, int]]:
        """Blocks of which something, an empty place too, is on the screen: lines before them, lines up to their end."""
        return {k: (b, e) for k, (b, e) in self._blocks.items() if e > self.settled_lines or b >= self.settled_lines}

    def long_rows(self) -> list[LongRow]:
        """The long rows on the screen."""
        return [row for row in self._rows if isinstance(row, LongRow)] if self._next_long > 1 else []

    def state(self) -> dict[str, Any]:
        """All that `restore` needs, as JSON; settled text must have been taken."""
        state: dict[str, Any] = {
            "rows": [row if isinstance(row, str) else [row.id, row.length, row.utf8_bytes] for row in self._rows],
            "at": [self._x, self._y],
            "settled": self.settled_lines,
        }
        if True in self._drawn:
            state["drawn"] = [y for y, drawn in enumerate(self._drawn) if drawn]
        if blocks := self.blocks():
            state["blocks"] = [[k, b, e] for k, (b, e) in blocks.items()]
        if self._next_long > 1:
            state["next_long"] = self._next_long
        return state

    def restore(self, state: dict[str, Any]) -> None:
        self._rows = [
            row if isinstance(row, str) else LongRow.stored(row[0], self._fetch, row[1], row[2])
            for row in state["rows"]
        ]
        drawn = set(state.get("drawn", ()))
        self._drawn = [y in drawn for y in range(len(self._rows))]
        self._x, self._y = state["at"]
        self.settled_lines = state["settled"]
        self._blocks = {k: (b, e) for k, b, e in state.get("blocks", ())}
        self._next_long = state.get("next_long", 1)

    # -- writing ---------------------------------------------------------------

    def write(self, text: str) -> None:
        """Text of one line without controls, at the cursor."""
        if not text:
            return
        self._ensure_row()
        row, x = self._rows[self._y], self._x
        length = self._length(self._y)
        if x < length:
            self._drawn[self._y] = True
        if not isinstance(row, str):
            row.write(x, text)
        elif x == length:
            self._rows[self._y] = self._row(row + text)
        else:
            self._rows[self._y] = self._row(row[:x].ljust(x) + text + row[x + len(text) :])
        self._x = x + len(text)

    def line_feed(self) -> None:
        """To the beginning of the next line; at the bottom the screen scrolls."""
        self._x = 0
        self._ensure_row()
        if self._y == len(self._rows) - 1:
            self._rows.append("")
            self._drawn.append(False)
        self._y += 1
        self._scroll()

    def fresh_line(self) -> None:
        """Go below the text, to the beginning of an empty line."""
        self._y = self._last_row()
        self._x = 0
        if self._shown(self._y):
            self.line_feed()
        else:
            self._blank_row(self._y)

    def clear(self) -> None:
        """Erase the screen's lines: they do not exist any more."""
        self._discard(self._rows)
        self._rows, self._drawn = [""], [False]
        self._x = self._y = 0
        self._blocks.clear()

    def _at_end(self) -> bool:
        """No row is below the cursor."""
        return self._y >= len(self._rows) - 1

    def _extend(self, lines: list[str], drawn: list[bool], column: int) -> None:
        """New rows below the cursor, which is `_at_end`; it ends in the last of them at `column`."""
        self._ensure_row()
        self._rows += [self._row(line) if len(line) >= LONG else line for line in lines]
        self._drawn += drawn
        self._y, self._x = len(self._rows) - 1, column
        self._scroll()

    def _pass_through(self, text: str) -> None:
        """All rows leave the screen, and the whole lines of `text` below them; `_extend` must follow."""
        self._ensure_row()
        self._scroll(0)
        self._settled.append(text)
        self.settled_lines += text.count("\n")
        self._y = -1

    # -- blocks ----------------------------------------------------------------

    def begin_block(self) -> int:
        """Lines of their own begin; how many there are before them."""
        self.fresh_line()
        return self.settled_lines + self._y

    def end_block(self, key: int, before: int) -> int:
        """What came since `begin_block` is a block; how many lines there are up to its end."""
        self.fresh_line()
        if len(self._blocks) >= 2 * SCREEN_LINES:
            self._blocks = self.blocks()
        self._blocks[key] = (before, self.settled_lines + self._y)
        return self.settled_lines + self._y

    def holds_block(self, key: int) -> bool:
        """Whether all of that block is still on the screen."""
        before, end = self._blocks.get(key, (-1, -1))
        return self.settled_lines <= before and end - self.settled_lines <= len(self._rows)

    def block_end(self, key: int) -> int:
        """How many lines there are up to the end of a block that was just put or replaced."""
        return self._blocks[key][1]

    def _replace_block(self, key: int, lines: list[str]) -> bool:
        if not self.holds_block(key):
            return False
        before, end = self._blocks[key]
        first, stop = before - self.settled_lines, end - self.settled_lines
        self._discard(self._rows[first:stop])
        self._rows[first:stop] = [self._row(line) for line in lines]
        self._drawn[first:stop] = [False] * len(lines)
        grown = len(lines) - (stop - first)
        for other, (b, e) in self._blocks.items():
            if b >= end and other != key:
                self._blocks[other] = (b + grown, e + grown)
        self._blocks[key] = (before, end + grown)
        if self._y >= stop:
            self._y += grown
        elif self._y >= first:
            self._y, self._x = first + len(lines), 0
        self._ensure_row()
        self._scroll()
        return True

    def remove_block(self, key: int) -> None:
        """Erase what of the block is still on the screen, and the blocks in it."""
        before, end = self._blocks.pop(key, (0, 0))
        first, stop = max(0, before - self.settled_lines), end - self.settled_lines
        gone = min(stop, len(self._rows)) - first
        if gone <= 0:
            return
        self._discard(self._rows[first : first + gone])
        del self._rows[first : first + gone], self._drawn[first : first + gone]
        self._blocks = {
            k: (b - gone * (b >= end), e - gone * (e >= end))
            for k, (b, e) in self._blocks.items()
            if not before <= b <= e <= end or b == end or e == before  # an empty one at an edge may be outside
        }
        if self._y >= first + gone:
            self._y -= gone
        elif self._y >= first:
            self._y, self._x = first, 0
        self._ensure_row()

    # -- cursor and erasing ----------------------------------------------------

    def go(self, y: int, x: int) -> None:
        self._y = min(max(y, 0), SCREEN_LINES - 1)
        self._x = min(max(x, 0), max(MAX_COLUMN, self._length(self._y), self._x))

    def erase_screen(self, how: int) -> None:
        """0: from the cursor on, 1: up to the cursor, 2: all."""
        below, above = range(self._y + 1, len(self._rows)), range(min(self._y, len(self._rows)))
        for y in {0: below, 1: above, 2: range(len(self._rows))}.get(how, ()):
            self._blank_row(y)
        if how in (0, 1):
            self.erase_line(how)

    def erase_line(self, how: int) -> None:
        """0: from the cursor on, 1: up to the cursor, 2: all."""
        if self._y >= len(self._rows):
            return
        row = self._rows[self._y]
        if how == 2:
            self._blank_row(self._y)
        elif how == 1:
            self.erase_columns(0, self._x + 1)
        elif how == 0 and isinstance(row, LongRow):
            row.truncate(self._x)
        elif how == 0 and isinstance(row, str):
            self._rows[self._y] = row[: self._x]

    def erase_columns(self, first: int, stop: int) -> None:
        stop = min(stop, self._length(self._y))
        if first < stop:
            x, self._x = self._x, first
            self.write(" " * (stop - first))
            self._x = x

    # -- rows ------------------------------------------------------------------

    def _scroll(self, keep: int = SCREEN_LINES) -> None:
        """All but the last `keep` rows leave the screen."""
        count = len(self._rows) - keep
        if count <= 0:
            return
        texts: list[str] = []
        for row in self._rows[:count] if self._is_plain() else [self._shown(y) for y in range(count)]:
            if isinstance(row, str):
                texts.append(row + "\n")
                continue
            self._settled += ["".join(texts), row] if texts else [row]
            texts = []
        if texts:
            self._settled.append("".join(texts))
        del self._rows[:count], self._drawn[:count]
        self.settled_lines += count
        self._y -= count

    def _row(self, text: str) -> Row:
        if len(text) < LONG:
            return text
        self._next_long += 1
        return LongRow(self._next_long - 1, self._fetch, text)

    def _is_plain(self) -> bool:
        """All rows are shown as they are."""
        return self._next_long == 1 and True not in self._drawn

    def _length(self, y: int) -> int:
        if y >= len(self._rows):
            return 0
        row = self._rows[y]
        return len(row) if isinstance(row, str) else row.length

    def _blank_row(self, y: int) -> None:
        self._discard([self._rows[y]])
        self._rows[y] = ""
        self._drawn[y] = False

    def _discard(self, rows: list[Row]) -> None:
        self.discarded += [row.id for row in rows if isinstance(row, LongRow)]

    def _ensure_row(self) -> None:
        missing = self._y + 1 - len(self._rows)
        if missing > 0:
            self._rows += [""] * missing
            self._drawn += [False] * missing

    def _shown(self, y: int) -> Row:
        """Row `y` as it is shown; an empty string when nothing is."""
        row = self._rows[y]
        if isinstance(row, str):
            return row.rstrip(" ") if self._drawn[y] else row
        if self._drawn[y]:
            row.trim()
        if row.length == 0:
            self._discard([row])
            row = self._rows[y] = ""
        return row

    def _last_row(self) -> int:
        """The last row that is shown: the cursor's, or one below it that is not blank."""
        last = len(self._rows) - 1
        while last > self._y and not self._shown(last):
            last -= 1
        return last
