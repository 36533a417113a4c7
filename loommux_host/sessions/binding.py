"""Which main kernel a call over HTTP works in (contract 9.1 to 9.3).

Owns the kernel of each session, the handles of callers without sessions, and the
``Kernel:`` lines. Opens and finds through `kernels.registry`, tells `lease_enforcement` who may hold
what. Every decision is made in one step of the event loop, so two openers of one name
get one kernel. Knows no HTTP: who calls is a `Caller`. Called by `sessions`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from loommux_host.facts.phrases import HANDLE_BYTES, HANDLE_MARK, one_line, plural
from loommux_host.facts.refusals import Refused, invalid_argument, kernel_not_found, refuse
from loommux_host.facts.results import Refusal
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.registry import NEW, InvalidName, Opened, Registry
from loommux_host.sessions.callers import Binding, Caller
from loommux_host.sessions.lease_enforcement import LeaseEnforcement
from loommux_host.succession.manifest import BindingNote, BoundNote, HandleNote
from loommux_kernel.shared.header import Header

GONE_KEPT = 200
RESOURCE_HEADER = "X-Loommux-Resource"


@dataclass
class _Bound:
    """The kernel of a session. `line` is kept until a result that carries it was handed over."""

    kernel: str
    line: str | None = None
    fresh: bool = False


@dataclass
class _Handle:
    """A private kernel of a caller without a session; `passed` when a call has used the handle."""

    kernel: Kernel
    caller: str
    passed: bool = False


@dataclass
class Binder:
    """Implements `callers.Binder` for a server with many callers."""

    registry: Registry
    leasing: LeaseEnforcement
    _bound: dict[str, _Bound] = field(default_factory=dict)
    _handles: dict[str, _Handle] = field(default_factory=dict)
    #: Handles of kernels that were retired, for those who still pass them.
    _gone: dict[str, str] = field(default_factory=dict)
    #: Modern callers that have been told where they work: (caller, kernel).
    _introduced: set[tuple[str, str]] = field(default_factory=set)
    #: Kernels that were retired, by (caller, name): those who worked in one learn it when they ask for the name again.
    _retired: dict[tuple[str, str], str] = field(default_factory=dict)
    #: Counts what was decided and is told to a caller, and what was told.
    moves: int = 0

    async def bind(self, caller: Caller, wanted: str | None, header: Header | None, *, runs: bool) -> Binding:
        self.leasing.policy_for(caller)  # an unknown generation is refused before anything is opened
        if header is not None and header.attach is not None:
            if wanted is not None:
                raise Refused(invalid_argument("kernel", wanted, "with --attach the kernel is named in the header"))
            return self._attach(caller, header.attach, header)
        if wanted == NEW:
            if not runs:
                raise Refused(invalid_argument("kernel", wanted, "only run_cell opens a new kernel"))
            return self._open_with_handle(caller)
        if wanted is not None:
            return self._by_reference(caller, wanted)
        return self._modern(caller, runs) if caller.modern else self._session(caller)

    def forget(self, caller: str) -> None:
        """The session is over, the caller gone."""
        self._bound.pop(caller, None)
        self._introduced = {pair for pair in self._introduced if pair[0] != caller}

    def forget_kernel(self, kernel: Kernel) -> None:
        """The kernel was retired. Sessions bound to it learn so when they call."""
        for handle in [handle for handle, known in self._handles.items() if known.kernel is kernel]:
            del self._handles[handle]
            self._gone[handle] = kernel.id
        self._retired |= {(who, kernel.name): kernel.id for who, id in self._introduced if id == kernel.id}
        while len(self._gone) > GONE_KEPT:
            del self._gone[next(iter(self._gone))]
        while len(self._retired) > GONE_KEPT:
            del self._retired[next(iter(self._retired))]
        self._introduced = {pair for pair in self._introduced if pair[1] != kernel.id}

    def holds(self, kernel: Kernel) -> bool:
        """Whoever works in a kernel has a lease on it here."""
        return False

    def kernel_of(self, caller: str) -> Kernel | None:
        """The session's kernel, as long as it is there."""
        bound = self._bound.get(caller)
        return self.registry.by_id(bound.kernel) if bound else None

    # -- for a successor of this server ---------------------------------------------

    def note(self) -> BindingNote:
        """What a successor has to know."""
        return BindingNote(
            [BoundNote(who, b.kernel, b.line, b.fresh) for who, b in self._bound.items()],
            [HandleNote(name, h.kernel.id, h.caller, h.passed) for name, h in self._handles.items()],
            dict(self._gone),
            sorted(self._introduced),
        )

    def recall(self, note: BindingNote) -> None:
        """Know what the server knew whose kernels were taken over."""
        self._bound = {one.caller: _Bound(one.kernel, one.line, one.fresh) for one in note.bound}
        self._gone, self._introduced = dict(note.gone), set(note.introduced)
        for one in note.handles:
            if (kernel := self.registry.by_id(one.kernel)) is not None:
                self._handles[one.handle] = _Handle(kernel, one.caller, one.passed)
            else:
                self._gone[one.handle] = one.kernel

    # -- sessions -----------------------------------------------------------------

    def _session(self, caller: Caller) -> Binding:
        if self.kernel_of(caller.id) is None:
            because = self._lost(caller)
            if caller.resource is not None:
                self._move(caller, self._open(caller, caller.resource, RESOURCE_HEADER), because)
            else:
                self._move(caller, Opened(self._open_private(caller, caller.short), True), because)
        return self._current(caller)

    def _attach(self, caller: Caller, name: str, header: Header) -> Binding:
        opened = self._attached_to(caller, name, header)
        old = None if caller.modern else self.kernel_of(caller.id)
        news = self._hold_as_asked(caller, opened, header)
        if caller.modern:
            stay = f"; pass kernel={one_line(repr(opened.kernel.name))} to stay in it"
            return self._introduce(caller, opened, news + stay)
        if old is not opened.kernel:
            if old is not None:
                self.leasing.let_go(caller, old)
            more = f"; let go of {one_line(old.name)}" if old else self._lost(caller)
            self._move(caller, opened, news + more)
        elif news:
            self._bound[caller.id].line = one_line(opened.kernel.name) + f" ({news.removeprefix('; ')})"
        return self._current(caller)

    def _hold_as_asked(self, caller: Caller, opened: Opened, header: Header) -> str:
        """Hold the kernel alone if the header says so; returns what is to be told of how it is held."""
        news = ""
        if header.autoclose and opened.new:
            news = "; ends with its sessions"
        elif (header.autoclose or header.keep) and not opened.new:
            option = "--autoclose" if header.autoclose else "--keep"
            news = f"; {option} changes nothing, for it was open already"
        if header.alone and self.leasing.hold_alone(caller, opened.kernel):
            news += "; held alone: others may only read"
            text = f"Session {one_line(caller.label)} holds this kernel alone from now on; others may only read."
            opened.kernel.tell(text, not_for=caller.id)
        return news

    def _attached_to(self, caller: Caller, name: str, header: Header) -> Opened:
        found = self.registry.named(name) or self.registry.by_id(name)
        if found is not None and found.home is None:
            if (refusal := self.leasing.held_alone(caller, found)) is not None:
                raise Refused(refusal)
            return Opened(found, False)
        if not header.create:
            raise Refused(
                self._not_found(name, caller, [kernel.name for kernel in self.registry.mains()], "--create opens it")
            )
        autoclose = True if header.autoclose else False if header.keep else None
        return self._open(caller, name, "--attach", autoclose=autoclose)

    def _lost(self, caller: Caller) -> str:
        """Why the session's kernel is no more, to be said once in the line of the next."""
        bound = self._bound.get(caller.id)
        retired = self.leasing.why_retired(bound.kernel) if bound else None
        return f"; {retired}" if retired else ""

    def _move(self, caller: Caller, opened: Opened, more: str) -> None:
        """Make it the session's kernel; `more` is said after the rest of its line."""
        self.leasing.claim(caller, opened.kernel)
        self._bound[caller.id] = _Bound(opened.kernel.id, _line(opened, more), fresh=not opened.new)
        self.moves += 1

    def _current(self, caller: Caller) -> Binding:
        bound = self._bound[caller.id]
        kernel = self.registry.by_id(bound.kernel)
        assert kernel is not None

        def delivered() -> None:
            self.moves += bound.line is not None
            bound.line = None

        return self._binding(caller, kernel, bound.line, delivered, fresh=bound.fresh)

    # -- callers without sessions ------------------------------------------------------

    def _modern(self, caller: Caller, runs: bool) -> Binding:
        if caller.resource is not None:
            return self._introduce(caller, self._open(caller, caller.resource, RESOURCE_HEADER))
        if not runs:
            raise Refused(refuse("kernel_required", which="kernel=…, the handle that a run_cell gave you"))
        mine = {handle: known.kernel for handle, known in self._handles.items() if self._may_know(caller, known)}
        if not mine:
            return self._open_with_handle(caller)
        named = ", ".join(f"kernel={h} (yours, {plural(executions(k), 'execution')})" for h, k in mine.items())
        raise Refused(refuse("kernel_required", which=f'{named} or kernel="{NEW}"'))

    def _may_know(self, caller: Caller, handle: _Handle) -> bool:
        """Whether the caller could pass this handle: not while the very call that opened the kernel is on its way."""
        opening = not handle.passed and self.leasing.in_call(caller, handle.kernel)
        return handle.caller == caller.id and not opening

    def _open_with_handle(self, caller: Caller) -> Binding:
        kernel = self._open_private(caller, secrets.token_hex(4))
        handle = HANDLE_MARK + secrets.token_urlsafe(HANDLE_BYTES)
        self._handles[handle] = _Handle(kernel, caller.id)
        self.moves += 1
        if not caller.modern:
            self.leasing.claim(caller, kernel)
        return self._binding(caller, kernel, self._handle_line(handle))

    def _handle_line(self, handle: str) -> str:
        kernel = self._handles[handle].kernel
        return f"{one_line(kernel.name)} (opened; pass kernel={handle} in every call that is to work in it)"

    def _introduce(self, caller: Caller, opened: Opened, more: str = "") -> Binding:
        """A kernel that others may use too; its line is told to each caller once."""
        pair, asked = (caller.id, opened.kernel.id), (caller.id, opened.kernel.name)
        known = pair in self._introduced
        retired = self.leasing.why_retired(self._retired[asked]) if asked in self._retired else None
        line = None if known and not more else _line(opened, (f"; {retired}" if retired else "") + more)

        def delivered() -> None:
            self.moves += pair not in self._introduced
            self._introduced.add(pair)
            self._retired.pop(asked, None)

        return self._binding(caller, opened.kernel, line, delivered, fresh=not opened.new and not known)

    # -- the `kernel` argument -----------------------------------------------------------

    def _by_reference(self, caller: Caller, wanted: str) -> Binding:
        """A handle, a path or an id: works there for this call, opens nothing and moves nothing."""
        if (handle := self._handles.get(wanted)) is not None:
            self.moves += not handle.passed
            handle.passed = True
            return self._binding(caller, handle.kernel, fresh=handle.caller != caller.id)
        own = self.kernel_of(caller.id)
        kernel = self.registry.find(wanted, own.id if own else None)
        if kernel is None:
            raise Refused(self._not_found(wanted, caller, self.registry.paths()))
        fresh = caller.home is None or caller.home != self.registry.home_of(kernel)
        return self._binding(caller, kernel, self._untold_handle_line(caller, kernel), fresh=fresh)

    def _untold_handle_line(self, caller: Caller, kernel: Kernel) -> str | None:
        """The handle of the caller's own kernel, as long as no call has passed it."""
        for handle, known in self._handles.items():
            if known.kernel is kernel and known.caller == caller.id and not known.passed:
                return self._handle_line(handle)
        return None

    # -- common -----------------------------------------------------------------------------

    def _open(self, caller: Caller, name: str, where: str, *, autoclose: bool | None = None) -> Opened:
        try:
            opened = self.registry.open(name)
        except InvalidName as error:
            raise Refused(invalid_argument(where, name, str(error))) from None
        if opened.new:
            self.leasing.opened(opened.kernel, self.leasing.policy_for(caller), autoclose=autoclose)
        return opened

    def _open_private(self, caller: Caller, short: str) -> Kernel:
        kernel = self.registry.open_new(f"private-{short}", private=True)
        self.leasing.opened(kernel, self.leasing.policy_for(caller))
        return kernel

    def _binding(
        self,
        caller: Caller,
        kernel: Kernel,
        line: str | None = None,
        delivered: Callable[[], None] = lambda: None,
        *,
        fresh: bool = False,
    ) -> Binding:
        return Binding(kernel, line, self.leasing.alert(caller, kernel), fresh, delivered)

    def _not_found(self, name: str, caller: Caller, known: list[str], hint: str = "") -> Refusal:
        retired = self.leasing.why_retired(self._gone.get(name) or self._retired.get((caller.id, name), name))
        return kernel_not_found(name, known, str(retired) if retired else "", hint)


def executions(kernel: Kernel) -> int:
    """How many executions the kernel has had, as far as its processes are remembered."""
    numbered = (life.mirror.recent for life in kernel.lives())
    return sum(view.number for view in numbered if view is not None and view.number is not None)


def _line(opened: Opened, more: str = "") -> str:
    """``NAME (opened)``, ``NAME (attached; 12 earlier executions)``."""
    earlier = executions(opened.kernel)
    how = "opened" if opened.new else f"attached; {plural(earlier, 'earlier execution')}"
    return f"{one_line(opened.kernel.name)} ({how}{more})"
