"""Cells run with the project's interpreter and its packages, wherever the server has its own."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import packaging
import pytest
from packaging.requirements import Requirement

from tests.e2e.driving import Agent, Place, configure, serving
from tests.e2e.shown import printed

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="an environment made of links"),
]


#: Overlays and wheels of all runs of these tests: a wheel is fetched once.
CACHE = Path(tempfile.gettempdir()) / f"loommux-tests-cache-{os.getuid()}"


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


def other_pythons() -> list[str]:
    """Interpreters of other versions on this machine that a kernel can run with."""
    named = [shutil.which(f"python3.{minor}") for minor in (12, 13, 14)]
    pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob("3.1[234]*/bin/python"))
    found = {Path(os.path.realpath(one)): str(one) for one in [*named, *pyenv] if one is not None}
    return [one for real, one in found.items() if real != Path(os.path.realpath(sys.executable))]


def bare(path: Path, python: str = sys.executable) -> Path:
    """A virtual environment with nothing in it but a module; returns its interpreter."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(path)], check=True)
    (packages,) = path.glob("lib/python*/site-packages")
    (packages / "only_in_b.py").write_text("value = 7\n")
    return path / "bin" / "python"


def has(python: Path, name: str, version: str, source: str) -> None:
    """Have an environment carry a package of one module."""
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    (packages / name).mkdir()
    (packages / name / "__init__.py").write_text(source)
    info = packages / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


SEES_NOTHING = """
import importlib.metadata as metadata, multiprocessing, subprocess, sys
print(sys.executable)
print([entry for entry in sys.path if "overlay" in entry])
ask = "import sys; print(sys.executable, 'zmq' in {m.name for m in __import__('pkgutil').iter_modules()})"
print(subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True).stdout.strip())
with multiprocessing.get_context("spawn").Pool(1) as pool:
    print([entry for entry in pool.apply(eval, ("__import__('sys').path",)) if "overlay" in entry])
"""


@pytest.mark.parametrize("version", ["same", "other"])
async def test_an_environment_without_anything_gets_what_a_kernel_needs_and_its_children_see_nothing_of_it(
    place: Place, tmp_path: Path, version: str
) -> None:
    others = other_pythons()
    if version == "other" and not others:
        pytest.skip("there is no Python 3.12 to 3.14 on this machine beside the one that runs the tests")
    python = bare(tmp_path / "env", sys.executable if version == "same" else others[-1])
    configure(place, f"kernel_python = {str(python)!r}")
    place.more |= {"XDG_CACHE_HOME": str(CACHE)}
    async with serving(place) as agent:
        text = await printed(agent, f"%%loommux --wait 60 --silence 60\n{SEES_NOTHING}")
        assert text.split("\n") == [str(python), "[]", f"{python} False", "[]"]
        assert await printed(agent, "import only_in_b; print(only_in_b.value)") == "7"
        assert await printed(agent, "!python -c 'import sys; print(sys.prefix)'") == str(python.parent.parent)
        assert "Out[" in await agent.run("__import__('asyncio').sleep and 1")
        assert "ZeroDivisionError" in await agent.run("1 / 0")
        assert "restarted: process 2" in await agent.text("restart")
        assert "Out[1]: 1" in await agent.run("1")
        keeper = await printed(agent, "import psutil; print(psutil.Process().parent().parent().cmdline()[0])")
        assert keeper.startswith("loommux"), "it was forked by a keeper, as with the server's own interpreter"


@pytest.mark.case("X24")
async def test_an_ipykernel_that_is_too_old_is_shadowed_for_the_kernel_alone(place: Place, tmp_path: Path) -> None:
    python = bare(tmp_path / "env")
    has(python, "ipykernel", "6.31.0", "raise AttributeError('too old')")
    has(python, "packaging", "99.1", "")
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    shutil.copytree(Path(packaging.__file__).parent, packages / "packaging", dirs_exist_ok=True)
    (packages / "packaging/__init__.py").write_text("__version__ = '99.1'")
    configure(place, f"kernel_python = {str(python)!r}")
    place.more |= {"XDG_CACHE_HOME": str(CACHE)}
    async with serving(place) as agent:
        assert await printed(agent, "import packaging; print(packaging.__version__)") == "99.1", "its own packages win"
        version = "!python -c 'from importlib.metadata import version; print(version(\"ipykernel\"))'"
        assert await printed(agent, version) == "6.31.0"


@pytest.mark.case("X24")
async def test_without_an_overlay_it_is_said_which_version_is_needed_and_how_to_get_it(
    place: Place, tmp_path: Path
) -> None:
    python = bare(tmp_path / "env")
    has(python, "ipykernel", "6.31.0", "raise AttributeError('too old')")
    configure(place, f"kernel_python = {str(python)!r}\nkernel_overlay = 'none'")
    async with serving(place) as agent:
        refused = await agent.refusal("run_cell", freeform="1")
        assert refused.startswith("kernel_start_failed") and "has ipykernel 6.31.0, too old" in refused
        assert re.search(rf"Without an overlay: {re.escape(str(python))} -m pip install 'ipykernel<8,>=7.4' ", refused)


async def test_a_python_that_is_too_old_for_a_kernel_or_is_none_is_said_so(place: Place, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        'echo \'{"executable": "x", "prefix": "/", "version": [3, 9, 1], "implementation": "cpython",'
        ' "platform": "linux-x86_64", "threaded": false, "path": [], "distributions": {}}\'\n'
    )
    python.chmod(0o755)
    configure(place, f"kernel_python = {str(python)!r}")
    async with serving(place) as agent:
        refused = await agent.refusal("run_cell", freeform="1")
        assert f"Python 3.9.1 at {python} cannot run a kernel: it has to be CPython 3.11 or newer" in refused
        python.write_text("#!/bin/sh\necho not a python >&2; exit 3\n")
        assert f"{python} cannot be run as a Python: not a python" in await agent.refusal("run_cell", freeform="1")


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
    assert f"Workspace: {common_place.workspace} (launch_cwd)\nPython: {python} (config.py)\n" in status


@pytest.mark.case("E11")
async def test_without_widgets_a_notebooks_bar_is_one_line_of_text_all_the_same(agent: Agent) -> None:
    assert "ModuleNotFoundError" in await agent.run("import ipywidgets")
    text = await printed(agent, "from tqdm.auto import tqdm\nfor i in tqdm(range(500)): pass")
    assert len(text.split("\n")) < 5, text
    assert " 500/500 [" in text.split("\n")[-1]
