"""Real servers over stdio, for every test."""

from __future__ import annotations

from tests.e2e.fixtures import agent, common_place, lines, place, server, start

__all__ = ["agent", "common_place", "lines", "place", "server", "start"]
