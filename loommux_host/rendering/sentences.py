"""The sentences of results: an answer's facts in the words of contract 3.2, 4 and 5.

Pure functions from answers to lines of text. They know neither limits nor blocks nor the
envelope: `message` calls them and puts the lines together. Words and templates are in
`facts.status_words`, short pieces in `facts.phrases`.
"""

from __future__ import annotations

from collections.abc import Iterator

from loommux_host.facts.phrases import (
    amount,
    cell,
    clock,
    company,
    duration,
    error,
    first_line,
    how_ended,
    memory,
    not_ended,
    one_line,
    plural,
    programs,
    sender,
    silence,
)
from loommux_host.facts.refusals import held, stacks
from loommux_host.facts.result_limits import EXCERPT_LINE_CHARACTERS, RECENT_LINES, SOURCE_CHARACTERS
from loommux_host.facts.results import (
    Answer,
    CellAnswer,
    Death,
    ExecutionFacts,
    ExecutionStatusAnswer,
    InterruptAnswer,
    KernelFacts,
    ReadAnswer,
    Refusal,
    RestartAnswer,
    SearchAnswer,
    StatusAnswer,
    WatchAnswer,
)
from loommux_host.facts.status_words import BESIDE_OUTPUT, INTERRUPTS, RESTARTS, STATES, WATCHES
from loommux_host.facts.watches import Watch
from loommux_kernel.shared.protocol import State


def heading(facts: ExecutionFacts, now: float) -> str:
    """``In [7] · 54.3 s:``"""
    return BESIDE_OUTPUT["heading"].format(cell=cell(facts.number), duration=duration(facts.elapsed(now)))


def cut(line: str) -> str:
    """A line of output where only some are shown: at most 200 characters, the last one ``…`` if cut."""
    return line if len(line) <= EXCERPT_LINE_CHARACTERS else line[: EXCERPT_LINE_CHARACTERS - 1] + "…"


def running(answer: CellAnswer) -> list[str]:
    """What is said of a cell that goes on, with its last lines."""
    silent = f", silent for {silence(answer.silent_seconds)}" if answer.silent_seconds is not None else ""
    lines = [STATES["running"].text.format(silence=silent)]
    if answer.ended_by == "shutdown":
        why = (answer.server_ends_by or "the server is shutting down").removeprefix("the server ")
        lines.append(BESIDE_OUTPUT["shutdown"].format(why=why))
    recent = [line for line in answer.recent if line.strip()][-RECENT_LINES:]
    if recent:
        lines += [BESIDE_OUTPUT["recent"], *(f"  {cut(line)}" for line in recent)]
    return lines


def ending(facts: ExecutionFacts, kernel: KernelFacts | None) -> list[str]:
    """How an execution ended, when its output does not say it."""
    if facts.state is State.INTERRUPTED:
        return [STATES["interrupted"].text]
    return [killed(facts.death or Death(facts.process, 0.0, "exit"), kernel)] if facts.state is State.KILLED else []


def killed(death: Death, kernel: KernelFacts | None) -> str:
    """How a process ended that took a cell with it."""
    following = "the next cell runs in a new process"
    if kernel is not None and kernel.process > death.process:
        following = f"the next cell runs in process {kernel.process}"
    elif death.cause in ("shutdown", "recycle"):
        following = "nothing more runs in this kernel"
    said = STATES["killed"].text.format(
        process=death.process, how=how_ended(death), memory=memory(death), company=company(death), next=following
    )
    return said + stacks(death)


def environment(answer: Answer) -> Iterator[str]:
    """The lines of the envelope, in order."""
    for notice in answer.notices:
        yield f"{one_line(notice.label, 300)} · {notice.text}" if notice.label else notice.text
    facts: ExecutionFacts | None = getattr(answer, "execution", None)
    if facts is not None and getattr(answer, "older_process", False):
        now_in = f"process {answer.kernel.process}" if answer.kernel else "the present process"
        yield f"Shown: {cell(facts.number)} of process {facts.process}, because {now_in} has no executions yet."
    if facts is not None and facts.dropped:
        yield f"Records of {cell(facts.number)} are incomplete: {facts.dropped}"
    if answer.kernel is not None and answer.kernel.stale_seconds is not None and not isinstance(answer, StatusAnswer):
        yield not_answering(answer.kernel.stale_seconds)
    if answer.binding:
        yield answer.binding if answer.binding.startswith("Kernel: ") else f"Kernel: {answer.binding}"
    if answer.lease_alert:
        yield (
            answer.lease_alert if answer.lease_alert.startswith("Lease alert") else f"Lease alert: {answer.lease_alert}"
        )


def not_answering(seconds: float) -> str:
    return f"The kernel has not answered for {duration(seconds)}; this is what was last known of it."


def refusal(answer: Refusal) -> str:
    """``busy: In [7] of …``"""
    prefix = f"{answer.status}: "
    return answer.message if answer.message.startswith(prefix) else prefix + answer.message


