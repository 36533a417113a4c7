"""When a kernel is not forked warm but given an interpreter of its own (exec), and why, in words.

Owns the rule: a fork has to be what the command would be in a new interpreter. Whether the
files of what was imported are still the same is `preload`'s. Called by `fork_server` alone.
"""

from __future__ import annotations

from loommux_host.keeper.preload import Preloaded
from loommux_host.keeper.wire import Message

#: Variables that an interpreter, or its C library, reads at its start only.
AT_START = ("PYTHON", "LD_", "MALLOC_", "LC_", "LANG", "GLIBC_")
OTHER_INTERPRETER = "the kernels' interpreter is another"


def why_exec(request: Message, preloaded: Preloaded | None, began_with: dict[str, str]) -> str | None:
    """Why a fork would not be what that launch asks for; None when it would."""
    if preloaded is None:
        return OTHER_INTERPRETER
    if not request["warm"]:
        return "its command is another"
    now = at_start(request["environment"])
    different = sorted(name for name in now.keys() | began_with.keys() if now.get(name) != began_with.get(name))
    if different:
        return f"other environment: {', '.join(different)}"
    return preloaded.obstacle()


def why_exec_always(preloaded: Preloaded | None) -> str | None:
    """Why a keeper forks no kernel warm, whatever is asked for; None when it does."""
    return OTHER_INTERPRETER if preloaded is None else preloaded.obstacle()


def at_start(environment: dict[str, str]) -> dict[str, str]:
    """The variables that a running interpreter cannot take over any more."""
    return {name: value for name, value in environment.items() if name.startswith(AT_START)}
