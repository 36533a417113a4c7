"""What only a kernel itself knows of the moment, asked on the way to something else.

Owns one question and how long it may take. Called by `kernel`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loommux_host.kernels.process_life import Life

#: How long the kernel may take to answer small questions on the way to something else.
ASIDE_SECONDS = 0.3


@dataclass(frozen=True)
class Seen:
    """The attached clients; and where an idle kernel's main thread is when that keeps it from taking a cell."""

    clients: list[dict[str, Any]] = field(default_factory=list)
    held_at: str | None = None


async def look(life: Life | None) -> Seen:
    """Ask the process; nothing when there is none or it does not answer at once."""
    answer = None if life is None or life.gone else await life.ask("status", {"holder": True}, deadline=ASIDE_SECONDS)
    return Seen() if answer is None else Seen(list(answer.get("clients", [])), answer.get("holder"))
