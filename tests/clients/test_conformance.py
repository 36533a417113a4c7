"""The official conformance suite against a server over HTTP, in both protocol eras."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
VERSIONS = ["2025-06-18", "2025-11-25", "2026-07-28"]
#: The suite's results: one directory for each scenario.
RESULTS = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")
NOT_MET = {"FAILURE", "WARNING"}


def left_out() -> set[str]:
    """What is listed as not met: SCENARIO/CHECK."""
    listed = tomllib.loads((HERE / "conformance.toml").read_text())["left_out"]
    checks = [check if "/" in check else f"{check}/{check}" for entry in listed for check in entry["checks"]]
    assert len(checks) == len(set(checks)), "something is listed twice"
    assert all(entry["reason"].strip() for entry in listed)
    return set(checks)


def results(suite: list[str], version: str, url: str, directory: Path) -> dict[str, str]:
    """What is not met, and why, by SCENARIO/CHECK; what is met is there without a reason."""
    command = [*suite, "server", "--url", url, "--suite", "all", "--spec-version", version, "-o", str(directory)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=directory, timeout=100)
    found: dict[str, str] = {}
    for scenario in directory.iterdir():
        named = RESULTS.fullmatch(scenario.name)
        assert named is not None, scenario.name
        for check in json.loads((scenario / "checks.json").read_text()):
            name = f"{named['scenario']}/{check['id']}"
            found.setdefault(name, "")
            if check["status"] in NOT_MET:
                found[name] = f"{version}: {check.get('errorMessage') or check['description']}"
    counted = re.search(r"Running all suite \((\d+) scenarios\)", ran.stdout)
    assert counted, ran.stdout + ran.stderr
    assert len(list(directory.iterdir())) == int(counted[1]) > 0, ran.stdout + ran.stderr
    return found


def test_the_official_suite_passes_but_for_what_is_listed_with_its_reason(
    node: str, node_modules: Path, served: str, tmp_path: Path
) -> None:
    suite = [node, str(node_modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js")]
    listed, seen = left_out(), set[str]()
    for version in VERSIONS:
        directory = tmp_path / version
        directory.mkdir()
        found = results(suite, version, served, directory)
        unlisted = {name: why for name, why in found.items() if why and name not in listed}
        assert not unlisted, unlisted
        met = [name for name, why in found.items() if not why and name in listed]
        assert not met, f"listed, and passes in {version}: {met}"
        seen |= found.keys()
    assert listed <= seen, f"listed, and not there: {listed - seen}"
