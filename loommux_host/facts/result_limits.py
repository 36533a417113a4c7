"""The limits of a result (contract 3.2, 3.6) and what follows from them by counting bytes alone.

Pure numbers: `usecases.service` asks here whether a body is worth reading, `rendering.message`, `rendering.images`
and `token_counting.vocabulary` apply the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Tokens of o200k_base that a result's body may have.
TOKEN_LIMIT = 5_000
#: Tokens of the lines shown in place of a body, at each end.
EXCERPT_TOKENS = 500
#: The longest token of the vocabulary, in bytes; a test pins it.
LONGEST_TOKEN_BYTES = 128
#: Code points of a body: full output, a read, a search.
BODY_CHARACTERS = 200_000
#: Code points of one line where lines are shown in place of a body.
EXCERPT_LINE_CHARACTERS = 200
#: Code points of one row of a search, unless the caller says how many.
SEARCH_ROW_CHARACTERS = 400
#: Of a cell that is looked at by itself; longer than nearly any cell.
SOURCE_CHARACTERS = 8_000
RECENT_LINES = 5
IMAGES = 20
#: What a message may have around the result: the JSON-RPC envelope, SSE framing, the id.
FRAME_BYTES = 4_096


@dataclass(frozen=True)
class Limits:
    """The limits that a server can set. `ascii_wire`: the transport sends non-ASCII characters as escapes."""

    max_result_bytes: int = 1_000_000
    omission_tail_lines: int = 20
    ascii_wire: bool = True


def always_within(utf8_bytes: int, limit: int = TOKEN_LIMIT) -> bool:
    """No token is empty: so few bytes never exceed the limit."""
    return utf8_bytes <= limit


def never_within(utf8_bytes: int, limit: int = TOKEN_LIMIT) -> bool:
    """No token is longer: so many bytes always exceed the limit."""
    return utf8_bytes > limit * LONGEST_TOKEN_BYTES
