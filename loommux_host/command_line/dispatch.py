"""From a command line that begins with a word to the command that runs; and completion of both kinds.

Owns the message for a word that is no command. `cli` comes here only when the first word is
a command or a shell asks, so a server's start never pays for it.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence

from loommux_host.command_line import server_options
from loommux_host.command_line.catalogue import COMMANDS, fill
from loommux_host.command_line.reporting import Parser, guarded, say

EXIT_USAGE = 2


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command that `arguments` begins with; returns the exit code."""
    name, *rest = arguments
    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "see loommux --help"
        say(f"there is no command {name!r}; {hint}")
        return EXIT_USAGE
    parser = Parser(prog=f"loommux {name}", allow_abbrev=False)
    module = fill(name, parser)
    # Mixed, for `logs report --process 1 8`; what `--` means only the other knows.
    parse = parser.parse_args if "--" in rest else parser.parse_intermixed_args
    return guarded(module.run, parse(rest))


def everything() -> ArgumentParser:
    """One parser for the server's flags and all commands, as completion and the reference want it."""
    whole = server_options.parser()
    commands = whole.add_subparsers(metavar="COMMAND")
    for name, command in COMMANDS.items():
        fill(name, commands.add_parser(name, help=command.summary, allow_abbrev=False))
    return whole


def complete() -> None:
    """Answer a shell that asks what may follow; ends the process."""
    import argcomplete

    argcomplete.autocomplete(everything(), always_complete_options="long")
