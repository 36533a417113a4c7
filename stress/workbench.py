"""One client with a kernel of its own: it knows what every number, state and line has to be."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from dataclasses import dataclass
from random import Random
from typing import Any

from stress import truth
from stress.cells import PRIVATE, Cell, one_of
from stress.desks import Answer, Desk
from stress.truth import INTERRUPTED, KILLED, Untrue, demand

#: How often a client meddles with a running cell before it waits for its end.
MEDDLING = 4
#: Seconds in which what was given up has to be settled.
SETTLED = 60.0


@dataclass
class Done:
    """An execution that ended, for looking back."""

    cell: Cell
    process: int
    number: int
    state: str


class Workbench:
    """See the module. `kernel` is what a modern client passes in each call."""

    def __init__(self, name: str, desk: Desk, chance: Random, did: Counter[str], *, gives_up: bool = True) -> None:
        self.name, self.desk, self.chance, self.did = name, desk, chance, did
        self.gives_up = gives_up
        self.process, self.number = 1, 1
        self.kernel: dict[str, str] = {}
        self._id = ""
        self._made = 0
        self._deaths_untold = 0
        self._past: deque[Done] = deque(maxlen=30)

    async def open(self) -> None:
        """The first cell opens the kernel."""
        answer = await self.desk.call("run_cell", freeform="'opened'")
        truth.about(answer, 1, 1)
        self._id = answer.fields["kernel"]["id"]
        if "kernel=k_" in answer.text:
            self.kernel = {"kernel": answer.text.partition("kernel=")[2].split(" ")[0].rstrip(")")}
        self.number = 2

    async def step(self) -> None:
        """One cell from its submission to its end, then perhaps a look back."""
        self._made += 1
        cell = one_of(PRIVATE, f"{self.name}x{self._made}", self.chance)
        self.did[f"cell {cell.kind}"] += 1
        if self.gives_up and cell.death is None and self.chance.random() < 0.2:
            await self._given_up(cell)
        else:
            await self._run(cell)
        if self._past and self.chance.random() < 0.5:
            await self._look_back(self.chance.choice(self._past))

    async def _call(self, tool: str, **arguments: Any) -> Answer:
        answer = await self.desk.call(tool, **arguments, **self.kernel)
        said = (answer.fields.get("kernel") or {}).get("id")
        demand(said == self._id, f"it is about the kernel {said}, not about {self._id}", answer)
        return answer

    async def _submit(self, source: str) -> Answer:
        """The answer of a cell that was taken; a death that nobody was told of is told first, once."""
        answer = await self._call("run_cell", freeform=source)
        if answer.status == "kernel_died":
            self.did["told of a death"] += 1
            demand(self._deaths_untold > 0, "no process has died", answer)
            answer = await self._call("run_cell", freeform=source)
        self._deaths_untold = 0
        return answer

    async def _run(self, cell: Cell) -> None:
        wait = self.chance.choice([0.05, 0.3, 30])
        answer = await self._submit(f"%%loommux --wait {wait} --silence {wait}\n{cell.source}")
        demand(not answer.refused, "a cell of an idle kernel is refused", answer)
        truth.about(answer, self.process, self.number)
        await self._to_its_end(cell, answer)

    async def _to_its_end(self, cell: Cell, answer: Answer) -> None:
        allowed: set[str] = set()
        process, number = self.process, self.number
        for _ in range(MEDDLING):
            if answer.status != "running":
                break
            await self._meddle(cell, allowed, process, number)
            if KILLED in allowed:
                break
            answer = await self._wait(process, number, self.chance.choice([0.05, 0.5, 2]))
        while answer.status == "running":
            answer = await self._wait(process, number, 30)
        truth.about(answer, process, number)
        truth.ended(answer, cell, allowed)
        await self._details(answer, cell)
        self._past.append(Done(cell, process, number, answer.status))
        if KILLED in allowed:
            return  # the restart has said which process comes next
        if answer.status == KILLED:
            self._deaths_untold += 1
            self.process, self.number = process + 1, 1
        else:
            self.number = max(self.number, number + 1)

    async def _wait(self, process: int, number: int, seconds: float) -> Answer:
        self.did["wait"] += 1
        answer = await self._call("wait", execution=number, process=process, timeout_seconds=seconds)
        truth.about(answer, process, number)
        return answer

    async def _meddle(self, cell: Cell, allowed: set[str], process: int, number: int) -> None:
        """Something at a running cell; what it may have ended as from now on is added to `allowed`."""
        acts = [
            "busy",
            "status",
            "read_output",
            "search_output",
            "execution_status",
            "interrupt",
            "restart",
            "cut wait",
        ]
        act = self.chance.choices(acts, [3, 2, 3, 3, 2, 3, 1, 2 if self.gives_up else 0])[0]
        self.did[act] += 1
        at: dict[str, Any] = {"execution": number, "process": process}
        match act:
            case "busy":
                await self._probe(cell, process, number)
            case "status":
                answer = await self._call("status")
                running = answer.fields["current_execution"]
                demand(running in (None, number), f"it says that In [{running}] runs", answer)
            case "execution_status":
                answer = await self._call(act, **at)
                truth.about(answer, process, number)
                demand(answer.status in {"running", cell.state, *allowed}, "no such state is possible", answer)
            case "read_output":
                answer = await self._call(act, **at, stream="stdout", line_range="1:50")
                text = answer.fields["text"]
                demand(not cell.steady or cell.stdout.startswith(text), "what it wrote is not its beginning", answer)
            case "search_output":
                answer = await self._call(act, **at, query=cell.token, stream="stdout", max_chars=100)
                found = answer.fields["matching_lines"]
                demand(found == answer.fields["output_total_lines"], "a line is not its own", answer)
            case "interrupt":
                await self._interrupt(cell, allowed, process, number)
            case "restart":
                allowed.add(KILLED)
                answer = await self._call("restart")
                demand(answer.status == "restarted", "the kernel is not restarted", answer)
                demand(answer.fields["ended_execution"] in (None, number), "it ended another cell", answer)
                self.process, self.number = answer.fields["new_process"], 1
                demand(self.process > process, "the process is not a new one", answer)
            case _:
                await self._cut(self._call("wait", **at, timeout_seconds=30))

    async def _probe(self, cell: Cell, process: int, number: int) -> None:
        """A second cell: busy, or the first has ended and this one runs."""
        answer = await self._call("run_cell", freeform="'a probe'")
        if answer.status == "busy":
            demand(f"In [{number}]" in answer.text, "another cell runs", answer)
            return
        if answer.status == "kernel_died":
            demand(cell.death is not None, "no process has died", answer)
            return
        if cell.death is not None and not answer.refused and answer.fields["process"] == process + 1:
            raise Untrue(f"a death was not told before the next cell ran\n{answer.text}")
        truth.about(answer, process, number + 1)
        self.number = number + 2
        demand("'a probe'" in answer.text, "it is not the probe", answer)

    async def _interrupt(self, cell: Cell, allowed: set[str], process: int, number: int) -> None:
        allowed.add(INTERRUPTED)
        answer = await self._call("interrupt", execution=number)
        if answer.status == INTERRUPTED:
            truth.about(answer, process, number)
            state = await self._call("execution_status", execution=number, process=process)
            demand(state.status == INTERRUPTED, "it was not interrupted", state)
        elif answer.status == "interrupt_sent":
            self.did["interrupts outlived"] += 1
        else:
            truth_states = {
                "not_running",
                "ended",
                "completed",
                "error",
                "killed",
                "kernel_died",
                "idle",
                "execution_not_found",
            }
            demand(answer.status in truth_states, "no such answer is possible", answer)

    async def _given_up(self, cell: Cell) -> None:
        """The client leaves in the middle: the cell runs once, or never."""
        self.did["calls cut off"] += 1
        await self._cut(self._call("run_cell", freeform=f"%%loommux --wait 60\n{cell.source}"))
        async with asyncio.timeout(SETTLED):
            while (answer := await self._submit("'settled'")).status == "busy":
                await self._call("wait", timeout_seconds=1)
        number = answer.fields["execution"]
        demand(number in (self.number, self.number + 1), f"{self.number} is next", answer)
        truth.about(answer, self.process, number)
        if number == self.number + 1:
            self.did["went on without their client"] += 1
            ended = await self._wait(self.process, self.number, 1)
            truth.ended(ended, cell, set())
            await self._details(ended, cell)
            self._past.append(Done(cell, self.process, self.number, ended.status))
        self.number = number + 1

    async def _cut(self, call: Any) -> None:
        cutting = asyncio.ensure_future(call)
        await asyncio.wait({cutting}, timeout=self.chance.choice([0.0, 0.02, 0.2, 1]))
        cutting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await cutting

    async def _details(self, answer: Answer, cell: Cell) -> None:
        """Of a long output: one line read, one found."""
        if not answer.fields["output_omitted"] or answer.status != cell.state:
            return
        count = cell.stdout.count("\n")
        line = self.chance.randint(1, count)
        at = {"execution": answer.fields["execution"], "process": answer.fields["process"]}
        self.did["lines read"] += 1
        read = await self._call("read_output", **at, stream="stdout", line_range=f"{line}:{line}")
        truth.line_of(read, cell, line)
        whole = "^" + cell.stdout.split("\n")[line - 1] + "$"
        self.did["lines found"] += 1
        found = await self._call("search_output", **at, stream="stdout", query=whole, query_mode="regex")
        truth.found_once(found, cell, line)

    async def _look_back(self, done: Done) -> None:
        """A record does not change; records of the last three ended processes are kept."""
        if done.process < self.process - 3:
            return
        self.did["looks back"] += 1
        answer = await self._call("execution_status", execution=done.number, process=done.process)
        truth.about(answer, done.process, done.number)
        demand(answer.status == done.state, f"it ended as {done.state}", answer)
        demand(done.cell.token in answer.fields["source"], "it is the source of another cell", answer)
        answer = await self._call(
            "read_output", execution=done.number, process=done.process, stream="stdout", line_range=":9"
        )
        if done.cell.steady:
            demand(done.cell.stdout.startswith(answer.fields["text"]), "its output has changed", answer)
