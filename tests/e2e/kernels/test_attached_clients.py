"""People and their programs at the agent's kernel, by Jupyter's protocol: numbers, stdin, comms, history, restarts."""

from __future__ import annotations

import ast
import asyncio
import re
import stat
from pathlib import Path

import pytest

from tests.e2e.driving import Agent, Place, Start, attached, foreign, text_of, until

pytestmark = pytest.mark.anyio


async def test_while_a_client_floods_cells_no_number_is_lost_or_doubled_on_either_side(start: Start) -> None:
    async with start() as agent:
        await agent.run("ran = []")
        async with attached(agent) as client:
            sent = [client.execute(f"ran.append(('client', {n}, len(In) - 1))") for n in range(60)]
            taken: dict[int, str] = {1: "agent"}
            for n in range(20):
                text = text_of(await agent.call("run_cell", freeform=f"ran.append(('agent', {n}, len(In) - 1))"))
                if not text.startswith("busy"):
                    taken[int(re.match(r"In \[(\d+)\]", text)[1])] = "agent"  # type: ignore[index]
            for _ in sent:
                reply = await client.get_shell_msg(timeout=30)
                assert reply["content"]["status"] == "ok"
                number = reply["content"]["execution_count"]
                assert number not in taken
                taken[number] = "client"

            async def is_idle() -> bool:  # the client may have had its reply before the server has heard of it
                return ": running, idle for " in await agent.text("status")

            await until(is_idle)
            await agent.run("told = [(who, number) for who, _, number in ran]")
            shown = await agent.run("print(told)")
            ran = {number: who for who, number in ast.literal_eval(shown.splitlines()[1])}
        assert sorted(taken) == list(range(1, len(taken) + 1)), "none is lost, none doubled"
        assert {n: who for n, who in taken.items() if n > 1} == ran, (
            "the numbers of replies and results are IPython's own"
        )


async def test_the_kernel_waits_for_a_clients_input_says_so_and_is_freed_when_the_client_has_gone(start: Start) -> None:
    async with start() as agent:
        await agent.run("1")
        async with attached(agent) as client:
            client.execute("input('who? ')", allow_stdin=True)
            await client.get_stdin_msg(timeout=30)

            async def told() -> bool:
                return "In [2] waits for input from " in await agent.text("status")

            await until(told)
            assert ", and waits for that client's input. Nothing was run." in await agent.refusal(
                "run_cell", freeform="1"
            )
        assert (await agent.text("interrupt", execution=2)).startswith("interrupted")
        assert "Out[3]: 3" in await agent.run("3")


async def test_a_client_that_is_interrupted_by_the_agent_is_told_by_whom(start: Start) -> None:
    async with start() as agent:
        await agent.run("1")
        async with attached(agent) as client:
            said: list[str] = []
            running = asyncio.create_task(
                client.execute_interactive(
                    "import time; time.sleep(60)",
                    output_hook=lambda m: said.append(m["content"].get("text", "")),
                    timeout=60,
                )
            )

            async def begun() -> bool:
                return "Running: In [2]" in await agent.text("status")

            await until(begun)
            await agent.text("interrupt", execution=2)
            await running
            assert re.search(r"^Interrupted by session \S+\.$", "".join(said), re.M)


async def test_history_is_of_everybody_and_the_servers_own_messages_are_not_sent_to_clients(start: Start) -> None:
    async with start() as agent:
        await agent.run("first = 1")
        async with attached(agent) as client:
            await foreign(client, "second = 2")
            reply = await client.history(n=5, reply=True, timeout=30)  # type: ignore[misc]
            assert [source for _, _, source in reply["content"]["history"]] == ["first = 1", "second = 2"]
            await agent.run("third = 3")
            kinds = set()
            while "third = 3" not in str(message := await client.get_iopub_msg(timeout=30)):
                kinds.add(message["msg_type"])
            assert not any(kind.startswith("loommux") for kind in kinds), kinds


async def test_a_connection_file_is_private_stays_the_same_and_goes_with_the_kernel(start: Start, place: Place) -> None:
    def files() -> list[Path]:
        return list(place.runtime.iterdir())

    async with start() as agent:
        await agent.run("1")
        (file,) = files()
        assert re.fullmatch(r"kernel-loommux-[a-z0-9-]{1,40}-[0-9a-f]{8}\.json", file.name)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        before = file.read_text(), file.stat().st_mtime_ns
        await _restarted(agent)
        assert files() == [file]
        assert (file.read_text(), file.stat().st_mtime_ns) == before
    assert files() == []


async def _restarted(agent: Agent) -> None:
    assert (await agent.text("restart")).startswith("restarted")
    await agent.run("1")
