"""Who works in which kernel over HTTP: real clients of both eras, kernels in memory."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.host.server.http_server import HttpServer, Raw, http_server, modern, tool_call
from tests.host.twins import Script, until

pytestmark = pytest.mark.anyio
FOREVER = "%%loommux --wait 0.3 --silence 0.3\nforever"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[HttpServer]:
    from tests.host.server.http_server import forever

    async with http_server(tmp_path, {FOREVER: forever}) as made:
        yield made


def line(text: str) -> str:
    """What the result's ``Kernel:`` line says; "" without one."""
    found = re.search(r"^Kernel: (.*)$", text, re.M)
    return found[1] if found else ""


def handle(text: str) -> str:
    found = re.search(r"kernel=(k_[\w-]+)", text)
    assert found, text
    return found[1]


# -- sessions -----------------------------------------------------------------------


async def test_eight_clients_at_once_without_a_name_have_eight_kernels(server: HttpServer) -> None:
    async with AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(server.agent()) for _ in range(8)]
        results = await asyncio.gather(*(agent.run("say") for agent in agents))
        assert len({line(text) for text in results}) == 8
        assert len(server.registry) == 8
        again = await asyncio.gather(*(agent.run("say") for agent in agents))
        assert all(text.startswith("In [2]") and not line(text) for text in again)


async def test_the_private_kernel_is_named_by_the_session_and_told_until_it_was_handed_over(server: HttpServer) -> None:
    async with server.http() as http:
        raw = await Raw.open(http)
        name = f"private-{raw.headers['mcp-session-id'][:8]}"
        assert f"Kernel: {name} (opened)" in (await raw.cell("say")).text
        assert "Kernel:" not in (await raw.cell("say")).text
    assert server.kernel(name).private


async def test_two_clients_with_one_name_share_a_kernel_and_are_told_of_each_others_cells(server: HttpServer) -> None:
    name = {"X-Loommux-Resource": "shared%20lab", "X-Loommux-Operator": "ann"}
    async with server.agent(**name) as ann:
        assert line(await ann.run("say")) == "shared lab (opened)"
        async with server.agent(**{**name, "X-Loommux-Operator": "bob"}) as bob:
            first = await bob.run("say")
            assert line(first) == "shared lab (attached; 1 earlier execution)"
            assert "run by others" not in first, "what was there before is no news"
            assert "1 cell was run by others since your last result: In [2] (completed, session bob)" in (
                await ann.run("say")
            )
            assert "In [3] (completed, session ann)" in await bob.text("status")
            assert "session ann" in await bob.text("status")
            assert len(server.leasing.held_by(server.kernel("shared lab"))) == 2
        assert len(server.leasing.held_by(server.kernel("shared lab"))) == 1
        assert (await ann.run("say")).startswith("In [4]")


async def test_two_openers_of_one_name_at_once_get_one_kernel(server: HttpServer) -> None:
    async with AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(server.agent(**{"X-Loommux-Resource": "lab"})) for _ in range(4)]
        results = await asyncio.gather(*(agent.call("run_cell", freeform="say") for agent in agents))
        assert server.names() == ["lab"]
        assert sum(not result.is_error for result in results) >= 1


@pytest.mark.parametrize("name", ["a%2Fb", "%00", "%ff", "x" * 300])
async def test_a_header_that_names_no_possible_kernel_is_refused(server: HttpServer, name: str) -> None:
    async with server.agent(**{"X-Loommux-Resource": name}) as agent:
        assert "invalid_argument: X-Loommux-Resource=" in await agent.refusal("run_cell", freeform="say")
    assert server.names() == []


async def test_an_unknown_policy_generation_is_refused_before_anything_is_opened(server: HttpServer) -> None:
    for generation in ("2", "x", "-1"):
        async with server.agent(**{"X-Loommux-Lease-Policy-Generation": generation}) as agent:
            refused = await agent.refusal("run_cell", freeform="say")
            assert f"X-Loommux-Lease-Policy-Generation={generation!r} is" in refused.replace("=2 ", "='2' ")
    assert server.names() == []


# -- attach ---------------------------------------------------------------------------


