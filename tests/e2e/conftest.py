"""Real servers over stdio, for every test."""

from __future__ import annotations

from servers import agent, common_place, lines, place, start

__all__ = ["agent", "common_place", "lines", "place", "start"]
