"""The table of the subcommands of ``loommux``: what people do beside the server.

Owns their names, one line on each for the help, and how each is used. The module of that
name in `commands` does the work and is imported when it is needed. Read by `dispatch`,
`server_options` and docs/generate.py.
"""

from __future__ import annotations

import importlib
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast


class Module(Protocol):
    """What a module of `commands` offers."""

    def arguments(self, parser: ArgumentParser) -> None: ...
    def run(self, options: Namespace) -> int: ...


@dataclass(frozen=True)
class Command:
    """One subcommand: the module that holds it, what it does on one line, how it is used."""

    module: str
    summary: str
    examples: tuple[str, ...] = ()

    def load(self) -> Module:
        return cast(Module, importlib.import_module(f"loommux_host.commands.{self.module}"))


COMMANDS: Mapping[str, Command] = {
    "install": Command(
        "install", "write the configuration of an MCP host",
        (
            "loommux install --client claude-code",
            "loommux install --client vscode --scope project --dry-run",
            "loommux install --client codex --http http://127.0.0.1:8801/mcp --resource report",
        ),
    ),
    "connect": Command(
        "connect", "MCP over stdio, forwarded to a server over HTTP",
        (
            "loommux connect http://127.0.0.1:8801/mcp --resource report",
            "loommux connect https://lab.example.org/mcp --token-file ~/.config/loommux/token",
        ),
    ),
    "kernels": Command(
        "kernels", "list every kernel of every server of yours",
        ("loommux kernels", "loommux kernels --json | python -m json.tool"),
    ),
    "create": Command(
        "create", "open a kernel by name", ("loommux create report", "loommux create /report/build"),
    ),
    "run": Command(
        "run", "run a cell in a kernel",
        ("loommux run 'len(rows)'", "loommux run --kernel report - < check.py", "loommux run --wait 5 --json 'fit()'"),
    ),
    "logs": Command(
        "logs", "show a cell's output, all of it, or as it arrives",
        ("loommux logs report", "loommux logs report 7 --tail 20", "loommux logs report --follow"),
    ),
    "interrupt": Command(
        "interrupt", "interrupt a kernel's cell",
        ("loommux interrupt report", "loommux interrupt report --execution 7"),
    ),
    "restart": Command("restart", "replace a kernel's process", ("loommux restart report",)),
    "recycle": Command("recycle", "end a kernel", ("loommux recycle report", "loommux recycle report --force")),
    "release": Command(
        "release", "let others work in a kernel that one session holds alone", ("loommux release report",),
    ),
    "attach": Command(
        "attach", "attach a Jupyter client to a kernel", ("loommux attach", "loommux attach report --qtconsole"),
    ),
    "kernelspec": Command(
        "kernelspec", 'install or remove the kernelspec "loommux session"',
        ("loommux kernelspec install", "loommux kernelspec remove --sys-prefix"),
    ),
    "export": Command(
        "export", "write a kernel's cells as a notebook",
        ("loommux export report report.ipynb", "loommux export report - > report.ipynb"),
    ),
    "console": Command(
        "console", "a web page for all of your servers",
        ("loommux console", "loommux console --port 8700 --no-browser"),
    ),
    "doctor": Command(
        "doctor", "say what works here and what does not, and why",
        ("loommux doctor", "loommux doctor --config .loommux"),
    ),
}  # fmt: skip


def described() -> str:
    """The commands for the help of ``loommux``."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(["commands (loommux COMMAND --help):", *lines])


def fill(name: str, parser: ArgumentParser) -> Module:
    """Give `parser` the arguments of a command; returns the module that runs it."""
    command = COMMANDS[name]
    module = command.load()
    parser.description = (module.__doc__ or "").partition("\n")[0]
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = "\n  ".join(["examples:", *command.examples])
    module.arguments(parser)
    parser.set_defaults(command=name)
    return module
