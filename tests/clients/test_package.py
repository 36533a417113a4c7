"""Wheel and sdist hold what they should, and what is installed from the wheel works without the checkout.

`make package` sets PACKAGES to where it built them, and FROM_INDEX to install what the wheel
needs from the index; without it this environment lends its libraries.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parent.parent.parent
DEVELOPMENT = re.compile(r"extra == .(dev|clients)")
PACKAGES = ("loommux_host", "loommux_kernel")
SECONDS = 600


def done(*command: str | Path, cwd: Path | None = None) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=cwd)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist."""
    where = Path(os.environ.get("PACKAGES") or tmp_path_factory.mktemp("dist")).absolute()
    if "PACKAGES" not in os.environ:
        done(sys.executable, "-m", "build", "--no-isolation", "--outdir", where, ROOT)
    return next(where.glob("*.whl")), next(where.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `loommux` of an environment that holds the wheel."""
    where = tmp_path_factory.mktemp("empty")
    done(sys.executable, "-m", "venv", where)
    scripts = where / ("Scripts" if sys.platform == "win32" else "bin")
    lent = [] if "FROM_INDEX" in os.environ else ["--no-deps", "--no-index"]
    done(scripts / "python", "-m", "pip", "install", "--quiet", *lent, built[0])
    if lent:
        library = next(where.rglob("site-packages"))
        (library / "lent.pth").write_text(f"{Path(pytest.__file__).parent.parent}\n")
    return scripts / "loommux"


def test_what_an_index_and_installers_look_at_is_in_order(built: tuple[Path, Path]) -> None:
    done(sys.executable, "-m", "twine", "check", "--strict", *built)
    done(Path(sys.executable).with_name("check-wheel-contents"), built[0], cwd=ROOT)


def test_types_data_and_licences_are_shipped(built: tuple[Path, Path]) -> None:
    names = set(zipfile.ZipFile(built[0]).namelist())
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert "loommux_host/data/o200k_base.tiktoken.gz" in names
    licences = {name.rpartition("/")[2] for name in names if "/licenses/" in name}
    vendored = {path.name for path in (ROOT / "loommux_host").rglob("*.LICENSE")}
    assert licences == vendored | {"LICENSE"} and "o200k_base.LICENSE" in vendored
    with tarfile.open(built[1]) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "docs/index.md", "Makefile"} <= held


def test_everything_that_is_imported_is_declared() -> None:
    declared = {
        re.split(r"[<>=\[; ]", one)[0].lower().replace("_", "-")
        for one in requires("loommux") or ()
        if not DEVELOPMENT.search(one)
    }
    owners = packages_distributions()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for name in _imported(path) - set(PACKAGES) - set(sys.stdlib_module_names):
                known = {owner.lower().replace("_", "-") for owner in owners.get(name, [name])}
                assert known & (declared | COME_WITH_THEM), (
                    f"{path.name} imports {name}, which pyproject does not declare"
                )


#: What the declared ones are made of, and share with us in their interfaces.
COME_WITH_THEM = {
    "mcp-types",
    "anyio",
    "pydantic",
    "traitlets",
    "jupyter-core",
    "comm",
    "tornado",
    "ipywidgets",
    "sse-starlette",
    "IPython",
    "packaging",
}


def _imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found


async def test_the_installed_command_serves_a_client(installed: Path, tmp_path: Path) -> None:
    where = await _cell(installed, tmp_path, "import loommux_kernel; loommux_kernel.__file__")
    assert str(installed.parent.parent) in where, "it runs what was installed, not this checkout"
    assert done(installed, "--help", cwd=tmp_path).count("\n") > 10
    assert "[]" in done(installed, "kernels", "--json", cwd=tmp_path)


async def _cell(command: Path, workspace: Path, source: str) -> str:
    with (workspace / "errors").open("w") as errors:
        transport = stdio_client(StdioServerParameters(command=str(command), cwd=workspace), errlog=errors)
        async with Client(transport) as client:
            result = await client.call_tool("run_cell", {"freeform": source})
            return "".join(block.text for block in result.content if block.type == "text")
