"""The oracle: what an answer about a cell has to be. Raises `Untrue`; knows no client and no clock."""

from __future__ import annotations

import re

from stress.cells import Cell
from stress.desks import Answer

INTERRUPTED, KILLED = "interrupted", "killed"


class Untrue(Exception):
    """Something a server said, or left out, is not so."""


def demand(true: bool, what: str, answer: Answer | None = None) -> None:
    if not true:
        raise Untrue(f"{what}\n{answer.text[:1500]}\n{str(answer.fields)[:1500]}" if answer else what)


def about(answer: Answer, process: int, number: int) -> None:
    """An answer is about that execution, in its fields and in its text."""
    said = (answer.fields.get("process"), answer.fields.get("execution"))
    demand(said == (process, number), f"it is about {said}, not about {(process, number)}", answer)
    if named := re.match(r"In \[(\d+)\]", answer.text):
        demand(int(named[1]) == number, f"its text is about In [{named[1]}]", answer)
    if answer.status == "running":
        ended = f"Process {process} (?:ended|exited|was)"
        demand(not re.search(ended, answer.text), "it says running, and that its process has ended", answer)


def ended(answer: Answer, cell: Cell, allowed: set[str]) -> None:
    """A result of a cell that ended: as it ends by itself, or stopped in a way that is `allowed`."""
    state = answer.status
    demand(state == cell.state or state in allowed, f"{cell.kind} {cell.token} cannot have ended as {state}", answer)
    by_itself = state == cell.state and not (state == KILLED and KILLED in allowed)
    if by_itself:
        _whole(answer, cell)
    else:
        _beginning(answer, cell)
    _consistent(answer, state)


def _whole(answer: Answer, cell: Cell) -> None:
    fields = answer.fields
    ename = (fields["error"] or {}).get("ename", "")
    demand(ename == cell.ename, f"the error is {ename!r}, not {cell.ename!r}", answer)
    if not cell.traceback:
        text = cell.stdout + cell.stderr + (f"Out[{fields['execution']}]: {cell.result}" if cell.result else "")
        counts = (text.count("\n"), len(text), len(text.encode()))
        said = tuple(fields[f"output_total_{what}"] for what in ("lines", "characters", "utf8_bytes"))
        if cell.death is None:  # faulthandler writes its stacks there
            demand(said == counts, f"the output counts {said}, not {counts}", answer)
    if cell.death is not None:
        death = fields["death"] or {}
        how = death.get("signal") if isinstance(cell.death, str) else death.get("exit_code")
        demand(how == cell.death, f"the process ended by {how}, not by {cell.death}", answer)
    if fields["output_omitted"]:
        last = cell.stdout.split("\n")[-21:-1]
        demand(fields["tail_lines"] == last, "the last lines are not its last lines", answer)
        return
    demand(fields["stdout"] == cell.stdout, f"stdout is not {cell.stdout[:300]!r}", answer)
    demand(fields["result_text"] == cell.result, f"the result is not {cell.result!r}", answer)
    if cell.death is None:
        demand(fields["stderr"] == cell.stderr, f"stderr is not {cell.stderr[:300]!r}", answer)
    if cell.kind == "both":
        lines = zip(cell.stdout.splitlines(True), cell.stderr.splitlines(True), strict=True)
        together = "".join(line for pair in lines for line in pair)
        demand(fields["output_text"] == together, "the order across stdout and stderr is not kept", answer)


def _beginning(answer: Answer, cell: Cell) -> None:
    """A cell that was stopped has written the beginning of what it would have."""
    stdout = answer.fields["stdout"]
    if stdout is not None and cell.steady:
        demand(cell.stdout.startswith(stdout.removesuffix("\n")), "what it wrote is not its beginning", answer)


def _consistent(answer: Answer, state: str) -> None:
    """Text and fields say the same."""
    lines = answer.text.split("\n<loommux-notice>")[0].split("\n")
    says = {INTERRUPTED: lines[-1] == "Interrupted.", KILLED: any(line.startswith("Killed: ") for line in lines)}
    for word, said in says.items():
        demand(said == (word == state), f"text and fields differ over {word}", answer)
    if (shown := answer.fields["output_text"]) is not None:
        for line in shown.splitlines():
            demand(line in answer.text, f"the text lacks the line {line!r}", answer)


def line_of(answer: Answer, cell: Cell, line: int) -> None:
    """A read of one line of stdout."""
    expected = cell.stdout.split("\n")[line - 1]
    demand(answer.fields["text"] == expected, f"line {line} is not {expected!r}", answer)


def found_once(answer: Answer, cell: Cell, line: int) -> None:
    """A search for the whole of one line of stdout."""
    expected = f"M {line} | " + cell.stdout.split("\n")[line - 1]
    demand(answer.fields["text"] == expected, f"it does not find {expected!r} alone", answer)
