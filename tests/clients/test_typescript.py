"""The TypeScript SDK's clients (v1, and v2 in both protocol eras) and Inspector's command line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
TOOLS = {
    "run_cell", "wait", "status", "execution_status", "read_output", "search_output", "interrupt", "restart",
}  # fmt: skip
GENERATIONS = ["v1", "v2", "v2-modern"]


def run(command: list[str], cwd: Path) -> Any:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_a_session_was_had(seen: Any, generation: str) -> None:
    assert seen["era"] == ("modern" if generation == "v2-modern" else "legacy")
    assert set(seen["tools"]) == TOOLS
    assert seen["kept"].endswith("Out[2]: 42")
    assert "ZeroDivisionError" in seen["failed"]["text"]
    assert seen["failed"]["isError"] is False
    assert seen["image"]["mimeType"] == "image/png"
    assert seen["image"]["bytes"] > 0
    assert seen["refused"]["isError"] is True
    assert seen["refused"]["text"].startswith("execution_not_found")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_typescript_client_keeps_state_and_sees_errors_and_images(
    generation: str, node: str, node_modules: Path, loommux: str, tmp_path: Path
) -> None:
    seen = run([node, str(HERE / "session.mjs"), generation, "stdio", loommux], tmp_path)
    assert_a_session_was_had(seen, generation)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_typescript_client_has_the_same_over_http(
    generation: str, node: str, node_modules: Path, served: str, tmp_path: Path
) -> None:
    seen = run([node, str(HERE / "session.mjs"), generation, "http", served], tmp_path)
    assert_a_session_was_had(seen, generation)


def inspect(node: str, node_modules: Path, target: list[str], cwd: Path) -> None:
    launcher = node_modules / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build" / "index.js"
    inspector = [node, str(launcher), "--cli", *target]
    listed = run([*inspector, "--method", "tools/list", "--strict"], cwd)
    assert {tool["name"] for tool in listed["tools"]} == TOOLS
    call = ["--method", "tools/call", "--tool-name", "run_cell", "--tool-arg", "freeform=6 * 7"]
    result = run([*inspector, *call], cwd)
    assert "Out[1]: 42" in result["content"][0]["text"]


def test_inspector_lists_the_tools_and_runs_a_cell(node: str, node_modules: Path, loommux: str, tmp_path: Path) -> None:
    inspect(node, node_modules, [loommux], tmp_path)


def test_inspector_lists_the_tools_and_runs_a_cell_over_http(
    node: str, node_modules: Path, served: str, tmp_path: Path
) -> None:
    inspect(node, node_modules, [served, "--transport", "http"], tmp_path)
