"""The house holds its order: what imports what, one way; readable modules, each in its room; nothing foreign.

`HOST` and `KERNEL` are the one table of the arrows. docs/generate.py draws the picture in docs/design.md from them.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: What each package imports, from the faces down: a row names only rows below it. A module of a root is its own row.
#: What is loaded by name stands in `LOADED`: the table of commands loads the one that is meant, against the arrows.
HOST = {
    "cli": "command_line config init mcp processes server",
    "client": "",
    "enter": "keeper",
    "commands": "bridge command_line config console diagnosis facts installation jupyter mcp succession web",
    "diagnosis": "command_line config facts installation interpreters keeper processes version",
    "installation": "command_line",
    "bridge": "command_line mcp",
    "command_line": "config facts processes succession version",
    "jupyter": "facts kernels version",
    "server": "api config console facts interpreters keeper kernels leases mcp processes sessions succession"
    " token_counting usecases version web",
    "api": "console facts kernels leases mcp processes rendering sessions usecases version web",
    "mcp": "facts rendering sessions usecases version web",
    "console": "config processes version web",
    "web": "",
    "rendering": "facts token_counting version",
    "usecases": "facts kernels sessions token_counting",
    "sessions": "facts kernels leases succession",
    "succession": "config facts interpreters keeper kernels leases processes",
    "leases": "",
    "kernels": "config facts processes",
    "keeper": "init processes",
    "processes": "facts",
    "token_counting": "facts init",
    "facts": "",
    "init": "",
    "config": "interpreters settings",
    "interpreters": "",
    "settings": "",
    "version": "",
}
KERNEL = {
    "__main__": "app shared",
    "app": "capture kernel shared shared.records startup",
    "kernel": "capture executions inside running shared shared.records startup",
    "startup": "executions shared",
    "client": "shared",
    "running": "capture executions inside preview shared text",
    "preview": "",
    "inside": "capture executions shared",
    "capture": "executions shared shared.records text",
    "shared.records": "executions shared text",
    "executions": "shared",
    "shared": "text",
    "text": "",
}
TABLE = {"loommux_host": HOST, "loommux_kernel": KERNEL}
#: The one package of the kernel's that the host takes from.
SHARED = "loommux_kernel.shared"
#: Who may import what comes from elsewhere; a name that ends with a dot is a whole package.
ONLY = {
    "mcp": {"loommux_host.mcp.sdk", "loommux_host.client"},
    "mcp_types": {"loommux_host.mcp.sdk"},
    "sse_starlette": {"loommux_host.mcp.sdk"},
    "uvicorn": {"loommux_host.web.uvicorn_server"},
    "tiktoken": {"loommux_host.token_counting.vocabulary"},
    "PIL": {"loommux_host.rendering.image_codec"},
    "pydantic": {"loommux_host.succession.storage"},
    "loommux_host": {"loommux_host."},
    "ipykernel": {"loommux_kernel."},
    "IPython": {"loommux_kernel."},
    "starlette": {"loommux_host."},
}
#: No input or output, no clock.
PURE = {
    "loommux_host.facts.", "loommux_host.leases.", "loommux_kernel.text.", "loommux_kernel.executions.gate",
    "loommux_kernel.shared.protocol", "loommux_kernel.shared.header", "loommux_kernel.shared.lines",
}  # fmt: skip
IMPURE = {"os", "socket", "subprocess", "threading", "asyncio", "sqlite3", "zmq", "time", "datetime"}
CLOCK = "loommux_kernel.shared.clock"
#: `phrases` words a given time; everybody takes the clock from `protocol`, which has it from there.
EXCEPT = {"loommux_host.facts.phrases": {"time"}, "loommux_kernel.shared.protocol": {CLOCK}}
#: Who loads modules by their names, which no import shows.
LOADED = {
    "loommux_host.command_line.catalogue", "loommux_host.keeper.preload", "loommux_host.server.host",
    "loommux_host.server.private_server",
}  # fmt: skip
LINES, MODULES = 400, 20


@cache
def sources() -> dict[str, Path]:
    """Every module by its dotted name; a package's is its `__init__`."""
    found: dict[str, Path] = {}
    for top in TABLE:
        for path in (ROOT / top).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """All that a module imports, lazily and for types too: modules of ours in full, of others as they are named."""
    path, known = sources()[module], sources()
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level and node.module, f"{module}: imports are absolute"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            inside = names & set(known)
            found |= inside | ({node.module} if names - inside else set())
    return frozenset(found)


def room(module: str) -> str:
    """The row of the table that a module belongs to, with its top-level package."""
    top, *rest = module.split(".")
    if module in sources() and sources()[module].name == "__init__.py":
        return module
    return ".".join([top, *(rest[:-1] or rest)])


def allowed(module: str, rule: set[str]) -> bool:
    return any(module.startswith(name) if name.endswith(".") else module == name for name in rule)


def code() -> list[str]:
    return sorted(module for module, path in sources().items() if path.name != "__init__.py")


@pytest.mark.parametrize("top", TABLE)
def test_packages_import_exactly_what_the_table_says(top: str) -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for module in code():
        mine = room(module)
        found[mine] |= {room(name) for name in imports(module) if name.startswith(f"{top}.")} - {mine}
    actual = {name.removeprefix(f"{top}."): found[name] for name in found if name.startswith(f"{top}.")}
    told = {row: {f"{top}.{name}" for name in names.split()} for row, names in TABLE[top].items()}
    assert actual == told


