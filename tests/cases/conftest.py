"""The real servers of `tests/e2e`, and one over HTTP, for faults that people have reported of such systems."""

from __future__ import annotations

from tests.e2e.fixtures import agent, common_place, lines, place, server, start

__all__ = ["agent", "common_place", "lines", "place", "server", "start"]
