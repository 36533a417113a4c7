"""The arrows between modules point one way, and nobody imports what is not theirs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
KERNEL = {f"loommux_kernel.{p.stem}": p for p in (ROOT / "loommux_kernel").glob("*.py")}
HOST = {f"loommux_host.{p.stem}": p for p in (ROOT / "loommux_host").glob("*.py")}
COMMANDS = {
    f"loommux_host.command_line.catalogue.{p.stem}": p for p in (ROOT / "loommux_host" / "commands").glob("*.py")
}
MODULES = KERNEL | HOST | COMMANDS

#: What the host may take from the kernel's package.
SHARED = {"protocol", "clock", "header", "records", "lines", "bundles", "terminal"}
#: What commands may take besides: the client that everybody drives a server with.
SHARED_WITH_COMMANDS = {"client", "handles", "transport"}
FOREIGN_TO_KERNEL = {"mcp", "mcp_types", "starlette", "uvicorn", "tiktoken", "pydantic", "loommux_host"}
FOREIGN_TO_HOST = {"ipykernel", "IPython"}
PURE = {
    "loommux_kernel.shared.protocol", "loommux_kernel.shared.header", "loommux_kernel.executions.gate", "loommux_kernel.text.terminal",
    "loommux_kernel.shared.lines", "loommux_host.leases.rules", "loommux_host.leases.policy", "loommux_host.leases.decisions",
    "loommux_host.leases.state", "loommux_host.facts.watches",
}  # fmt: skip
IMPURE_IMPORTS = {"os", "socket", "subprocess", "threading", "asyncio", "sqlite3", "zmq"}
#: From the faces down; a module may import those of its own rank and below.
RANKS = [
    {"cli", "proxy", "attached"},
    {"proxy_ends"},
    {"living"},
    {"host", "http", "serving", "doctor", "adoption"},
    {"private_api", "private", "webserver"},
    {
        "stdio",
        "mcp",
        "door",
        "api",
        "endpoints",
        "auth",
        "bodylimit",
        "callers",
        "exchange",
        "reopening",
        "apitable",
        "history",
        "viewing",
        "page",
        "activity",
        "identity",
        "relaying",
    },
    {"watched_calls"},
    {"calls"},
    {"eras", "wire", "tools"},
    {"render"},
    {"structured", "texts", "carrying", "excerpts", "images"},
    {"fleet", "gauges", "remembering", "rights"},
    {"leasing", "binding"},
    {"service"},
    {"acting", "observing", "bodies", "selection", "watching"},
    {"sessions", "envelope", "spoken"},
    {"registry", "recalling"},
    {"kernel", "launching", "keeping", "succession"},
    {"interrupting", "outcomes", "presence"},
    {"waiting"},
    {"life"},
    {
        "mirror",
        "submission",
        "journal",
        "reading",
        "ranges",
        "export",
        "relay",
        "manifest",
        "manifest_files",
        "lease_notes",
    },
    {"channel", "launch", "leases", "memory_channel", "forked"},
    {"discovery"},
    {
        "spawn",
        "keeper_client",
        "provisioner",
        "jobs",
        "orphans",
        "kernel_process",
        "lease_state",
        "lease_decisions",
        "lease_policy",
    },
    {
        "process",
        "jupyter_wire",
        "tokens",
        "counting",
        "words",
        "refused",
        "files",
        "control_socket",
        "environment",
        "forgery",
        "pictures",
        "parameters",
        "keeper_wire",
    },
    {
        "watches",
        "phrases",
        "limits",
        "results",
        "config",
        "settings",
        "events",
        "cgroups",
        "kernel_limits",
        "faults",
        "version",
    },
]


def imported(path: Path) -> set[str]:
    """Every module that a file names in an import, as dotted names, lazy ones included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = f"{path.parent.name}.{node.module}" if node.module else path.parent.name
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def top(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("module", sorted(KERNEL))
def test_a_kernel_never_imports_what_belongs_to_the_host(module: str) -> None:
    assert not top(imported(KERNEL[module])) & FOREIGN_TO_KERNEL


@pytest.mark.parametrize("module", sorted(HOST | COMMANDS))
def test_the_host_never_imports_ipykernel_nor_the_kernels_own_modules(module: str) -> None:
    names = imported(MODULES[module])
    assert not top(names) & FOREIGN_TO_HOST
    taken = {n.split(".")[1] for n in names if n.startswith("loommux_kernel.")}
    taken -= SHARED_WITH_COMMANDS if module in COMMANDS else set()
    assert taken <= SHARED, f"{module} takes {taken - SHARED} from the kernel's package"


@pytest.mark.parametrize("module", sorted(PURE & set(MODULES)))
def test_pure_rules_have_no_io_and_no_clock(module: str) -> None:
    allowed = {"time"} if module.endswith("protocol") else set()
    assert not top(imported(MODULES[module])) & (IMPURE_IMPORTS | ({"time"} - allowed))


def test_arrows_between_host_modules_point_down() -> None:
    rank = {f"loommux_host.{name}": i for i, names in enumerate(RANKS) for name in names}
    wrong = [
        f"{module} -> {target}"
        for module in HOST
        for target in imported(HOST[module])
        if module in rank and target in rank and rank[target] < rank[module]
    ]
    assert not wrong, wrong


def test_nothing_of_a_server_knows_a_command_but_their_table() -> None:
    for module, path in HOST.items():
        assert not imported(path) & (set(COMMANDS) - {"loommux_host.command_line.catalogue.__init__"}), module


def test_modules_stay_readable() -> None:
    long = {m: n for m, p in MODULES.items() if (n := len(p.read_text().splitlines())) > 400}
    assert not long, f"over 400 lines: {long}"
    undescribed = [
        m for m, p in MODULES.items() if p.stem != "__init__" and not ast.get_docstring(ast.parse(p.read_text()))
    ]
    assert not undescribed, f"without a docstring: {undescribed}"


def test_starting_a_server_does_not_import_mcp_before_the_kernel_is_spawned() -> None:
    heavy = "('mcp', 'starlette', 'tiktoken', 'PIL')"
    code = f"import sys, loommux_host.processes.launcher; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_every_host_module_has_a_rank_or_stands_apart() -> None:
    apart = {
        "__init__", "client", "init", "init_roles", "init_watch", "init_ending", "init_system", "enter", "keeper",
        "keeper_newborn", "keeper_preload",
    }  # fmt: skip
    ranked = {name for names in RANKS for name in names}
    unplaced = {name for name in (m.partition(".")[2] for m in HOST) if name not in ranked | apart}
    assert not unplaced, f"give {unplaced} a place in RANKS"
