"""Say what works here and what does not, and why.

Prints one line for each thing that `loommux_host.doctor` looked at. The exit code is 1 when
something that the configuration asks for does not hold.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from loommux_host.commands.outcome import DONE, FAILED, Refused, show
from loommux_host.config import ConfigError, load, parse
from loommux_host.doctor import findings


def arguments(parser: ArgumentParser) -> None:
    """Those that choose a configuration."""
    parser.add_argument("--config", metavar="DIR", help="configuration directory, as for the server")
    parser.add_argument("--spawn", action="store_true", help="as for the server")


def run(options: Namespace) -> int:
    """Print the findings."""
    flags = (["--config", options.config] if options.config else []) + (["--spawn"] if options.spawn else [])
    try:
        found = findings(load(parse(flags)))
    except ConfigError as error:
        raise Refused(error.status, error.message) from None
    for one in found:
        show(f"{'ok' if one.good else 'NO'}  {one.subject}: {one.text}")
    return DONE if all(one.good for one in found) else FAILED
