"""Cells run with the project's interpreter and its packages, wherever the server has its own."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.e2e.driving import Agent, Place, configure, serving
from tests.e2e.shown import printed

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="an environment made of links"),
]


def needed(name: str, known: set[str]) -> Iterator[importlib.metadata.Distribution]:
    """A distribution and all that it needs here."""
    if name in known:
        return
    known.add(name)
    distribution = importlib.metadata.distribution(name)
    yield distribution
    for line in distribution.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from needed(re.sub(r"[-_.]+", "-", requirement.name).lower(), known)


def an_environment(path: Path, *names: str) -> Path:
    """A virtual environment with these distributions, linked from ours; returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    (packages,) = path.glob("lib/python*/site-packages")
    known: set[str] = set()
    for distribution in (found for name in names for found in needed(name, known)):
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (packages / top).exists():
                (packages / top).symlink_to(str(distribution.locate_file(top)))
    (packages / "only_in_b.py").write_text("value = 7\n")
    return path / "bin" / "python"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return an_environment(tmp_path_factory.mktemp("b") / "B", "ipykernel", "tqdm")


@pytest.fixture(scope="module")
async def agent(common_place: Place, python: Path) -> AsyncIterator[Agent]:
    """A server of this environment whose kernels have another one, in a directory with an awkward name."""
    common_place.workspace /= "projekt für zwei"
    common_place.workspace.mkdir()
    configure(common_place, f"kernel_python = {str(python)!r}")
    common_place.more |= {"VIRTUAL_ENV": sys.prefix, "PYTHONPATH": sysconfig.get_path("purelib")}
    async with serving(common_place) as made:
        yield made


@pytest.mark.case("E08")
async def test_cells_have_the_packages_of_the_project_and_none_of_the_servers(
    agent: Agent, common_place: Place, python: Path
) -> None:
    assert await printed(agent, "import only_in_b; print(only_in_b.value)") == "7"
    assert await printed(agent, "!python -c 'import only_in_b; print(only_in_b.value)'") == "7"
    where = "import os, sys\nprint(sys.executable, os.environ.get('VIRTUAL_ENV'), os.getcwd(), sep='\\n')"
    assert (await printed(agent, where)).split("\n") == [
        str(python),
        str(python.parent.parent),
        str(common_place.workspace),
    ]
    assert await printed(agent, f"print([path for path in sys.path if path.startswith({sys.prefix!r})])") == "[]"
    for missing in ("mcp", "tiktoken", "loommux_host"):
        assert f"ModuleNotFoundError: No module named '{missing}'" in await agent.run(f"import {missing}")
    status = await agent.text("status")
    assert f"Workspace: {common_place.workspace} (launch_cwd)\nPython: {python}\n" in status


@pytest.mark.case("E11")
async def test_without_widgets_a_notebooks_bar_is_one_line_of_text_all_the_same(agent: Agent) -> None:
    assert "ModuleNotFoundError" in await agent.run("import ipywidgets")
    text = await printed(agent, "from tqdm.auto import tqdm\nfor i in tqdm(range(500)): pass")
    assert len(text.split("\n")) < 5, text
    assert " 500/500 [" in text.split("\n")[-1]
