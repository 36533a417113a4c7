"""Write what the code itself knows: the pages on commands, settings and the HTTP API, and the map in design.md.

python docs/generate.py           # `make docs` does it first; a test compares what is committed
"""

from __future__ import annotations

import ast
import re
import runpy
from argparse import ArgumentParser
from dataclasses import fields
from pathlib import Path
from typing import Any, cast, get_args

from loommux_host import settings
from loommux_host.api.endpoint_table import endpoints
from loommux_host.command_line import catalogue
from loommux_host.command_line.reporting import EXITS, WORDS
from loommux_host.command_line.server_options import parser as server_parser
from loommux_kernel.shared import header

DOCS = Path(__file__).resolve().parent
#: What each setting is for.
SETTINGS = {
    "lease_mode": "What proves that a session's client is still there.",
    "private_activity_timeout_seconds": "How long a private kernel is kept after its session's last call.",
    "named_activity_timeout_seconds": "The same for a named kernel, and for results nobody has been told.",
    "heartbeat_interval_seconds": "How often a client is asked to ping.",
    "heartbeat_timeout_seconds": "After how long without a ping or request it counts as gone.",
    "connection_grace_seconds": "How long a client may be without its stream.",
    "sweep_interval_seconds": "How often abandoned sessions are looked for.",
    "orphan_grace_seconds": "How long a busy kernel that nobody holds may go on.",
    "adopt_grace_seconds": "How long kernels of a killed HTTP server wait for the next one.",
    "records_budget_bytes": "Output that one kernel keeps, over all its processes; the oldest goes first.",
    "omission_tail_lines": "Last lines that a result shows of output that is left out; 0 for none.",
    "max_result_bytes": "The largest message, as sent, everything included.",
    "max_kernels": "How many kernels a server has at most.",
    "kernel_python": "The interpreter of kernels: a path, a name on PATH, a version; None: the project's own.",
    "kernel_overlay": "Where packages come from that its interpreter lacks: fetched, only from here, or not at all.",
    "kernel_transport": "How kernels are reached: unix sockets, or loopback ports.",
    "kernel_memory_limit_bytes": "Memory that a kernel and all it starts may take.",
    "kernel_cpu_limit": "Cores that a kernel and all it starts may take; 1.5 is one and a half.",
    "auth_token_file": "Holds the token that HTTP clients have to show: 16 characters at least, mode 600.",
    "allowed_hosts": "Names besides the bound address that a Host header may carry, for a reverse proxy.",
    "activity_feed": "Whether the console shows the activity of MCP clients as it happens.",
}
HEAD = "<!-- Written by docs/generate.py from the code; change it there. -->\n"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)


def arguments_of(parser: ArgumentParser) -> list[list[str]]:
    rows = []
    for action in parser._actions:
        if "-h" in action.option_strings:
            continue
        value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
        takes = action.nargs != 0
        names = action.option_strings or [str(action.metavar or action.dest)]
        shown = f" {value or action.dest.upper()}" if takes and action.option_strings else ""
        rows.append([f"`{names[-1]}{shown}`", (action.help or "").replace("%%", "%")])
    return rows


