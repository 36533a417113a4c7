"""The real servers of `tests/e2e`, and one over HTTP, for faults that people have reported of such systems."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.e2e.driving import Place
from tests.e2e.fixtures import agent, common_place, lines, place, start
from tests.e2e.http_driving import Web, web

__all__ = ["agent", "common_place", "lines", "place", "server", "start"]


@pytest.fixture(scope="module")
async def server(common_place: Place) -> AsyncIterator[Web]:
    """One HTTP server for all tests of a module; each works in kernels of its own names."""
    async with web(common_place) as made:
        yield made
