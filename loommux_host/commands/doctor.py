"""Check this installation, start a kernel and run a cell in it; say what is wrong and how to fix it.

Looks at interpreter, packages, configuration, workspace, directories, servers, MCP hosts, how
kernels start, what ends with them and which limits hold. The exit code is 1 when something is wrong.
"""

from __future__ import annotations

import textwrap
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator

from loommux_host.command_line.reporting import DONE, FAILED, json_argument, say, show, show_json
from loommux_host.command_line.server_options import parse
from loommux_host.config import ConfigError, load
from loommux_host.diagnosis import trial_run
from loommux_host.diagnosis.kernel_checks import findings
from loommux_host.diagnosis.machine_checks import Check, all_of

MARKS = {"ok": "ok  ", "warn": "WARN", "bad": "BAD "}


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--config", metavar="DIR", help="configuration directory, as for the server")
    parser.add_argument("--spawn", action="store_true", help="as for the server")
    parser.add_argument("--no-trial", action="store_true", help="start no kernel")
    json_argument(parser)


def run(options: Namespace) -> int:
    flags = (["--config", options.config] if options.config is not None else []) + (
        ["--spawn"] if options.spawn else []
    )
    found: list[Check] = []
    for check in _checks(flags, with_trial=not options.no_trial):
        found.append(check)
        if not options.json:
            _tell(check)
    good = all(check.grade != "bad" for check in found)
    if options.json:
        show_json({"ok": good, "checks": [vars(check) for check in found]})
    elif good:
        say("nothing is wrong" if all(check.grade == "ok" for check in found) else "nothing is broken")
    return DONE if good else FAILED


def _checks(flags: list[str], *, with_trial: bool) -> Iterator[Check]:
    try:
        config = load(parse(flags))
    except ConfigError as error:
        yield from all_of(error)
        return
    yield from all_of(config)
    for one in findings(config):
        yield Check(one.subject, one.text, "ok" if one.good else "bad", None if one.good else "see docs/settings.md")
    if with_trial:
        say("starting a server with a kernel, to run a cell …")
        yield _tried(trial_run.run(flags))


def _tried(went: trial_run.Trial) -> Check:
    if went.failure is None:
        text = f"a server answered after {went.answered:.1f} s, the first cell was done after {went.first_result:.1f} s"
        return Check("trial", text)
    return Check("trial", went.failure, "bad", "mend what the last lines say; they are the server's own")


def _tell(check: Check) -> None:
    show(f"{MARKS[check.grade]}  {check.subject}: {check.text}")
    if check.mend:
        show(textwrap.indent(f"to mend it: {check.mend}", "      "))
