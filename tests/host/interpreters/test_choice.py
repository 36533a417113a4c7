"""Which interpreter kernels have: the order of environments, and what a name means."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from loommux_host.interpreters.choice import OWN, NotFound, choose, found, named

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="environments are made as on POSIX")


def environment(path: Path) -> Path:
    """An environment, as far as it is looked at; returns its interpreter."""
    (path / "bin").mkdir(parents=True)
    python = path / "bin" / "python"
    python.symlink_to(sys.executable)
    return python


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A directory within a project."""
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    (project / "analysis").mkdir()
    return project / "analysis"


def test_without_any_environment_it_is_the_servers_own(workspace: Path) -> None:
    choice = found(workspace, {})
    assert (choice.python, choice.why) == (Path(sys.executable), OWN)
    assert found(workspace, {"VIRTUAL_ENV": sys.prefix}) == choice, "that of the server is not one of a project"


def test_the_projects_own_is_found_in_the_workspace_first_and_then_where_the_project_begins(workspace: Path) -> None:
    second = environment(workspace.parent / "venv")
    assert (found(workspace, {}).python, found(workspace, {}).why) == (second, "project venv")
    first = environment(workspace.parent / ".venv")
    assert (found(workspace, {}).python, found(workspace, {}).why) == (first, "project .venv")
    nearest = environment(workspace / "venv")
    assert found(workspace, {}).python == nearest
    environment(workspace.parent.parent / ".venv")
    assert found(workspace, {}).python == nearest, "what is outside the project is not looked for"


def test_an_active_environment_comes_first_inside_the_project_and_after_its_own_outside(
    workspace: Path, tmp_path: Path
) -> None:
    outside, inside = environment(tmp_path / "outside"), environment(workspace.parent / "envs" / "dev")
    active = {"VIRTUAL_ENV": str(outside.parent.parent)}
    assert (found(workspace, active).python, found(workspace, active).why) == (outside, "active environment")
    own = environment(workspace.parent / ".venv")
    assert found(workspace, active).python == own
    assert found(workspace, {"VIRTUAL_ENV": str(inside.parent.parent)}).python == inside


def test_condas_base_is_never_meant_and_another_environment_of_conda_is(workspace: Path, tmp_path: Path) -> None:
    base, other = environment(tmp_path / "conda"), environment(tmp_path / "conda" / "envs" / "ml")
    (tmp_path / "conda" / "condabin").mkdir()
    assert found(workspace, {"CONDA_PREFIX": str(base.parent.parent)}).why == OWN
    choice = found(workspace, {"CONDA_PREFIX": str(other.parent.parent)})
    assert (choice.python, choice.why) == (other, "active conda environment")


def test_an_environment_that_others_may_write_is_skipped_and_it_is_said(workspace: Path) -> None:
    environment(workspace.parent / ".venv")
    (workspace.parent / ".venv").chmod(0o777)
    choice = found(workspace, {})
    assert choice.why == OWN
    assert choice.skipped == (
        f"{workspace.parent / '.venv'} is not used: others may write {workspace.parent / '.venv'}",
    )


def test_an_environment_whose_base_is_gone_is_none(workspace: Path) -> None:
    python = environment(workspace.parent / ".venv")
    python.unlink()
    python.symlink_to("/no/such/python")
    assert found(workspace, {}).why == OWN


def test_what_comes_into_being_later_is_found_then_and_what_was_named_is_kept(workspace: Path) -> None:
    class Wanted:
        kernel_python: Path | None = None
        python_named_by: str | None = None

        def __init__(self) -> None:
            self.workspace = workspace

    config = Wanted()
    assert choose(config, {}).why == OWN
    python = environment(workspace / ".venv")
    assert choose(config, {}).python == python
    config.kernel_python, config.python_named_by = Path("/named/python"), "config.py"
    assert (choose(config, {}).python, choose(config, {}).why) == (Path("/named/python"), "config.py")


def test_a_path_is_an_interpreter_or_an_environment_and_counts_from_the_workspace(workspace: Path) -> None:
    python = environment(workspace / "env")
    assert named("./env", workspace, {}) == python
    assert named("env/bin/python", workspace, {}) == python
    assert named(str(python), Path("/"), {}) == python
    with pytest.raises(NotFound, match=r"/project/env2 is no Python interpreter and no environment that has one"):
        named("../env2", workspace, {})


def program(path: Path, *version: int) -> Path:
    """What answers as a Python of that version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = "\\n".join(map(str, version))
    path.write_text(f"#!/bin/sh\nprintf '{path}\\n{numbers}\\n'\n")
    path.chmod(0o755)
    return path


def test_a_version_is_looked_for_on_the_path_then_with_uv_and_pyenv(tmp_path: Path) -> None:
    one, two, uv, pyenv = tmp_path / "one", tmp_path / "two", tmp_path / "uv", tmp_path / "pyenv"
    first, second = program(one / "python3", 3, 11, 2), program(two / "python3.12", 3, 12, 1)
    of_uv = program(uv / "cpython-3.13.2-linux-x86_64-gnu/bin/python", 3, 13, 2)
    of_pyenv = program(pyenv / "versions/3.13.10/bin/python", 3, 13, 10)
    shim = one / "python3.13"
    shim.write_text("#!/bin/sh\necho no such version >&2; exit 127\n")
    shim.chmod(0o755)
    where = {"PATH": f"{one}{os.pathsep}{two}", "UV_PYTHON_INSTALL_DIR": str(uv), "PYENV_ROOT": str(pyenv)}
    for text, python in (
        ("3", first), ("3.11", first), ("3.12", second), ("3.12.1", second), ("3.13", of_uv), ("3.13.10", of_pyenv),
    ):  # fmt: skip
        assert named(text, tmp_path, where) == python, text
    for text in ("3.12.2", "3.9"):
        with pytest.raises(NotFound, match=f"no Python {text} is on PATH, nor among those of uv and pyenv"):
            named(text, tmp_path, where)


def test_any_other_name_is_a_program_on_the_path(tmp_path: Path) -> None:
    python = program(tmp_path / "bin" / "pypython", 3, 12, 1)
    assert named("pypython", tmp_path, {"PATH": str(tmp_path / "bin")}) == python
    with pytest.raises(NotFound, match="no program 'nowhere' is on PATH; allowed: "):
        named("nowhere", tmp_path, {"PATH": str(tmp_path / "bin")})
