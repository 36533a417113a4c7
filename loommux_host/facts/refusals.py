"""Every refusal: its status word, what that means, its text; and the exception that carries one.

A refusal says that nothing was done, and why. It reads ``<status>: <text>``; the texts here are
templates, filled with short pieces of `phrases`. docs/reference.md is checked against the
table. `Refused` is raised by everything between `usecases.service` and `kernels.registry`, and
translated into an answer by `usecases.service` alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from loommux_host.facts.phrases import cell, clock, company, duration, how_ended, memory, one_line, sender, visible
from loommux_host.facts.results import Death, Refusal
from loommux_host.facts.status_words import BESIDE_OUTPUT, Word
from loommux_host.facts.watches import Watch
from loommux_kernel.shared.protocol import Origin

#: What became of a cell whose process has died.
NOT_RUN = "Nothing was run: send it again to run it in the new process."
NOT_KNOWN = "Whether the cell has begun is not known: the records could not be read. Check before sending it again."
#: What became of a cell that a kernel did not take in time.
WITHDRAWN = "The cell was not run."
MAY_RUN = (
    "Whether the cell has begun, or will, is not known: look with execution_status() when the kernel answers again,"
    " before you send it again."
)
#: What became of an interrupt that a kernel did not answer.
NOT_FELT = "Whether the interrupt has reached a cell is not known."

#: Everything that did nothing: ``isError`` is true, ``ok`` is false.
REFUSALS: dict[str, Word] = {
    "busy": Word(
        "another cell runs; the submitted one was not run and is not queued",
        "{cell} of {kernel} has run for {elapsed}, sent by {sender}{waiting}. Nothing was run."
        " Use wait(), or {interrupt}.",
    ),
    "empty_cell": Word("the cell is blank", "the cell is blank. Nothing was run."),
    "invalid_cell_header": Word(
        "the cell's %%loommux line cannot be used",
        "{reason}. Nothing was run.",
    ),
    "invalid_argument": Word(
        "a parameter is unknown, or its value is not allowed", "{parameter}={value} is not possible: {allowed}."
    ),
    "execution_not_found": Word("there is no such execution", "{missing}; {recent}.{elsewhere}"),
    "process_not_found": Word(
        "there is no such process of the kernel, or its records are gone",
        "process {process} of {kernel} does not exist or its records are gone; {readable}.",
    ),
    "kernel_not_found": Word("there is no such kernel", "there is no kernel {name}; {known}."),
    "kernel_busy": Word(
        "the kernel runs a cell, and it was not said that this may be ended",
        "{what}. Nothing was recycled; pass force=true, or --force, to end it.",
    ),
    "other_home": Word(
        "the kernel belongs to another home than the kernel that calls",
        "{kernel} belongs to another home; it can be read, but not be {what}. Nothing was done.",
    ),
    "kernel_required": Word(
        "a caller without a session has named no kernel, or has one already", "pass {which}. Nothing was done."
    ),
    "watch_not_found": Word(
        "no watch of that name is known, or none is pending", "{missing} in {kernel}; {others}. Nothing was waited for."
    ),
    "query_too_expensive": Word(
        "the pattern needed more than 2 seconds",
        'the pattern took longer than {budget} and was given up. Use a simpler one, or query_mode="literal".',
    ),
    "not_yours": Word(
        "the running cell was sent by someone else who is still there",
        "{cell} of {kernel} was sent by {sender}, still there; it has run for {elapsed}. Nothing was interrupted."
        " {deliberate}",
    ),
    "claimed": Word(
        "another session holds the kernel alone (`--alone`)",
        "{holder} holds {kernel} alone since {since}. Nothing was done. Reading works; others may run, interrupt and"
        " restart again when its lease ends, or when a person releases it: loommux release {name}.",
    ),
    "kernel_died": Word(
        "the process ended since the last result; the cell was not run, or that is not known",
        "process {process} of {kernel} {how} at {clock}{memory}.{lost}{company} Its variables are gone. {undone}"
        " Records: process={process}.{stacks}",
    ),
    "kernel_start_failed": Word(
        "no process of the kernel could be started in two attempts; the next call tries again",
        "{kernel} could not be started: {reason}. The next call tries again.{log}",
    ),
    "system_error": Word(
        "the operating system refused what the call needed: it has no more processes, threads, descriptors or memory"
        " for this account, or a disk gave an error",
        "the server could not do its part of {what}: {error}. What was asked for may have begun: status() and"
        " execution_status() say what runs. Make room (end what cells have started; restart() ends all of it), then"
        " try again.",
    ),
    "kernel_unresponsive": Word(
        "the kernel did not answer in time",
        "{kernel} has not answered for {elapsed}. {undone}{why} status() and read_output() work; restart() always"
        " works.",
    ),
    "too_many_kernels": Word(
        "the server has as many kernels as `max_kernels` allows", "{reason}. No kernel was opened."
    ),
    "records_gone": Word(
        "the records of that process are not there: somebody removed their files, or they were dropped",
        "the records of that process of {kernel} are gone: their files were removed. What ran there has run all the"
        " same; status() and execution_status() tell what the server still knows of it.",
    ),
    "records_unreadable": Word(
        "the records of that process are there, but are damaged or on a disk that gives errors",
        "{kernel} has records of that process that cannot be read: they are damaged, or their disk gives errors."
        " The server's log says more.",
    ),
    "records_behind": Word(
        "the record store cannot be written at the moment, by a full or read-only disk, and lacks that execution",
        "the records of {kernel} cannot be written at the moment, so its latest output cannot be read. The kernel goes"
        " on and keeps it in memory; read again when the disk has room.",
    ),
    "server_stopping": Word("the server is shutting down", "the server is shutting down. Nothing was done."),
}


class Refused(Exception):
    """Nothing was done; `refusal` says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.status}: {refusal.message}")
        self.refusal = refusal


