"""When a kernel is not forked warm but given an interpreter of its own (exec), and why, in words.

Owns the rule: a fork has to be what the command would be in a new interpreter. Whether the
files of what was imported are still the same is `preload`'s. Called by `fork_server` alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from loommux_host.keeper.preload import Preloaded
from loommux_host.keeper.wire import Message

#: Variables that an interpreter, or its C library, reads at its start only.
MARK = "--keeper"
AT_START = ("PYTHON", "LD_", "MALLOC_", "LC_", "LANG", "GLIBC_")


def way_in(words: Sequence[str]) -> list[str]:
    """How the commands begin of kernels that a keeper with that command may fork: the same interpreter and overlay."""
    return list(words[: words.index(MARK)])


def why_exec(request: Message, preloaded: Preloaded, began_with: dict[str, str]) -> str | None:
    """Why a fork would not be what that launch asks for; None when it would."""
    if request["command"][:-1] != way_in(sys.orig_argv):
        return "its interpreter or its overlay is another"
    now = at_start(request["environment"])
    different = sorted(name for name in now.keys() | began_with.keys() if now.get(name) != began_with.get(name))
    if different:
        return f"other environment: {', '.join(different)}"
    return preloaded.obstacle()


def at_start(environment: dict[str, str]) -> dict[str, str]:
    """The variables that a running interpreter cannot take over any more."""
    return {name: value for name, value in environment.items() if name.startswith(AT_START)}