def read_heading(answer: ReadAnswer, *, whole: bool = True) -> str:
    """``[lines 20–40 of 12,044]``, ``[lines 3–3 of 12, characters 201–400 of 10,000; start_char=401 reads on]``

    `whole`: its lines follow, and not only some of them.
    """
    total = f"{answer.total.lines:,}"
    if answer.first > answer.last:
        return BESIDE_OUTPUT["read_none"].format(total=total)
    return BESIDE_OUTPUT["read"].format(
        first=f"{answer.first:,}", last=f"{answer.last:,}", total=total, columns=_columns(answer, whole)
    )


def _columns(answer: ReadAnswer, whole: bool) -> str:
    """Which characters of its lines a read holds, when that is not all."""
    begin, length = answer.start_char, answer.line_characters
    if length is None:
        return f", from character {begin:,} on" if begin > 1 else ""
    if begin > max(1, length):
        return f", no character {begin:,}: it has {length:,}"
    end = length if answer.max_chars is None else min(length, begin + answer.max_chars - 1)
    if (begin, end) == (1, length) or not length:
        return ""
    on = f"; start_char={end + 1} reads on" if whole and end < length else ""
    return f", characters {begin:,}–{end:,} of {length:,}{on}"


def search_heading(answer: SearchAnswer) -> str:
    """``[3 matching lines, 4 matches, of 12,044]``"""
    result = answer.result
    if result is None:
        return BESIDE_OUTPUT["search_none"]
    matching, matches = plural(result.matching_lines, "matching line"), plural(result.matches, "match", "matches")
    return BESIDE_OUTPUT["search"].format(matching=matching, matches=matches, total=f"{result.total_lines:,}")


def interrupt(answer: InterruptAnswer) -> list[str]:
    """What an interrupt did, and which processes it could not reach."""
    facts = answer.execution
    said = INTERRUPTS[answer.result].text.format(
        cell=cell(facts.number if facts else answer.asked),
        kernel=one_line(answer.kernel.name) if answer.kernel else "the kernel",
        elapsed=duration(facts.elapsed(answer.now)) if facts else "",
        state=facts.state if facts else "",
        detail=answer.detail or _not_running(answer),
    )
    lines = [said]
    if answer.ended_processes:
        lines.append(f"Ended: {plural(answer.ended_processes, 'process', 'processes')} that it had started.")
    if answer.still_alive:
        lines.append(f"Still alive, although they were signalled: {programs(answer.still_alive)}.")
    if answer.survivors:
        lines.append(f"Left alone, because they have left the kernel's session: {programs(answer.survivors)}.")
    return lines


def _not_running(answer: InterruptAnswer) -> str:
    if answer.result != "not_running":
        return ""
    return f"; its state is {answer.execution.state}" if answer.execution else "; there is none with that number"


def restart(answer: RestartAnswer) -> list[str]:
    """What a restart ended and what runs now."""
    old = f"process {answer.old_process}" + (f" (pid {answer.old_pid})" if answer.old_pid else "")
    lines = [
        RESTARTS["restarted"].text.format(
            new=answer.new_process, new_pid=answer.new_pid, old=old if answer.old_process else "none"
        )
    ]
    ended = []
    if answer.ended_execution:
        ended.append(
            f"{cell(answer.ended_execution.number)} after {duration(answer.ended_execution.elapsed(answer.now))}"
        )
    if answer.ended_processes:
        ended.append(plural(answer.ended_processes, "child process", "child processes"))
    if answer.ended_watches:
        word = "watch" if len(answer.ended_watches) == 1 else "watches"
        ended.append(f"{word} {', '.join(map(one_line, answer.ended_watches))}")
    lines.append(f"Ended with it: {', '.join(ended)}." if ended else "No cell and no other process was running.")
    if answer.goes_on:
        lines.append(f"Goes on, sent by its code to other kernels: {', '.join(answer.goes_on)}.")
    if answer.left:
        lines.append(not_ended(answer.left))
    if answer.attached_clients:
        lines.append(f"Attached clients, which stay connected: {', '.join(map(one_line, answer.attached_clients))}.")
    if answer.old_process:
        lines.append(f"Records: process={answer.old_process}.")
    return lines


def watch_word(answer: WatchAnswer) -> str:
    """What became of the watch that was waited for."""
    watch = answer.watch
    if watch is None or watch.pending:
        return "watch_running"
    return {None: "watch_ended", "error": "watch_failed"}.get(watch.outcome) or f"watch_{watch.outcome}"


def watch(answer: WatchAnswer) -> list[str]:
    """The watch that ended, or those that go on, and where their output is."""
    one, word = answer.watch, watch_word(answer)
    ended = one is not None and not one.pending
    going = answer.pending if one is None or ended else [one]
    gone = answer.kernel is not None and answer.kernel.process > answer.process
    said = WATCHES[word].text.format(
        running=", ".join(_watch(watch, answer.now) for watch in going),
        name=one_line(one.name) if one else "",
        elapsed=duration((one.ended_at or answer.now) - one.started_at) if one else "",
        error=one_line(": ".join(filter(None, (one.ename, one.evalue))), 500) if one else "",
        because=f"; process {answer.process} has ended" if gone else "",
    )
    lines = [said]
    if one is not None and one.number is not None:
        process = f", process={answer.process}" if gone else ""
        lines.append(f"Its output is in {cell(one.number)}: read_output(execution={one.number}{process}).")
    if ended:
        lines.append(_named("Still pending", [watch.name for watch in answer.pending]))
    return [line for line in lines if line]


