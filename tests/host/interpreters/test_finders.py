"""An overlay is found by one process and by nothing that it starts; run in interpreters that have nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loommux_host.interpreters.finders import BEHIND, CONTENTS, FRONT

FINDERS = Path(__file__).parents[3] / "loommux_host/interpreters/finders.py"
#: Loads the finders as `enter` does, installs an overlay and runs what stands behind.
PROGRAM = f"""
import sys, importlib.util as u
spec = u.spec_from_file_location("finders", {str(FINDERS)!r}); finders = u.module_from_spec(spec)
spec.loader.exec_module(finders); finders.install(sys.argv[1])
sys.path.insert(0, sys.argv[2])
"""


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    """In front `old`, which the project has too; behind `both`, which the project has too, and `missing`."""
    made = tmp_path / "overlay"
    for place, names in ((FRONT, ["old"]), (BEHIND, ["both", "missing"])):
        for name in names:
            module(made / place, name, "overlay")
    (made / CONTENTS).write_text(json.dumps({FRONT: ["old"], BEHIND: ["both", "missing"]}))
    for name in ("old", "both"):
        module(tmp_path / "project", name, "project")
    return made


def module(directory: Path, name: str, where: str) -> None:
    """A package with a module in it, and its metadata."""
    (directory / name).mkdir(parents=True)
    (directory / name / "__init__.py").write_text(f"where = {where!r}\n")
    (directory / name / "inner.py").write_text(f"where = {where!r}\n")
    info = directory / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {where}\n")


def run(overlay: Path, program: str) -> str:
    words = [sys.executable, "-I", "-S", "-c", PROGRAM + program, str(overlay), str(overlay.parent / "project")]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def test_what_is_too_old_is_shadowed_and_what_is_there_wins_over_what_stands_behind(overlay: Path) -> None:
    assert run(overlay, "import old, both, missing; print(old.where, both.where, missing.where)") == (
        "overlay project overlay"
    )
    assert run(overlay, "import old.inner, both.inner; print(old.inner.where, both.inner.where)") == "overlay project"


def test_versions_are_those_of_what_is_imported(overlay: Path) -> None:
    program = "from importlib.metadata import version as v; print(v('old'), v('both'), v('missing'))"
    assert run(overlay, program) == "overlay project overlay"


def test_no_entry_of_the_path_and_no_child_knows_of_it(overlay: Path) -> None:
    assert run(overlay, "print([p for p in sys.path if 'overlay' in p])") == "[]"
    child = (
        "import subprocess\n"
        "print(subprocess.run([sys.executable, '-c', 'import missing'], capture_output=True, text=True).stderr)"
    )
    assert "No module named 'missing'" in run(overlay, child)


def test_a_name_that_nobody_has_is_missing_as_always(overlay: Path) -> None:
    assert "No module named 'nowhere'" in run(
        overlay, "\ntry:\n    import nowhere\nexcept ModuleNotFoundError as error: print(error)"
    )