async def test_attach_moves_the_session_and_lets_go_of_its_private_kernel(server: HttpServer) -> None:
    async with server.agent() as owner, server.agent() as agent:
        await owner.run("%%loommux --attach lab --create\nsay")
        private = line(await agent.run("say")).partition(" ")[0]
        moved = await agent.run("%%loommux --attach lab\nsay")
        assert line(moved) == f"lab (attached; 1 earlier execution; let go of {private})"
        assert (await agent.run("say")).startswith("In [3]")
        await until(lambda: server.names() == ["lab"])
        assert not line(await agent.run("%%loommux --attach lab\nsay")), "attaching where one is changes nothing"
        by_id = server.kernel("lab").id
        assert not line(await agent.run(f"%%loommux --attach {by_id}\nsay"))


@pytest.mark.case("X23")
async def test_attach_to_a_missing_name_lists_the_main_kernels_and_opens_nothing(server: HttpServer) -> None:
    async with server.agent() as agent:
        await agent.run("%%loommux --attach lab --create\nsay")
        refused = await agent.refusal("run_cell", freeform="%%loommux --attach nowhere\nsay")
        assert "kernel_not_found: there is no kernel 'nowhere'; there is lab; --create opens it." in refused
        assert server.names() == ["lab"]
        refused = await agent.refusal("run_cell", freeform="%%loommux --attach 'a/b' --create\nsay")
        assert "invalid_cell_header: --attach needs a printable name without /, or an id, got 'a/b'." in refused


async def test_a_session_that_attaches_first_never_opens_a_private_kernel(server: HttpServer) -> None:
    async with server.agent() as agent:
        assert line(await agent.run("%%loommux --attach lab --create\nsay")) == "lab (opened)"
        assert server.names() == ["lab"]


async def test_a_session_whose_kernel_was_recycled_is_told_so_with_its_next_one(server: HttpServer) -> None:
    async with server.agent() as agent, server.http() as http:
        old = line(await agent.run("say")).partition(" ")[0]
        id = server.kernel(old).id
        assert (await http.post(f"/api/resources/{id}/recycle")).status_code == 200
        text = await agent.run("say")
        retired = rf"{old} was retired at \d\d:\d\d: it was recycled by the console"
        assert re.fullmatch(rf"{old} \(opened; {retired}\)", line(text))
        id = server.kernel(old).id
        assert (await http.post(f"/api/resources/{id}/recycle")).status_code == 200
        text = await agent.run("%%loommux --attach lab --create\nsay")
        assert re.fullmatch(rf"lab \(opened; {retired}\)", line(text)), "also when it attaches elsewhere"