def _watch(watch: Watch, now: float) -> str:
    return f"{one_line(watch.name)} ({duration(now - watch.started_at)})"


def execution_status(answer: ExecutionStatusAnswer) -> list[str]:
    """One execution without its output."""
    facts = answer.execution
    if facts is None:
        return []
    silent = f", silent for {silence(answer.silent_seconds)}" if answer.silent_seconds is not None else ""
    pid = f", pid {facts.kernel_pid}" if facts.kernel_pid else ""
    times = [f"started {clock(facts.started_at, seconds=True)}", f"last news {clock(facts.updated_at, seconds=True)}"]
    if facts.completed_at is not None:
        times[1] = f"ended {clock(facts.completed_at, seconds=True)}"
    sent = f"sent by {sender(facts.origin)} at {clock(facts.submitted_at, seconds=True)}"
    late = f"; {plural(facts.late_lines, 'line')} of it after its end" if facts.late_lines else ""
    lines = [
        f"{heading(facts, answer.now)} {facts.state}{silent}",
        f"Process {facts.process}{pid}; {sent}, {', '.join(times)}.",
        f"Output: {amount(facts.counts)}{late}.",
    ]
    if facts.state is State.ERROR:
        lines.append(f"Error: {error(facts)}")
    return [*lines, *ending(facts, answer.kernel), *_whole_source(facts)]


def status(answer: StatusAnswer) -> list[str]:
    """The kernel: name first; what there is none of is left out."""
    kernel = answer.kernel
    lines = [_state(answer)]
    if kernel is not None and kernel.stale_seconds is not None:
        lines.append(not_answering(kernel.stale_seconds))
    if answer.held_at is not None:
        lines.append(held(answer.held_at))
    lines += [f"Workspace: {one_line(answer.workspace, 1000)} ({answer.workspace_resolution})"]
    why = f" ({answer.python_why})" if answer.python_why else ""
    lines += [f"Python: {one_line(answer.python, 1000)}{why}"]
    shown = answer.current or answer.recent
    if shown is not None:
        word = "Running" if answer.current else "Most recent"
        lines.append(f"{word}: {_row(shown, answer.now)} · sent by {sender(shown.origin)}")
    if answer.waiting_for_input:
        lines.append(f"{answer.waiting_for_input}.")
    if answer.last_five:
        lines += [
            "Last executions:",
            *(f"  {_row(facts, answer.now)} · {_source(facts)}" for facts in answer.last_five),
        ]
    else:
        lines.append("No executions in this process.")
    lines += [_named("Children", answer.children), _named("Watches", answer.watches)]
    lines += [_named("Others here", answer.others)]
    ended = [f"{d.process} ({how_ended(d)} at {clock(d.at)})" for d in answer.deaths]
    lines += [_named("Earlier processes with records", ended)]
    lines.append(f"Attach: {one_line(answer.attach_command, 2000)}" if answer.attach_command else "")
    if answer.last_notices:
        lines += ["Last notices:"]
        lines += [
            f"  {one_line(n.label, 300)} · {_notice(n.text)}" if n.label else f"  {_notice(n.text)}"
            for n in answer.last_notices
        ]
    return [line for line in lines if line]


def _state(answer: StatusAnswer) -> str:
    kernel = answer.kernel
    if kernel is None:
        return answer.state
    doing = ", busy" if kernel.busy else ""
    if answer.idle_since is not None and not kernel.busy:
        doing = f", idle for {duration(answer.now - answer.idle_since)}"
    pid = f", pid {kernel.pid}" if kernel.pid else ""
    since = f", since {clock(answer.started_at, seconds=True)}" if answer.started_at is not None else ""
    process = f" · process {kernel.process}" if kernel.process else ""
    return f"{one_line(kernel.name, 256)}: {answer.state}{doing}{process}{pid}{since}"


def _row(facts: ExecutionFacts, now: float) -> str:
    return f"{cell(facts.number)} · {facts.state} · {duration(facts.elapsed(now))}"


def _source(facts: ExecutionFacts) -> str:
    return first_line(facts.source) or "(blank)"


def _whole_source(facts: ExecutionFacts) -> Iterator[str]:
    """The cell as it was sent, as far as it is not too long to be looked at."""
    lines = facts.source.strip("\n").split("\n")
    if len(lines) == 1:
        yield f"Source: {one_line(lines[0], SOURCE_CHARACTERS) or '(blank)'}"
        return
    yield "Source:"
    room = SOURCE_CHARACTERS
    for n, line in enumerate(lines):
        room -= len(line)
        if room < 0:
            yield f"  … {plural(len(lines) - n, 'more line')}"
            return
        yield f"  {one_line(line, SOURCE_CHARACTERS)}"


def _named(what: str, names: list[str]) -> str:
    return f"{what}: {', '.join(one_line(name) for name in names)}" if names else ""


def _notice(text: str) -> str:
    return one_line(text, 500)
