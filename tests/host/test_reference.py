"""docs/reference.md says what the code says: tools, parameters, status words with their texts, fields."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loommux_host.facts import refusals, status_words
from loommux_host.facts.results import (
    Answer,
    ExecutionStatusAnswer,
    InterruptAnswer,
    ReadAnswer,
    RestartAnswer,
    SearchAnswer,
    StatusAnswer,
    WatchAnswer,
)
from loommux_host.facts.status_words import Word
from loommux_host.mcp.tools import TOOLS
from loommux_kernel.shared.protocol import OriginKind, State
from tests.host.answers import KERNEL, NOW, cell, execution, fields_of

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "reference.md").read_text()
COMMON = "Fields of every result"
TABLES = {
    "States of an execution": status_words.STATES,
    "What `interrupt` answers": status_words.INTERRUPTS,
    "What `wait` answers about a watch": status_words.WATCHES,
    "What `restart` answers": status_words.RESTARTS,
    "States of a kernel": status_words.KERNELS,
    "Why output is left out": status_words.OMISSIONS,
    "Refusals": refusals.REFUSALS,
    "Starts that fail": status_words.STARTS,
}
ANSWERS: dict[str, Answer] = {
    "Fields of a refusal": refusals.refuse("empty_cell"),
    "Fields of run_cell and wait": cell("x\n"),
    "Fields of wait for a watch": WatchAnswer(kernel=KERNEL, now=NOW),
    "Fields of execution_status": ExecutionStatusAnswer(kernel=KERNEL, now=NOW, execution=execution()),
    "Fields of read_output": ReadAnswer(kernel=KERNEL, now=NOW, execution=execution()),
    "Fields of search_output": SearchAnswer(kernel=KERNEL, now=NOW, execution=execution()),
    "Fields of interrupt": InterruptAnswer(kernel=KERNEL, now=NOW, result="idle"),
    "Fields of restart": RestartAnswer(kernel=KERNEL, now=NOW, new_process=1),
    "Fields of status": StatusAnswer(kernel=KERNEL, now=NOW),
}


def section(title: str) -> str:
    match = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)
    assert match, f"the reference has no section {title}"
    return match[1]


def rows(title: str) -> list[list[str]]:
    """The cells of the section's table, its head left out."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[part.strip().replace("\\|", "|") for part in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


@pytest.mark.parametrize("name", TOOLS)
def test_every_parameter_stands_there_with_its_values_and_default(name: str) -> None:
    expected = [
        [
            f"`{p.name}`",
            p.kind.allowed,
            "required" if p.required else "–" if p.default is None else f"`{str(p.default).lower()}`",
            p.description,
        ]
        for p in TOOLS[name].parameters
    ]
    assert rows(f"`{name}`") == expected


def test_no_tool_stands_there_that_does_not_exist() -> None:
    tools = PAGE.partition("## Tools")[2].partition("## Results")[0]
    assert re.findall(r"^### `(\w+)`$", tools, re.M) == list(TOOLS)


@pytest.mark.parametrize("title", TABLES)
def test_every_status_word_stands_there_with_its_meaning_and_text(title: str) -> None:
    table: dict[str, Word] = TABLES[title]
    found = {row[0].strip("`"): Word(row[1], (row[2:] or [""])[0].strip("`")) for row in rows(title)}
    assert found == table


def test_no_status_word_is_in_the_code_that_is_not_in_a_table() -> None:
    known = set().union(*TABLES.values())
    used: set[str] = set()
    for path in (ROOT / "loommux_host").rglob("*.py"):
        source = path.read_text()
        used |= set(re.findall(r'\b(?:refuse|ConfigError|Refusal)\(\s*(?:status=)?"(\w+)"', source))
        used |= set(re.findall(r'\bbody_omitted\s*=+\s*"(\w+)"', source))
    assert len(used) > 10 and used <= known, used - known


def test_states_and_kinds_of_the_protocol_stand_there() -> None:
    assert set(status_words.STATES) == set(State)
    for kind in OriginKind:
        assert f"`{kind}`" in section("Fields of execution_status")


@pytest.mark.parametrize("title", ANSWERS)
def test_every_structured_field_stands_there(title: str) -> None:
    common = documented(COMMON)
    fields = fields_of(ANSWERS[title])
    assert common <= set(fields)
    assert documented(title) == set(fields) - common


def documented(title: str) -> set[str]:
    return {name for row in rows(title) for name in re.findall(r"`(\w+)`", row[0])}