def refuse(status: str, **pieces: object) -> Refusal:
    """The refusal of that word; `pieces` fill its template."""
    return Refusal(status=status, message=REFUSALS[status].text.format(**pieces), facts=dict(pieces))


def watch_not_found(name: str, kernel: str, pending: Sequence[str], last: Watch | None) -> Refusal:
    """`last` is the one that ended last."""
    missing = "no watch is pending" if name == "next" else f"there is no watch {one_line(name)}"
    others = f"pending are {', '.join(map(one_line, pending))}" if pending else "none is pending"
    if not pending:
        others = f"the last to end was {one_line(last.name)}" if last else "none has been started in this process"
    return refuse("watch_not_found", missing=missing, kernel=kernel, others=others)


def invalid_argument(parameter: str, value: object, allowed: str) -> Refusal:
    """`allowed` says what may be given, without a full stop."""
    shown = one_line(value if isinstance(value, int | float) else repr(value))
    return refuse("invalid_argument", parameter=parameter, value=shown, allowed=allowed)


def busy(
    number: int | None, kernel: str, elapsed: float, origin: Origin, mine: bool, *, waiting: bool = False
) -> Refusal:
    """A cell of `origin` runs. `mine`: the caller sent it. `waiting`: for input from the client that sent it."""
    return refuse(
        "busy", cell=cell(number), kernel=one_line(kernel), elapsed=duration(elapsed),
        sender="this session" if mine else sender(origin), interrupt=_interrupt(number),
        waiting=", and waits for that client's input" if waiting else "",
    )  # fmt: skip


def not_yours(number: int | None, kernel: str, elapsed: float, origin: Origin) -> Refusal:
    """The running cell's owner, who is still there, is not the caller."""
    owner = sender(origin)
    deliberate = f"{_interrupt(number)} interrupts it all the same; {owner} is then told."
    if number is None:
        deliberate = "It has no number to name it by: wait() for its end; restart() always works."
    return refuse(
        "not_yours", cell=cell(number), kernel=one_line(kernel), elapsed=duration(elapsed), sender=owner,
        deliberate=deliberate,
    )  # fmt: skip