def command_page() -> str:
    parts = [
        HEAD,
        "# Commands\n",
        "`loommux` without a command is the MCP server: over stdio, or over HTTP with `--server`.\n",
        "## `loommux`\n",
        table(["flag", "does"], arguments_of(server_parser())),
        '\n`eval "$(loommux --print-completion bash)"` lets the shell complete commands, flags, values and the names'
        " of kernels that live.\n",
    ]
    for name in catalogue.COMMANDS:
        parser = ArgumentParser(prog=f"loommux {name}")
        module = catalogue.fill(name, parser)
        text = (module.__doc__ or "").strip().replace("\n", " ").replace("  ", "\n\n")
        usage = re.sub(r"\s+", " ", parser.format_usage().removeprefix("usage: ")).replace(" [-h]", "").strip()
        examples = "\n".join(catalogue.COMMANDS[name].examples)
        parts += [
            f"## `loommux {name}`\n", f"{text}\n", f"```text\n{usage}\n```\n",
            table(["argument", "does"], arguments_of(parser)), f"\n```sh\n{examples}\n```\n",
        ]  # fmt: skip
    parts += [
        "## Exit codes\n", table(["code", "meaning"], [[f"`{code}`", text] for code, text in EXITS.items()]),
        "\n## Status words of commands\n",
        "A refusal is one line on stderr, `loommux: WORD: TEXT`; with `--json` stdout carries"
        ' `{"ok": false, "status": WORD, "message": TEXT}`. The server\'s own words are in the'
        " [reference](reference.md#status-words).\n",
        table(["word", "meaning"], [[f"`{word}`", text] for word, text in WORDS.items()]),
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _type(declared: str) -> str:
    """A setting's type, with the words that an alias stands for."""
    alias = getattr(settings, declared.strip(), None)
    return " | ".join(map(repr, get_args(alias))) if get_args(alias) else declared.strip()


def settings_page() -> str:
    source = Path(settings.__file__).read_text()
    rows = []
    for field in fields(settings.Settings):
        declared = re.search(rf"^    {field.name}: ([^\n=]+)", source, re.M)
        assert declared is not None
        default = repr(getattr(settings.Settings(), field.name))
        default = "'ipc', on Windows 'tcp'" if field.name == "kernel_transport" else default
        rows.append([f"`{field.name}`", f"`{_type(declared[1])}`", f"`{default}`", SETTINGS[field.name]])
    return "\n".join([
        HEAD, "# Settings of `config.py`\n",
        "`config.py` in the configuration directory is ordinary Python; these names are settings, and"
        " `resolve_workspace(launch_cwd: Path) -> Path | str` says where kernels work. Times are seconds, sizes bytes."
        " What each lease setting means is under [Sessions and leases](http.md#leases).\n",
        table(["setting", "value", "default", ""], rows),
    ]) + "\n"  # fmt: skip


def api_page() -> str:
    class Anything:
        def __getattr__(self, name: str) -> object:
            return None

    rows = []
    for one in endpoints(cast(Any, Anything())):
        given = ", ".join(f"`{p.name}`" for p in (*(one.query or ()), *(one.body or ())))
        rows.append([f"`{one.method} {one.path}`", one.summary, given])
    return "\n".join([
        HEAD, "# HTTP API\n",
        "Of a server over HTTP at its port, with the token if it has one; of every server on its private socket."
        " `GET /api/openapi.json` describes it in full.\n",
        table(["endpoint", "does", "arguments"], rows),
    ]) + "\n"  # fmt: skip


def _house() -> dict[str, dict[str, str]]:
    """The table of packages and what each imports, which a test holds against the code."""
    return cast("dict[str, dict[str, str]]", runpy.run_path(str(DOCS.parent / "tests/test_architecture.py"))["TABLE"])


def _face(top: str, row: str) -> str:
    """What a package or a module of a root says of itself on its first line."""
    place = DOCS.parent / top / row.replace(".", "/")
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    said = ast.get_docstring(ast.parse(source.read_text())) or ""
    return re.sub(r"``([^`]*)``", r"`\1`", said.partition("\n")[0])


def house_picture(top: str) -> str:
    table = _house()[top]
    packages = {row for row in table if (DOCS.parent / top / row.replace(".", "/")).is_dir()}
    draw = runpy.run_path(str(DOCS / "house.py"))["svg"]
    return draw(table, packages, f"The packages of {top}, each above what it imports")


def design_page() -> str:
    """The page as it is, with its map made anew."""
    page = (DOCS / "design.md").read_text()
    for top, rows in _house().items():
        head = ["", "owns", "imports"]
        made = [
            [f"`{row}`", _face(top, row), " ".join(f"`{name}`" for name in names.split())]
            for row, names in rows.items()
        ]
        begin, end = f"<!-- {top}: written by docs/generate.py -->\n\n", f"\n\n<!-- {top} -->"
        before, _, rest = page.partition(begin)
        after = rest.partition(end)[2]
        assert rest and after, f"design.md has no place for the map of {top}"
        page = f"{before}{begin}{table(head, made)}{end}{after}"
    return page


def reference_page() -> str:
    """The page as it is, with the options of the cell header as the parser has them."""
    page = (DOCS / "reference.md").read_text()
    begin, end = "<!-- header: written by docs/generate.py -->\n\n", "\n\n<!-- header -->"
    before, _, rest = page.partition(begin)
    after = rest.partition(end)[2]
    assert rest and after, "reference.md has no place for the options of the header"
    rows = [[f"`{f'{one.name} {one.takes}'.rstrip()}`", one.does] for one in header.OPTIONS]
    return f"{before}{begin}```text\n{header.USAGE}\n```\n\n{table(['option', 'does'], rows)}{end}{after}"


PAGES = {
    "reference.md": reference_page,
    "commands.md": command_page, "settings.md": settings_page, "api.md": api_page, "design.md": design_page,
    "images/house-host.svg": lambda: house_picture("loommux_host"),
    "images/house-kernel.svg": lambda: house_picture("loommux_kernel"),
}  # fmt: skip

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())
