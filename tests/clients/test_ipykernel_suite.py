"""ipykernel's own tests, run with this kernel class (`suite_kernel`); `ipykernel.toml` lists what does not apply."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

HERE = Path(__file__).resolve().parent
#: The tests of the installed release, which the set-up takes from its sdist.
SUITE = Path(sys.prefix) / "ipykernel-suite" / "tests"
LISTED = tomllib.loads((HERE / "ipykernel.toml").read_text())
CONFIGURATION = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\ntimeout = 60\n"


def of(table: str, key: str) -> list[str]:
    """Everything that a table lists."""
    assert all(entry["reason"].strip() for entry in LISTED[table])
    listed = [name for entry in LISTED[table] for name in entry[key]]
    assert len(listed) == len(set(listed)), "something is listed twice"
    return listed


def test_every_module_of_the_suite_is_run_or_listed_with_its_reason() -> None:
    modules = {path.stem for path in SUITE.glob("test_*.py")}
    named = LISTED["run"] + of("module", "modules")
    assert len(named) == len(set(named))
    assert modules == set(named)


@pytest.mark.timeout(400)
def test_the_suite_passes_but_for_what_is_listed_with_its_reason(tmp_path: Path) -> None:
    listed = of("left_out", "tests")
    outcomes = run(tmp_path, listed)
    failed = {name: why for name, why in outcomes.items() if why and name not in listed}
    assert not failed, "\n\n".join(f"{name}: {why}" for name, why in failed.items())
    assert not [name for name in listed if not outcomes[name]], "listed, and passes"
    assert len(outcomes) > 50


def run(tmp_path: Path, listed: list[str]) -> dict[str, str]:
    """What became of each test, by MODULE::TEST: empty, or why it failed; skipped ones are not there."""
    spec = tmp_path / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    argv = [sys.executable, str(HERE / "suite_kernel.py"), "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "ours", "language": "python"}))
    configuration, report, home, temporary = (tmp_path / name for name in ("pytest.ini", "report.xml", "home", "t"))
    configuration.write_text(CONFIGURATION)
    (home / ".ipython" / "profile_default").mkdir(parents=True)
    temporary.mkdir()
    environment = os.environ | {
        "HOME": str(home),
        "JUPYTER_PATH": str(spec.parents[1]),
        "LEFT_OUT": "\n".join(listed),
        "PYTHONPATH": os.pathsep.join([str(HERE), str(SUITE.with_name("plugins"))]),
        "TMPDIR": str(temporary),
    }
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "suite_plugin", "-p", "no:schemathesis", "-p", "no:anyio"]
    command += ["-p", "no:cacheprovider", "-c", str(configuration), f"--rootdir={SUITE.parent}", f"--junitxml={report}"]
    command += [f"tests/{module}.py" for module in LISTED["run"]]
    ran = subprocess.run(command, cwd=SUITE.parent, env=environment, capture_output=True, text=True)
    assert report.exists(), ran.stdout + ran.stderr
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            wrong = [child for child in case if child.tag in ("failure", "error")]
            name = f"{case.attrib['classname'].rpartition('.')[2]}::{case.attrib['name']}"
            found[name] = "\n".join(child.text or child.get("message", "it failed") for child in wrong)
    return found
