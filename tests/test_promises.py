"""docs/promises.md and the tests name each other: no promise without a test, no test of behaviour without a promise."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = (ROOT / "docs" / "promises.md").read_text()
#: The tests of behaviour as users see it; each stands in the table.
BEHAVIOUR = ("tests/e2e", "tests/clients", "tests/cases")
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def functions_of(path: Path) -> set[str]:
    found = ast.walk(ast.parse(path.read_text()))
    functions = (n for n in found if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return {n.name for n in functions if n.name.startswith("test_")}


def rows() -> list[str]:
    return [line for line in TABLE.splitlines() if re.match(r"\| §\d", line)]


def test_every_promise_names_a_test_that_exists() -> None:
    assert rows(), "the table has no rows"
    for row in rows():
        named = NAMED.findall(row)
        assert named, f"no test: {row}"
        for path, test in named:
            file = ROOT / path
            assert file.is_file(), f"{path} does not exist: {row}"
            assert not test or test in functions_of(file), f"{path} has no {test}: {row}"


def test_every_test_of_behaviour_holds_a_promise() -> None:
    named = {(path, test) for row in rows() for path, test in NAMED.findall(row)}
    loose = [
        f"{relative}::{test}"
        for folder in BEHAVIOUR
        for file in sorted((ROOT / folder).rglob("test_*.py"))
        for relative in [str(file.relative_to(ROOT))]
        for test in sorted(functions_of(file))
        if (relative, test) not in named and (relative, "") not in named
    ]
    assert not loose, f"not in docs/promises.md: {loose}"
