"""How many descriptors a server may have open: as many as the system lets it, while its kernels keep the user's limit.

Each client of a server costs it one, and each kernel some; the usual soft limit of 1,024 is made for
programs that wait with `select`. Raised by `cli`; what it was is told to kernels by `launcher`.
"""

from __future__ import annotations

import contextlib
import sys

_users: int | None = None


def raise_to_hard() -> None:
    """Let this process have as many as it can get."""
    global _users
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS: "unlimited" is more than there may be
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        _users = soft


def users_soft_limit() -> int | None:
    """What the limit was before it was raised; None where it was not."""
    return _users