@pytest.mark.parametrize("top", TABLE)
def test_arrows_run_one_way(top: str) -> None:
    order = list(TABLE[top])
    up = [f"{row} -> {name}" for row, names in TABLE[top].items() for name in names.split()
          if order.index(name) <= order.index(row)]  # fmt: skip
    assert not up, up


def test_no_two_files_import_each_other_even_by_way_of_others() -> None:
    below: dict[str, set[str]] = {}

    def reached(module: str, way: tuple[str, ...]) -> set[str]:
        assert module not in way, f"a circle: {' -> '.join((*way[way.index(module) :], module))}"
        if module not in below:
            direct = {name for name in imports(module) if name in sources()}
            below[module] = direct.union(*(reached(name, (*way, module)) for name in direct))
        return below[module]

    for module in sources():
        reached(module, ())


@pytest.mark.parametrize("module", code())
def test_nobody_imports_what_is_not_theirs(module: str) -> None:
    for name in imports(module):
        top = name.partition(".")[0]
        assert top not in ONLY or allowed(module, ONLY[top]), f"{module} imports {name}"
        if module.startswith("loommux_host.") and top == "loommux_kernel":
            assert name.startswith(f"{SHARED}."), f"{module} imports {name}, which is not in {SHARED}"


def test_what_only_some_may_import_they_do() -> None:
    """A rule about a module that is gone, or that needs it no more, would hold nothing."""
    for name, who in ONLY.items():
        for one in who:
            users = [m for m in code() if allowed(m, {one})]
            assert any(i.partition(".")[0] == name for m in users for i in imports(m)), f"{one} imports no {name}"
    assert all(any(allowed(module, {rule}) for module in code()) for rule in PURE)


@pytest.mark.parametrize("module", [module for module in code() if allowed(module, PURE)])
def test_pure_rules_have_no_io_and_no_clock(module: str) -> None:
    names = imports(module) | {name.partition(".")[0] for name in imports(module)}
    assert not names & (IMPURE | {CLOCK}) - EXCEPT.get(module, set())
    if module not in EXCEPT:
        assert not re.search(r"import .*\bnow\b", sources()[module].read_text()), "that is a clock"


def test_only_some_load_modules_by_name_and_those_are_there() -> None:
    loading = {m for m in code() if re.search(r"\b(import_module|__import__)\b", sources()[m].read_text())}
    assert loading == LOADED
    for module, path in sources().items():
        for name in re.findall(r"""["'](loommux_(?:host|kernel)(?:\.\w+)+)["']""", path.read_text()):
            assert name in sources(), f"{module} names {name}, which is not there"


def test_modules_stay_readable() -> None:
    long = {str(path): lines for path in sources().values() if (lines := len(path.read_text().splitlines())) > LINES}
    assert not long, f"over {LINES} lines: {long}"
    undescribed = [module for module in code() if not ast.get_docstring(ast.parse(sources()[module].read_text()))]
    assert not undescribed, f"without a docstring: {undescribed}"


def test_a_packages_face_is_a_docstring_and_nothing_else() -> None:
    for module, path in sources().items():
        if path.name == "__init__.py":
            body = ast.parse(path.read_text()).body
            said = ast.get_docstring(ast.parse(path.read_text()))
            assert len(body) == 1 and said, f"{module} has code, or no docstring"
            assert 3 <= len(said.splitlines()) <= 7, f"{module} says {len(said.splitlines())} lines of itself"
    for folder, modules in folders():
        assert not modules or (folder / "__init__.py").is_file(), f"{folder} is no package"


def folders() -> Iterator[tuple[Path, list[Path]]]:
    """Every folder of Python with its modules, the tests' too."""
    for top in (*TABLE, "tests"):
        for folder in [ROOT / top, *(ROOT / top).rglob("*")]:
            if folder.is_dir() and "node_modules" not in folder.parts:
                yield folder, [path for path in folder.glob("*.py") if path.name != "__init__.py"]


def test_no_folder_is_too_full() -> None:
    full = {str(folder): len(modules) for folder, modules in folders() if len(modules) > MODULES}
    assert not full, f"over {MODULES} modules: {full}"


def test_no_two_modules_differ_by_an_ending_only() -> None:
    for top in TABLE:
        stems: dict[str, set[str]] = defaultdict(set)
        for module in sources():
            name = module.rpartition(".")[2]
            # Commands are named as people type them, and the kernel is one of the kernels.
            if module.startswith(f"{top}.") and not module.startswith(
                ("loommux_host.commands.", f"{top}.kernels.kernel")
            ):
                stems["_".join(re.sub(r"(?<=..)(ing|er|ed|s)+$", "", word) for word in name.split("_"))].add(name)
        alike = [sorted(names) for names in stems.values() if len(names) > 1]
        assert not alike, alike


def test_tests_lie_where_what_they_test_lies() -> None:
    for side, top in (("host", "loommux_host"), ("kernel", "loommux_kernel")):
        for folder, modules in folders():
            if folder.is_relative_to(ROOT / "tests" / side) and any(path.name.startswith("test_") for path in modules):
                mirrored = ROOT / top / folder.relative_to(ROOT / "tests" / side)
                assert mirrored.is_dir(), f"{folder} mirrors no package of {top}"
                for test in modules:
                    named = test.name.startswith("test_") and test.name != "test_install.py"  # a command, by its tests
                    tested = list((ROOT / top).rglob(test.name.removeprefix("test_"))) if named else []
                    assert not tested or mirrored in {path.parent for path in tested}, f"{test} lies elsewhere"


def test_starting_a_server_does_not_import_mcp_before_the_kernel_is_spawned() -> None:
    heavy = "('mcp', 'starlette', 'tiktoken', 'PIL')"
    script = f"import sys, loommux_host.processes.launcher; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
