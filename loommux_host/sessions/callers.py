"""Callers: which kernel a call works in, who is there, and what each has been told.

Owns presence (open calls, streams, last calls), the told-marks per caller and kernel, and
hands what happens to the leases. Which kernel a caller works in is decided by a `Binder`:
`OneKernel` for a stdio server; HTTP has its own. It does not know tools or wording.
Called by `usecases.service`; the faces make the `Caller`s.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from loommux_host.facts.phrases import one_line
from loommux_host.facts.refusals import Refused, kernel_not_found, refuse
from loommux_host.facts.results import Refusal
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.mirror import Change, Ended, Started
from loommux_host.kernels.process_life import Life
from loommux_host.kernels.registry import Registry, caller_id
from loommux_host.sessions.envelope import Envelope, Key, Late, Shown, Told, envelope
from loommux_kernel.shared.header import Header
from loommux_kernel.shared.protocol import Origin, OriginKind

if TYPE_CHECKING:
    from loommux_host.succession.manifest import PresenceNote, ToldNote

#: Seconds after its last call for which a caller counts as still there (contract 4).
PRESENCE = 60.0
#: Callers without a session of whom something is kept while they are away; they never say that they leave.
AWAY_KEPT = 1000
#: Of what a caller wants to be called.
LABEL_CHARACTERS = 100


@dataclass(frozen=True)
class Caller:
    """Who a call comes from (contract 9.3). `id` is told to nobody but the owner of the call.

    `modern`: the era without sessions. `resource` is the kernel that the caller's
    configuration names (``X-Loommux-Resource``). `short` goes into the name of a private
    kernel. `policy` is the generation of the lease policy that the caller has pinned.
    `kernel` and `home` are those of a caller that is a kernel (contract 8).
    """

    id: str
    label: str
    kind: OriginKind = OriginKind.SESSION
    modern: bool = False
    resource: str | None = None
    short: str = ""
    policy: int | str | None = None
    kernel: str | None = None
    home: str | None = None

    @classmethod
    def of_kernel(cls, kernel: Kernel, registry: Registry) -> Caller:
        """Code that runs in a kernel."""
        home = registry.home_of(kernel)
        return cls(caller_id(kernel), registry.path(kernel), OriginKind.KERNEL, kernel=kernel.id, home=home)

    @property
    def person(self) -> bool:
        """People at the console or the command line; they are never refused for ownership."""
        return self.kind is OriginKind.CONSOLE

    @property
    def reads_fields(self) -> bool:
        """Programs get every field of a result; what an agent reads is text, unless the server was told otherwise."""
        return self.person or self.kernel is not None

    def origin(self) -> Origin:
        return Origin(self.kind, self.label, self.id)


@dataclass(frozen=True)
class Binding:
    """The kernel of one call. `line` tells of a change of kernel, `alert` of a lease (contract 6).

    `fresh`: the caller has not worked there before, and what was there before is not news to it.
    """

    kernel: Kernel
    line: str | None = None
    alert: str | None = None
    fresh: bool = False
    #: The `line` and `alert` were handed over.
    delivered: Callable[[], None] = lambda: None


class Binder(Protocol):
    """Decides which kernel a call works in, opening or attaching one where the contract says so."""

    async def bind(self, caller: Caller, wanted: str | None, header: Header | None, *, runs: bool) -> Binding:
        """The kernel for one call.

        `wanted` is the `kernel` argument, `header` that of the cell; `runs` is True for
        run_cell alone, which may open one. Raises `Refused`.
        """
        ...


class LeaseHooks(Protocol):
    """What the leases are told and asked; times are read from their own clock.

    `call_began` returns what `call_ended` takes, for a kernel may be renamed meanwhile; `answered` is False for a
    call cut off. `held_alone` says who lets nobody else but `caller` change the kernel, None when it may.
    """

    def call_began(self, caller: Caller, kernel: Kernel) -> object: ...
    def call_ended(self, call: object, answered: bool) -> None: ...
    def held_alone(self, caller: Caller, kernel: Kernel) -> Refusal | None: ...
    def cell_started(self, kernel: Kernel, cell: Key, caller: str | None) -> None: ...
    def cell_ended(self, kernel: Kernel, cell: Key) -> None: ...
    def told(self, kernel: Kernel, cell: Key) -> None: ...


class NoLeases:
    """Over stdio the server's life is the kernel's lease."""

    def call_began(self, caller: Caller, kernel: Kernel) -> object: ...
    def call_ended(self, call: object, answered: bool) -> None: ...
    def held_alone(self, caller: Caller, kernel: Kernel) -> Refusal | None:
        return None

    def cell_started(self, kernel: Kernel, cell: Key, caller: str | None) -> None: ...
    def cell_ended(self, kernel: Kernel, cell: Key) -> None: ...
    def told(self, kernel: Kernel, cell: Key) -> None: ...


class OneKernel:
    """Every call works in the server's one private main kernel (contract 9.3, stdio)."""

    def __init__(self, registry: Registry, kernel: Kernel) -> None:
        self._registry, self._kernel = registry, kernel
        #: Told once, when the kernel is another than before.
        self._line: str | None = None

    def holds(self, kernel: Kernel) -> bool:
        """The client holds its kernel for as long as it is connected."""
        return kernel is self._kernel

    def forget_kernel(self, kernel: Kernel) -> None:
        """It was retired; if it is the client's, the next call opens another."""

    async def bind(self, caller: Caller, wanted: str | None, header: Header | None, *, runs: bool) -> Binding:
        self._open_again()
        attach = header.attach if header else None
        if header is not None and (header.autoclose or header.keep or header.alone):
            reason = (
                "--autoclose, --keep and --alone: a server over stdio has one client, and all of it ends with it;"
                " loommux --server has many"
            )
            raise Refused(refuse("invalid_cell_header", reason=reason))
        if attach is not None and self._registry.find(attach) is not self._kernel:
            if header is not None and header.create:
                reason = f"--attach {attach} --create: a server over stdio has one kernel; loommux --server has many"
                raise Refused(refuse("invalid_cell_header", reason=reason))
            raise Refused(kernel_not_found(attach, [k.name for k in self._registry.mains()]))
        if wanted is None:
            return Binding(self._kernel, self._line, delivered=self._told)
        found = self._registry.find(wanted, self._kernel.id)
        if found is None:
            raise Refused(kernel_not_found(wanted, self._registry.paths()))
        return Binding(found)

    def _open_again(self) -> None:
        """Another kernel when the client's was recycled."""
        if self._registry.by_id(self._kernel.id) is None:
            self._kernel = self._registry.open_new(self._kernel.name, private=True)
            self._line = f"{one_line(self._kernel.name)} (opened; the one before was recycled)"

    def _told(self) -> None:
        self._line = None


