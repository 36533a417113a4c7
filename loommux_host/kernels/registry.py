"""The kernels of a server: ids, names, homes, paths (contract 8.1).

Opens, finds, renames and retires kernels. Opening only makes the kernel; its process is
started behind it, so two openers of one name always get the same kernel. It does not know
sessions, nor why a kernel is opened or retired. Called by `sessions` and `usecases.service`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from loommux_host.facts.phrases import HANDLE_MARK, without_handles
from loommux_host.kernels.kernel import Kernel, Launching
from loommux_host.kernels.mirror import Change
from loommux_host.kernels.process_life import Life

NAME_CHARACTERS = 256
CALLING = "kernel "

OnChange = Callable[[Kernel, Life, Change], None]


class TooManyKernels(Exception):
    """`max_kernels` are open."""


class InvalidName(ValueError):
    """The name is no kernel's name; the message says what is allowed."""


#: What no kernel can be called, since it is how a call asks for another, and how handles begin.
NEW = "new"


@dataclass(frozen=True)
class Opened:
    """A kernel, and whether this call opened it."""

    kernel: Kernel
    new: bool


class Registry:
    """All kernels of a server. `launching` makes what starts a kernel's processes, from id and first name."""

    def __init__(self, launching: Callable[[str, str], Launching], *, max_kernels: int = 64) -> None:
        self._launching = launching
        self._max_kernels = max_kernels
        self._ends_by: str | None = None
        self._kernels: dict[str, Kernel] = {}
        self._listeners: list[OnChange] = []

    def listen(self, on_change: OnChange) -> None:
        """Tell of every change in every kernel."""
        self._listeners.append(on_change)

    def __len__(self) -> int:
        return len(self._kernels)

    def all(self) -> list[Kernel]:
        return list(self._kernels.values())

    def mains(self) -> list[Kernel]:
        return [k for k in self._kernels.values() if k.home is None]

    def children(self, home: str) -> list[Kernel]:
        return [k for k in self._kernels.values() if k.home == home]

    def home_of(self, kernel: Kernel) -> str:
        """The id of the main kernel it belongs to; its own when it is one."""
        return kernel.home or kernel.id

    def path(self, kernel: Kernel) -> str:
        home = self._kernels.get(kernel.home) if kernel.home else None
        return f"/{home.name}/{kernel.name}" if home else f"/{kernel.name}"

    def paths(self) -> list[str]:
        """How each kernel can be named from anywhere: main kernels by their names, children by paths."""
        return [self.path(kernel) if kernel.home else kernel.name for kernel in self._kernels.values()]

    # -- finding -----------------------------------------------------------------

    def by_id(self, id: str) -> Kernel | None:
        return self._kernels.get(id)

    def named(self, name: str, home: str | None = None) -> Kernel | None:
        """The main kernel of that name, or the child of `home`."""
        return next((k for k in self._kernels.values() if k.home == home and k.name == name), None)

    def find(self, reference: str, home: str | None = None) -> Kernel | None:
        """By id anywhere, by path from the root, by bare name from `home`, then among main kernels."""
        if reference in self._kernels:
            return self._kernels[reference]
        if reference.startswith("/"):
            main, _, child = reference[1:].partition("/")
            kernel = self.named(main)
            return self.named(child, kernel.id) if kernel and child else kernel
        return (self.named(reference, home) if home else None) or self.named(reference)

    def find_from(self, home: str, reference: str) -> Kernel | None:
        """As code in a kernel of that home names it: a bare name is a child of the home, or the home itself."""
        if reference in self._kernels or reference.startswith("/"):
            return self.find(reference)
        main = self._kernels.get(home)
        return self.named(reference, home) or (main if main is not None and main.name == reference else None)

    def calling(self, caller: str) -> Kernel | None:
        """The kernel that calls under that caller id, see `caller_id`."""
        return self._kernels.get(caller.removeprefix(CALLING)) if caller.startswith(CALLING) else None

    # -- opening and retiring ----------------------------------------------------

    def open(self, name: str, *, home: str | None = None, private: bool = False, id: str | None = None) -> Opened:
        """The kernel of that name, made and started when missing; with that `id` if its process begins already."""
        check_name(name)
        known = self.named(name, home)
        if known is not None:
            return Opened(known, False)
        if len(self._kernels) >= self._max_kernels:
            raise TooManyKernels(f"all {self._max_kernels} kernels that this server may have are open")
        id = id or uuid.uuid4().hex
        kernel = Kernel(id, name, self._launching(id, name), home=home, private=private, on_change=self._changed)
        self._kernels[id] = kernel
        kernel.start_soon()
        return Opened(kernel, True)

    def recall(self, id: str, name: str, *, home: str | None, private: bool) -> Kernel:
        """A kernel that another server has opened; nothing is started."""
        kernel = Kernel(id, name, self._launching(id, name), home=home, private=private, on_change=self._changed)
        self._kernels[id] = kernel
        return kernel

    def forget(self, id: str) -> None:
        """A kernel that could not be recalled."""
        self._kernels.pop(id, None)

    def open_new(self, name: str, *, private: bool = False) -> Kernel:
        """A main kernel of its own, numbered when the name is taken."""
        return self.open(self._free(name, None), private=private).kernel

    def rename(self, kernel: Kernel, wanted: str) -> str:
        """Give it that name, numbered when taken; returns the name it got."""
        check_name(wanted)
        if wanted != kernel.name:
            kernel.rename(self._free(wanted, kernel.home))
        return kernel.name

    def retire(self, kernel: Kernel, cause: str = "recycle", by: str | None = None) -> Awaitable[object]:
        """End it with its children. It is not found any more, and its name is free, when this returns."""
        going = [*self.children(kernel.id), kernel]
        for one in going:
            self._kernels.pop(one.id, None)
        return asyncio.gather(*(one.close(cause, by) for one in going))

    def answer_now(self) -> None:
        """All waiting calls are answered with what is known."""
        for kernel in self._kernels.values():
            kernel.answer_now()

    def ends_by(self, by: str) -> None:
        """Something has asked for the end of the server, and so of all kernels; in words."""
        self._ends_by = by
        for kernel in self._kernels.values():
            if kernel.life is not None:
                kernel.life.server_ends_by = by

    async def close(self) -> None:
        """Retire all kernels."""
        going = list(self._kernels.values())
        self._kernels.clear()
        await asyncio.gather(*(kernel.close(by=self._ends_by) for kernel in going))

    def _free(self, name: str, home: str | None) -> str:
        free, number = name, 1
        while self.named(free, home) is not None:
            number += 1
            suffix = f"-{number}"
            free = name[: NAME_CHARACTERS - len(suffix)] + suffix
        return free

    def _changed(self, kernel: Kernel, life: Life, change: Change) -> None:
        for listener in self._listeners:
            listener(kernel, life, change)


def caller_id(kernel: Kernel) -> str:
    """What code in a kernel is known by as a caller."""
    return CALLING + kernel.id


def check_name(name: str) -> None:
    """Raise `InvalidName` unless a kernel may be called so."""
    reserved = name == NEW or name.startswith(HANDLE_MARK)
    if reserved or not name.strip() or not name.isprintable() or "/" in name or len(name) > NAME_CHARACTERS:
        raise InvalidName(
            f"a kernel's name is printable, has no / and at most {NAME_CHARACTERS} characters; "
            f"{NEW} and what begins with {HANDLE_MARK} mean other things"
        )
    if without_handles(name) != name:
        raise InvalidName("a name; a handle goes into the argument kernel, and nobody else is told of it")
