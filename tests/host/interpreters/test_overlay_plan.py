"""Which packages come from where: the rule, over packages and interpreters of the tests' making."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.tags import parse_tag, platform_tags

from loommux_host.interpreters.overlay_plan import Package, Piece, plan, supported
from loommux_host.interpreters.probe import Interpreter

PLATFORM = next(iter(platform_tags()))
PURE = "py3-none-any"


def package(name: str, version: str, *requires: str, tag: str = PURE) -> Package:
    return Package(name, version, requires, frozenset(parse_tag(tag)))


#: What the server has: a kernel, which needs a shell and, on old Pythons, a helper; and one with compiled code.
OWN = {
    one.name: one
    for one in (
        package("kernel", "7.4", "shell>=9", "helper; python_version < '3.12'", "Debug.Py>=1", "extra; extra == 'x'"),
        package("shell", "9.2", "kernel"),
        package("helper", "1.0"),
        package("debugpy", "1.8"),
        package("wire", "27.3", tag=f"cp311-cp311-{PLATFORM}"),
        package("stable", "6.6", tag=f"cp311-abi3-{PLATFORM}"),
    )
}
ROOTS = {"kernel": SpecifierSet(">=7.4,<8"), "wire": SpecifierSet(">=27"), "stable": SpecifierSet()}


def interpreter(
    version: tuple[int, int, int] = (3, 11, 4), there: dict[str, str] | None = None, *, threaded: bool = False
) -> Interpreter:
    return Interpreter(Path("/p"), Path("/"), version, "cpython", "linux-x86_64", threaded, (), there or {})


def planned(there: Interpreter) -> dict[str, tuple[str, str, str | None]]:
    own = OWN | {"debug-py": package("debug-py", "1")}
    return {one.name: (one.place, one.source, one.instead) for one in plan(there, own.__getitem__, ROOTS)}


def test_an_interpreter_that_has_everything_needs_no_overlay() -> None:
    full = {"Kernel": "7.4", "shell": "9.9", "helper": "2", "wire": "28.0", "stable": "6.0", "Debug_Py": "1.1"}
    assert planned(interpreter(there=full)) == {}


def test_what_is_missing_comes_behind_and_what_is_too_old_is_shadowed_in_front() -> None:
    assert planned(interpreter(there={"kernel": "6.31", "shell": "9.0", "wire": "27.1"})) == {
        "kernel": ("front", "own", "6.31"),
        "helper": ("behind", "own", None),
        "stable": ("behind", "own", None),
        "debug-py": ("behind", "own", None),
    }


def test_a_version_that_is_too_new_is_shadowed_too() -> None:
    assert planned(interpreter(there={"kernel": "8.0"}))["kernel"] == ("front", "own", "8.0")


def test_compiled_code_of_another_python_is_fetched_and_a_stable_interface_is_not() -> None:
    newer = planned(interpreter((3, 13, 0)))
    assert newer["wire"] == ("behind", "wheel", None)
    assert newer["stable"] == ("behind", "own", None)
    assert "helper" not in newer, "it is for older Pythons alone"
    free = planned(interpreter((3, 13, 0), threaded=True))
    assert free["stable"] == ("behind", "wheel", None), "a build without the global lock knows no such interface"
    assert free["kernel"] == ("behind", "own", None)


def test_a_requirement_of_an_extra_is_none() -> None:
    assert "extra" not in planned(interpreter())


def test_what_a_kernel_runs_without_is_left_out() -> None:
    own = OWN | {"kernel": package("kernel", "7.4", "debugpy>=1")}
    pieces = plan(interpreter(), own.__getitem__, {"kernel": SpecifierSet()})
    assert pieces == [Piece("kernel", "7.4", "behind", "own")]


@pytest.mark.parametrize(("version", "tag"), [((3, 11, 0), "cp311-cp311"), ((3, 13, 1), "cp313-cp313")])
def test_an_interpreter_takes_the_wheels_of_its_own_kind(version: tuple[int, int, int], tag: str) -> None:
    fitting = supported(interpreter(version))
    assert parse_tag(f"{tag}-{PLATFORM}") <= fitting
    assert parse_tag(PURE) <= fitting
    assert not parse_tag(f"cp312-cp312-{PLATFORM}") & fitting