async def test_a_notification_whose_session_ends_meanwhile_is_no_error(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with server.http() as http:
        raw = await Raw.open(http)
        [transport] = server.app._mcp._manager._server_instances.values()
        assert transport._read_stream_writer is not None
        await transport._read_stream_writer.aclose()  # as its end does
        answer = await raw.post({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})
        assert answer.status_code == 202
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_caller_without_a_session_is_told_of_the_kernel_that_was_recycled_too(server: HttpServer) -> None:
    message, headers = modern(tool_call("run_cell", freeform="say"))
    async with server.http() as http:

        async def run() -> str:
            answer = await http.post("/mcp", json=message, headers={**headers, "X-Loommux-Resource": "lab"})
            return answer.text

        assert "Kernel: lab (opened)" in await run()
        assert (await http.post(f"/api/resources/{server.kernel('lab').id}/recycle")).status_code == 200
        retired = r"Kernel: lab \(opened; lab was retired at \d\d:\d\d: it was recycled by the console\)"
        assert re.search(retired, await run())
        assert "Kernel:" not in await run()


async def test_the_kernel_argument_reads_elsewhere_and_moves_nothing(server: HttpServer) -> None:
    async with server.agent() as owner, server.agent() as agent:
        await owner.run("%%loommux --attach lab --create\nsay")
        await agent.run("say")
        for reference in ("lab", "/lab", server.kernel("lab").id):
            assert "lab: running" in await agent.text("status", kernel=reference)
        assert "lab" not in await agent.text("status")
        assert len(server.leasing.held_by(server.kernel("lab"))) == 1, "a look is no lease"
        assert "kernel_not_found" in await agent.refusal("status", kernel="nowhere")
        refused = await agent.refusal("run_cell", freeform="%%loommux --attach lab\n1", kernel="lab")
        assert "invalid_argument: kernel='lab'" in refused


async def test_new_opens_one_more_kernel_and_does_not_move_the_session(server: HttpServer) -> None:
    async with server.agent() as agent:
        await agent.run("say")
        text = await agent.run("say", kernel="new")
        assert text.startswith("In [1]")
        assert len(server.registry) == 2
        assert (await agent.run("say", kernel=handle(text))).startswith("In [2]")
        assert (await agent.run("say")).startswith("In [2]")
        assert "only run_cell opens a new kernel" in await agent.refusal("status", kernel="new")


# -- callers without sessions -----------------------------------------------------------


async def test_a_modern_caller_is_told_the_handle_of_its_kernel_until_it_passes_it(server: HttpServer) -> None:
    async with server.agent("2026-07-28") as agent:
        opened = await agent.run("say")
        key = handle(opened)
        name = line(opened).partition(" ")[0]
        assert re.fullmatch(r"private-[0-9a-f]{8}", name)
        assert key in line(await agent.run("say", kernel=name)), "told until a call passes it"
        assert not line(await agent.run("say", kernel=key))
        assert not line(await agent.run("say", kernel=name))
        assert (await agent.run("say", kernel=key)).startswith("In [5]")


async def test_a_second_bare_run_cell_of_a_modern_caller_is_refused_with_its_handle(server: HttpServer) -> None:
    async with server.agent("2026-07-28") as agent:
        key = handle(await agent.run("say"))
        refused = await agent.refusal("run_cell", freeform="say")
        assert f'pass kernel={key} (yours, 1 execution) or kernel="new"' in refused
        second = handle(await agent.run("say", kernel="new"))
        refused = await agent.refusal("run_cell", freeform="say")
        assert key in refused
        assert second in refused
        assert len(server.registry) == 2
    async with server.agent("2026-07-28", **{"X-Loommux-Operator": "other"}) as other:
        await other.run("say")
        assert len(server.registry) == 3, "another caller is not told of them"


async def test_the_other_tools_of_a_modern_caller_need_a_kernel(server: HttpServer) -> None:
    async with server.agent("2026-07-28") as agent:
        key = handle(await agent.run("say"))
        for tool, arguments in (("status", {}), ("wait", {}), ("read_output", {}), ("search_output", {"query": "x"})):
            refused = await agent.refusal(tool, **arguments)
            assert refused.startswith("kernel_required: pass kernel=…")
            assert key not in refused
        assert "kernel_not_found" in await agent.refusal("status", kernel="k_wrong")


async def test_eight_modern_clients_that_start_at_once_have_eight_kernels(server: HttpServer) -> None:
    async with AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(server.agent("2026-07-28")) for _ in range(8)]
        results = await asyncio.gather(*(agent.call("run_cell", freeform=FOREVER) for agent in agents))
        assert len(server.registry) == 8
        assert all(not result.is_error for result in results)


async def test_a_modern_caller_with_a_resource_works_there_without_a_handle(server: HttpServer) -> None:
    async with server.agent("2026-07-28", **{"X-Loommux-Resource": "lab"}) as agent:
        assert line(await agent.run("say")) == "lab (opened)"
        assert (await agent.run("say")).startswith("In [2]")
        assert not line(await agent.text("status"))
    assert server.names() == ["lab"]


async def test_a_modern_cell_may_attach_by_its_header_for_that_call(server: HttpServer) -> None:
    async with server.agent("2026-07-28") as agent:
        text = await agent.run("%%loommux --attach lab --create\nsay")
        assert line(text) == "lab (opened; pass kernel='lab' to stay in it)"
        assert (await agent.run("say", kernel="lab")).startswith("In [2]")


async def test_a_lost_first_result_can_be_had_by_the_handle_that_the_refusal_gives(
    tmp_path: Path,
) -> None:
    script = Script()
    async with http_server(tmp_path, {"hold": script.hold}) as server, server.http() as http:
        message, headers = modern(tool_call("run_cell", freeform="hold"))
        call = asyncio.create_task(http.post("/mcp", json=message, headers=headers))
        await asyncio.wait_for(script.running.wait(), 10)
        call.cancel()
        await asyncio.wait({call})
        await until(lambda: not server.service._calls)
        async with server.agent("2026-07-28", **{"X-Loommux-Operator": "raw"}) as agent:
            script.go.set()
            key = handle(await agent.refusal("run_cell", freeform="say"))
            assert (await agent.text("wait", kernel=key)).startswith("In [1]")


async def test_what_others_see_of_a_session_does_not_open_it(server: HttpServer) -> None:
    async with server.http() as http:
        raw = await Raw.open(http, **{"X-Loommux-Resource": "lab"})
        session = raw.headers["mcp-session-id"]
        await raw.post(tool_call("run_cell", freeform="say"), **{"X-Loommux-Resource": "lab"})
        resources = (await http.get("/api/resources")).text
        assert session not in resources
        assert f"client-{session[:8]}" in resources
