"""Notices of kernels that work for another one, told where the agent works (contract 6, 8.2).

What a child says is told in its home as ``build · …``; what a cell says that a kernel of
another home sent is told in the sender's home too. Owns that rule and nothing else. Made by
the composition root; listens to the registry.
"""

from __future__ import annotations

from loommux_host.facts.phrases import cell
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.mirror import Change, Noticed
from loommux_host.kernels.process_life import Life
from loommux_host.kernels.registry import Registry
from loommux_kernel.shared.protocol import OriginKind


class ChildNotices:
    """Repeats notices in the journals of other kernels."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        registry.listen(self._changed)

    def _changed(self, kernel: Kernel, life: Life, change: Change) -> None:
        if not isinstance(change, Noticed):
            return
        label = change.label or life.mirror.label(change.serial)
        text = f"{label} · {change.text}" if label and label != cell(change.number) else change.text
        own = self._registry.home_of(kernel)
        for home in self._homes(kernel, life, change):
            name = kernel.name if home.id == own else self._registry.path(kernel)
            process = home.life.process.process if home.life else 0
            home.journal.notice(process, change.at, text, label=name)

    def _homes(self, kernel: Kernel, life: Life, notice: Noticed) -> list[Kernel]:
        """The main kernels in which it is told: of the kernel itself, and of the one that sent the cell."""
        view = None if notice.serial is None else life.mirror.by_serial(notice.serial)
        sender = None
        if view is not None and view.origin.kind is OriginKind.KERNEL:
            sender = self._registry.calling(view.origin.client)
        homes = {self._registry.home_of(one) for one in (kernel, sender) if one is not None}
        return [home for id in homes if id != kernel.id and (home := self._registry.by_id(id)) is not None]
