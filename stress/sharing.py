"""Clients of one kernel: MCP sessions and an attached Jupyter client. Each sees its own text, under its own number."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient

from stress import truth
from stress.cells import SHARED, Cell, one_of
from stress.desks import Answer, Desk
from stress.truth import INTERRUPTED, KILLED, Untrue, demand

#: What a cell runs as well: how often it has run, so that a second time would be seen.
COUNTED = "ran = globals().get('ran', {{}}); assert {token!r} not in ran; ran[{token!r}] = 1\n"
#: Seconds in which a kernel that died has its next process, for a client that cannot be told.
REPLY = 30.0


@dataclass
class Ledger:
    """What all clients of a shared kernel know together."""

    name: str
    accepted: dict[tuple[int, int], str] = field(default_factory=dict)
    interrupted: set[tuple[int, int]] = field(default_factory=set)
    #: How often somebody has ended the kernel's process, or tried to; how many of these are over.
    ends: int = 0
    over: int = 0

    def accept(self, process: int, number: int, token: str) -> None:
        owner = self.accepted.setdefault((process, number), token)
        demand(owner == token, f"In [{number}] of process {process} is both {owner} and {token}")


class Sharer:
    """One MCP session of the shared kernel."""

    def __init__(self, name: str, desk: Desk, chance: Random, did: Counter[str], ledger: Ledger) -> None:
        self.name, self.desk, self.chance, self.did, self.ledger = name, desk, chance, did, ledger
        self._made = 0

    async def open(self) -> None:
        await self._submit("None")  # opens the kernel, or is busy

    async def step(self) -> None:
        self._made += 1
        cell = one_of(SHARED, f"{self.name}x{self._made}", self.chance)
        wait, ends = self.chance.choice([0.1, 20]), self.ledger.ends
        self.ledger.ends += cell.death is not None
        header = f"%%loommux --wait {wait} --silence {wait}\n"
        answer = await self._submit(header + COUNTED.format(token=cell.token) + cell.source)
        if answer.status == "busy":
            self.did["busy"] += 1
            self.ledger.over += cell.death is not None
            await self._other(answer)
            return
        self.did[f"cell {cell.kind}"] += 1
        await self._to_its_end(cell, answer, ends)

    async def _call(self, tool: str, **arguments: Any) -> Answer:
        answer = await self.desk.call(tool, **arguments)
        name = (answer.fields.get("kernel") or {}).get("name")
        demand(name in (None, self.ledger.name), f"it is about the kernel {name}", answer)
        return answer

    async def _submit(self, source: str) -> Answer:
        while (answer := await self._call("run_cell", freeform=source)).status == "kernel_died":
            self.did["told of a death"] += 1
            demand(self.ledger.ends > 0, "nobody has ended a process", answer)
        return answer

    async def _to_its_end(self, cell: Cell, answer: Answer, ends: int) -> None:
        demand(not answer.refused, "it is refused for no reason", answer)
        process, number = answer.fields["process"], answer.fields["execution"]
        self.ledger.accept(process, number, cell.token)
        at = {"execution": number, "process": process}
        if answer.status == "running" and self.chance.random() < 0.3:
            self.did["interrupt"] += 1
            self.ledger.interrupted.add((process, number))
            await self._call("interrupt", execution=number)
        elif answer.status == "running" and self.chance.random() < 0.05:
            self.did["restart"] += 1
            self.ledger.ends += 1
            await self._call("restart")
            self.ledger.over += 1
        while answer.status == "running":
            self.did["wait"] += 1
            answer = await self._call("wait", **at, timeout_seconds=30)
            truth.about(answer, process, number)
        allowed = {INTERRUPTED} if (process, number) in self.ledger.interrupted else set[str]()
        if self.ledger.ends > ends + (cell.death is not None):
            allowed.add(KILLED)
        truth.ended(answer, cell, allowed)
        self.ledger.over += cell.death is not None

    async def _other(self, busy: Answer) -> None:
        """Somebody else's cell: what is told of it is its own."""
        running = re.search(r"In \[(\d+)\]", busy.text)
        if running is None:
            return
        number, process = int(running[1]), busy.fields["kernel"]["process"]
        answer = await self._call("execution_status", execution=number, process=process)
        if answer.refused:
            return  # its process may be long gone
        truth.about(answer, process, number)
        owner = self.ledger.accepted.get((process, number))
        demand(owner is None or owner in answer.fields["source"], f"it is the cell of {owner}", answer)
        self.did["looks at others"] += 1


class Attached:
    """A foreign Jupyter client of the same kernel."""

    def __init__(self, name: str, file: str, chance: Random, did: Counter[str], ledger: Ledger) -> None:
        self.name, self.chance, self.did, self.ledger = name, chance, did, ledger
        self._client: Any = AsyncKernelClient(connection_file=file)
        self._made = 0
        #: How many ends there had been when a cell was last heard as a whole.
        self._whole = 0

    async def open(self) -> None:
        self._client.load_connection_file()
        self._client.start_channels()
        await self._client.wait_for_ready(timeout=60)

    def close(self) -> None:
        self._client.stop_channels()

    async def step(self) -> None:
        self._made += 1
        token, count, ends = f"{self.name}x{self._made}", self.chance.randint(1, 30), self.ledger.ends
        # A new process may take a cell before the client's other connection, which carries output, is there again.
        deaf = ends > min(self._whole, self.ledger.over)
        source = COUNTED.format(token=token) + f"for i in range({count}): print('{token}', i)"
        text: list[str] = []

        def heard(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                text.append(message["content"]["text"])

        try:
            run = self._client.execute_interactive(source, output_hook=heard, allow_stdin=False, timeout=REPLY)
            reply = (await asyncio.wait_for(run, REPLY + 5))["content"]
        except TimeoutError:
            demand(deaf or self.ledger.ends > ends, f"{token} was never answered, and nobody has ended the kernel")
            self.did["lost with its process"] += 1
            return
        said = "".join(text)
        expected = "".join(f"{token} {i}\n" for i in range(count))
        died = self.ledger.ends > ends
        if reply["status"] == "ok":
            part = (died and expected.startswith(said)) or (deaf and expected.endswith(said))
            demand(said == expected or part, f"{token} has the output {said!r}")
            self.did["cell attached"] += 1
            if said == expected:
                self._whole = ends
            else:
                self.did["heard in part"] += 1
        elif not died:
            raise Untrue(f"{token} ended as {reply}")
        await asyncio.sleep(self.chance.choice([0.05, 0.5]))