def execution_not_found(
    number: int | None,
    recent: int | None,
    elsewhere: Death | None = None,
    process: int | None = None,
    *,
    following: int | None = None,
) -> Refusal:
    """No In [`number`], or none at all (None).

    `recent` is the most recent number of the process that was asked, `process` that
    process when the caller named it, `elsewhere` the end of an earlier one that has it.
    `following` is the process asked when it was not named and there were others before it.
    """
    where = f" in process {process}" if process is not None else ""
    missing = f"{cell(number)} does not exist{where}" if number is not None else f"there is no execution{where}"
    later = f" in process {following} yet" if following is not None else " yet"
    known = f"the most recent is {cell(recent)}" if recent is not None else f"nothing has run{where or later}"
    hint = ""
    if elsewhere is not None:
        n = elsewhere.process
        what = f"has {cell(number)}" if number is not None else "has some"
        how = how_ended(elsewhere, by_whom=False)
        hint = f" Process {n}, which {how} at {clock(elsewhere.at)}, {what}: pass process={n}."
    return refuse("execution_not_found", missing=missing, recent=known, elsewhere=hint)


def process_not_found(process: int, kernel: str, readable: Sequence[int]) -> Refusal:
    """`readable` are the processes whose records can be read."""
    known = "readable: " + ", ".join(map(str, readable)) if readable else "there are none yet"
    return refuse("process_not_found", process=process, kernel=one_line(kernel), readable=known)


def kernel_not_found(name: str, known: Sequence[str], gone: str = "", hint: str = "") -> Refusal:
    """`known` are the kernels that the caller could mean; `gone` says what became of the one it does.

    `hint` is what the caller may do.
    """
    there = f"there {'is' if len(known) == 1 else 'are'} {', '.join(map(one_line, known)) or 'none'}"
    return refuse("kernel_not_found", name=one_line(repr(name)), known="; ".join(filter(None, [gone, there, hint])))


def kernel_closed(kernel: str, *, unknown: bool = False) -> Refusal:
    """It was closed while the call waited for its process; `unknown`: the cell was on its way and may have begun."""
    what = "whether the cell has begun is not known" if unknown else "so nothing was run"
    why = f"it was closed while this call waited for its process, {what}"
    return refuse("kernel_not_found", name=one_line(repr(kernel)), known=why)


def kernel_died(death: Death, kernel: str, lost: int | None = None, *, unknown: bool = False) -> Refusal:
    """`lost` is the number of the execution that the death ended, None if it was idle.

    `unknown`: nobody can tell whether the cell has begun.
    """
    return refuse(
        "kernel_died", process=death.process, kernel=one_line(kernel), how=how_ended(death),
        clock=clock(death.at, seconds=True), memory=memory(death), company=company(death),
        lost=f" {cell(lost)} was killed." if lost is not None else "", stacks=stacks(death),
        undone=NOT_KNOWN if unknown else NOT_RUN,
    )  # fmt: skip


def kernel_start_failed(kernel: str, reason: str, log: str) -> Refusal:
    """`log` is the end of the process's own log, at most 20 lines."""
    tail = f"\nLast lines of its log:\n{visible(log.rstrip())}" if log.strip() else " Its log is empty."
    return refuse("kernel_start_failed", kernel=one_line(kernel), reason=one_line(reason, 500).rstrip("."), log=tail)


def kernel_unresponsive(kernel: str, seconds: float, undone: str, held_at: str | None = None) -> Refusal:
    """`undone` says in a sentence what was not done, or is not known to be; `held_at` is what `StatusAnswer` has."""
    why = "" if held_at is None else f" {held(held_at)}"
    return refuse("kernel_unresponsive", kernel=one_line(kernel), elapsed=duration(seconds), undone=undone, why=why)


def held(place: str) -> str:
    """Why no cell can run though none runs."""
    return (
        f"Its main thread is held by what an earlier cell left running, at {one_line(place, 300)}."
        " No cell can run until that lets go; restart() ends it."
    )


def stacks(death: Death) -> str:
    """The Python stacks at a fatal signal, as lines that follow a sentence."""
    return f"\n{BESIDE_OUTPUT['stacks']}\n{death.stacks.rstrip()}" if death.stacks else ""


def _interrupt(number: int | None) -> str:
    return "interrupt()" if number is None else f"interrupt(execution={number})"
