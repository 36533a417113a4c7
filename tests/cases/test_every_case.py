"""Of each reported fault at least one test, anywhere, holds the right value."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
CASES = set(
    "M01 M02 M03 M06 M07 M08 M09 M10 M12 M13 M15 M17 M18 "
    "P02 P03 P05 P06 P08 "
    "E01 E02 E03 E04 E08 E09 E11 E12 "
    "R01 R02 R03 R04 R05 R07 R08 R10 R11 R12 R13 R16 R21 R22 R24 "
    "S01 S02 S03 S05".split()
)


def marked(path: Path) -> Iterator[str]:
    """The ids in the markers of a file's tests."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.case":
                    yield from (argument.value for argument in mark.args if isinstance(argument, ast.Constant))


def test_each_reported_fault_has_a_test() -> None:
    assert len(CASES) == 45
    assert {case for path in TESTS.rglob("test_*.py") for case in marked(path)} == CASES
