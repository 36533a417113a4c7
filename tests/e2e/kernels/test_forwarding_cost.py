"""Forwarding much output: nothing is lost, it reads the same, and it is not dear."""

from __future__ import annotations

import time

import pytest

from tests.e2e.driving import Agent

pytestmark = pytest.mark.anyio

#: `make bench` holds forwarding to twice the time of a direct run; here any sort of load may come between.
MOST = 10

MUCH = {
    "100,000 lines": ("for i in range(100_000): print('line', i)", ["line 0", "line 99999"], 100_000),
    "20,000 redraws of one line": (
        "import sys\nfor i in range(20_000):\n    sys.stdout.write(f'\\r{i + 1}/20000 {\"█\" * (i // 500)}')\n"
        "    sys.stdout.flush()",
        ["20000/20000 " + "█" * 39] * 2,
        1,
    ),
}


@pytest.mark.parametrize("what", MUCH)
async def test_much_output_reads_the_same_and_is_not_dear(agent: Agent, what: str) -> None:
    source, (first, last), lines = MUCH[what]
    header = "%%loommux --wait 100 --silence 100"
    await agent.run(f"{header} --kernel build\n1")
    began = time.monotonic()
    await agent.run(f"{header}\n{source}")
    direct = time.monotonic() - began
    began = time.monotonic()
    await agent.run(f"{header} --kernel build\n{source}")
    assert time.monotonic() - began < MOST * direct + 1
    heading = f"[lines {{}}–{{}} of {lines:,}]\n{{}}"
    assert await agent.text("read_output", line_range="1:1") == heading.format(1, 1, first)
    assert await agent.text("read_output", line_range="-1:") == heading.format(f"{lines:,}", f"{lines:,}", last)