@dataclass
class Presence:
    open_calls: int = 0
    streams: int = 0
    last_call: float = 0.0
    label: str = ""
    modern: bool = False

    @property
    def connected(self) -> bool:
        return self.open_calls > 0 or self.streams > 0


class Sessions:
    """All callers of a server."""

    def __init__(
        self,
        registry: Registry,
        binder: Binder,
        leases: LeaseHooks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._binder = binder
        self._leases: LeaseHooks = leases or NoLeases()
        self._clock = clock
        self._present: dict[str, Presence] = {}
        self._told: dict[tuple[str, str], Told] = {}
        #: Counts the results that told something of a kernel beside their own cell.
        self.tellings = 0
        registry.listen(self._changed)

    async def bind(self, caller: Caller, wanted: str | None, header: Header | None, *, runs: bool) -> Binding:
        binding = await self._binder.bind(caller, wanted, header, runs=runs)
        key = (caller.id, binding.kernel.id)
        if key not in self._told:
            # A kernel hears of what its own children did before; what others did is not its concern.
            fresh = binding.fresh or caller.kernel not in (None, binding.kernel.home)
            self._told[key] = self._joined(binding.kernel) if fresh else Told()
        return binding

    @contextlib.contextmanager
    def calling(self, caller: Caller, kernel: Kernel) -> Iterator[None]:
        """The caller is there as long as the block runs, and for a minute after. People and kernels renew nothing."""
        if caller.person or caller.kernel is not None:
            yield
            return
        presence = self.presence(caller.id)
        presence.label, presence.modern = caller.label, caller.modern
        presence.open_calls += 1
        call = self._leases.call_began(caller, kernel)
        answered = False
        try:
            yield
            answered = True
        finally:
            presence.open_calls -= 1
            presence.last_call = self._clock()
            self._forget_if_away({caller.id})
            self._forget_longest_away()
            self._leases.call_ended(call, answered)

    def check_free(self, caller: Caller, kernel: Kernel) -> None:
        """Raise `Refused` when another session holds the kernel alone; people and kernels are judged elsewhere."""
        if caller.person or caller.kernel is not None:
            return
        if (refusal := self._leases.held_alone(caller, kernel)) is not None:
            raise Refused(refusal)

    # -- who is there ---------------------------------------------------------------

    def presence(self, caller: str) -> Presence:
        return self._present.setdefault(caller, Presence(last_call=self._clock() - PRESENCE))

    def stream_opened(self, caller: str) -> None:
        """The caller's standing stream began."""
        self.presence(caller).streams += 1

    def stream_closed(self, caller: str) -> None:
        """It ended; its session may have ended before."""
        if (there := self._present.get(caller)) is not None:
            there.streams -= 1
            self._forget_if_away({caller})

    def present(self, caller: str) -> bool:
        """A call or stream is open, or a call came within the last minute."""
        there = self._present.get(caller)
        return there is not None and (there.connected or self._clock() - there.last_call < PRESENCE)

    def workers(self, kernel: Kernel) -> set[str]:
        """The callers that have worked in the kernel and are there."""
        return {who for who, where in self._told if where == kernel.id and self.present(who)}

    def others_in(self, kernel: Kernel, caller: str) -> list[str]:
        """Labels of the other callers that work in the kernel and are there."""
        ids = [who for who, where in self._told if where == kernel.id and who != caller and self.present(who)]
        return [self._present[who].label for who in ids]

    def forget(self, caller: str) -> None:
        """The caller will not come back."""
        self._present.pop(caller, None)
        for key in [k for k in self._told if k[0] == caller]:
            del self._told[key]

    def forget_kernel(self, kernel: Kernel) -> None:
        """The kernel was retired; it calls no more, either."""
        self.forget(caller_id(kernel))
        keys = [k for k in self._told if k[1] == kernel.id]
        for key in keys:
            del self._told[key]
        self._forget_if_away({who for who, _ in keys})

    def _forget_if_away(self, callers: set[str]) -> None:
        """Those without a session never say that they leave: nothing is left of them when no kernel knows them."""
        known = {who for who, _ in self._told}
        for caller in callers - known:
            there = self._present.get(caller)
            if there is not None and not there.connected:
                del self._present[caller]

    def _forget_longest_away(self) -> None:
        """Names of callers without a session are theirs to choose, so there may be any number of them."""
        if len(self._present) <= AWAY_KEPT:
            return
        away = {who: there.last_call for who, there in self._present.items() if there.modern and not there.connected}
        if len(away) > AWAY_KEPT:
            self.forget(min(away, key=away.__getitem__))

    # -- what they were told -----------------------------------------------------------

    def told(self, caller: Caller, kernel: Kernel) -> Told:
        """What was told in the kernel; nothing is kept again of a caller or a kernel that has gone."""
        return self._told.get((caller.id, kernel.id)) or Told()

    def envelope(self, caller: Caller, kernel: Kernel, shown: Shown) -> Envelope:
        """What the caller still has to be told about the kernel; `delivered` or `lost` has to be said of it."""
        if caller.person:  # people look; nothing is kept of what they have seen, and they hear of their own cell alone
            told = self._joined(kernel)
            told.index = kernel.journal.before(shown.since) if shown.since is not None else told.index
            return envelope(kernel.journal, late_lines(kernel), told, caller.id, shown)
        told = self.told(caller, kernel)
        what = envelope(kernel.journal, late_lines(kernel), told, caller.id, shown)
        what.sent(told, kernel.journal.index)
        return what

    def lost(self, caller: Caller, kernel: Kernel, what: Envelope) -> None:
        """The result with that envelope will not be handed over."""
        what.dropped(self.told(caller, kernel))

    def delivered(self, caller: Caller, kernel: Kernel, what: Envelope, shown: Shown) -> None:
        """The result with that envelope was handed over."""
        what.delivered(self.told(caller, kernel))
        self.tellings += bool(what.notices or what.late or shown.deaths)
        theirs = caller.kernel is None or (kernel.home is not None and kernel.home == caller.home)
        if shown.whole and shown.execution is not None and theirs:
            self._leases.told(kernel, shown.execution)
            if kernel.life is not None and kernel.life.process.process == shown.execution[0]:
                kernel.life.told(shown.execution[1])

    def saw(self, caller: Caller, kernel: Kernel, shown: Shown) -> None:
        """The caller was told of that in another way than by a result."""
        self.delivered(caller, kernel, self.envelope(caller, kernel, shown), shown)

    # -- for a successor of this server ----------------------------------------------------

    def note(self) -> tuple[list[ToldNote], list[PresenceNote]]:
        """What a successor has to know. What is on its way may never be handed over, so it is owed."""
        from loommux_host.succession.manifest import PresenceNote, ToldNote  # only HTTP servers have successors

        told = []
        for (caller, kernel), one in self._told.items():
            late = dict(one.late)
            for sent in one.on_the_way:
                for key, lines in sent.late.items():
                    late[key] -= lines
            owed = [(r.start, r.stop) for r in [*one.lost, *(e for w in one.on_the_way for e in w.entries)] if r]
            told.append(ToldNote(caller, kernel, one.index, [(*key, n) for key, n in late.items()], owed))
        present = [PresenceNote(who, p.label, p.modern, p.last_call) for who, p in self._present.items()]
        return told, present

    def recall(self, told: Iterable[ToldNote], present: Iterable[PresenceNote]) -> None:
        """Know what the server knew whose kernels were taken over."""
        for one in told:
            late = {(process, serial): lines for process, serial, lines in one.late}
            owed = [range(start, stop) for start, stop in one.owed]
            self._told[one.caller, one.kernel] = Told(one.index, late, lost=owed)
        for one in present:
            self._present[one.caller] = Presence(last_call=one.last_call, label=one.label, modern=one.modern)

    def _joined(self, kernel: Kernel) -> Told:
        return Told(kernel.journal.index, {late.key: late.lines for late in late_lines(kernel)})

    def _changed(self, kernel: Kernel, life: Life, change: Change) -> None:
        match change:
            case Started(view):
                caller = view.origin.client if view.origin.kind is OriginKind.SESSION else None
                self._leases.cell_started(kernel, (life.process.process, view.serial), caller)
            case Ended(view):
                self._leases.cell_ended(kernel, (life.process.process, view.serial))
            case _:
                pass


def late_lines(kernel: Kernel) -> list[Late]:
    """Lines after the end of executions whose records can be read."""
    return [
        Late((life.process.process, serial), number, lines, life.mirror.label(serial))
        for life in kernel.lives()
        for serial, (number, lines) in life.mirror.late.items()
    ]
