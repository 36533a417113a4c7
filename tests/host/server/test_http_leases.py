"""Leases at work with windows of a second: real clients, real streams, kernels in memory."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from loommux_host.client import LeaseAwareClient
from tests.host.server.http_server import Raw, http_server, modern, tool_call
from tests.host.twins import Script, until

pytestmark = pytest.mark.anyio
QUICK = "%%loommux --wait 0.2 --silence 0.2\nhold"
LAB = {"X-Loommux-Resource": "lab"}
#: Windows long enough for a loaded machine to keep, short enough to wait for.
SHORT = 1.0
LONG = 60.0


def windows(mode: str, private: float = SHORT, named: float = LONG, **more: float) -> dict[str, Any]:
    return {
        "lease_mode": mode,
        "private_activity_timeout_seconds": private,
        "named_activity_timeout_seconds": named,
        "heartbeat_interval_seconds": 0.2,
        "heartbeat_timeout_seconds": SHORT,
        "connection_grace_seconds": SHORT,
        "orphan_grace_seconds": SHORT,
        **more,
    }


@asynccontextmanager
async def stream_of(raw: Raw):
    """The standing stream of a session, open as long as the block runs."""
    async with raw.http.stream("GET", raw.path, headers=raw.headers) as stream:
        assert stream.status_code == 200
        yield stream


# -- activity -----------------------------------------------------------------------


async def test_an_activity_lease_is_renewed_by_calls_and_lapses_without_them(tmp_path: Path) -> None:
    async with http_server(tmp_path, **windows("activity")) as server, server.http() as http:
        raw = await Raw.open(http)
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - began < 2 * SHORT:
            await raw.cell("say")
            await asyncio.sleep(0.1)
        assert len(server.registry) == 1
        await until(lambda: len(server.registry) == 0)
        text = (await raw.cell("say")).text
        assert "(opened; " in text
        assert "its lease had lapsed)" in text


async def test_a_private_kernel_whose_long_cell_ended_is_still_there_for_its_session(tmp_path: Path) -> None:
    script = Script()
    async with http_server(tmp_path, {QUICK: script.hold}, **windows("activity")) as server, server.http() as http:
        raw = await Raw.open(http)
        assert "Running" in (await raw.cell(QUICK)).text
        await asyncio.sleep(2 * SHORT)
        assert len(server.registry) == 1, "no lease lapses while a cell of its session runs"
        script.go.set()
        await asyncio.sleep(2 * SHORT)
        [kernel] = server.registry.mains()
        assert server.leasing.retention_remaining(kernel) is not None
        assert "In [2]" in (await raw.cell("say")).text


async def test_telling_the_end_lets_a_private_kernel_go_with_its_lease(tmp_path: Path) -> None:
    script = Script()
    async with http_server(tmp_path, {QUICK: script.hold}, **windows("activity")) as server, server.http() as http:
        raw = await Raw.open(http)
        await raw.cell(QUICK)
        script.go.set()
        wait = {"name": "wait", "arguments": {}}
        assert "In [1]" in (await raw.post({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": wait})).text
        await until(lambda: len(server.registry) == 0)


# -- whose kernel it is ------------------------------------------------------------------


@pytest.mark.case("X16")
@pytest.mark.parametrize("mode", ["activity", "heartbeat", "connection"])
async def test_a_private_kernel_that_was_renamed_is_a_named_one(tmp_path: Path, mode: str) -> None:
    async with http_server(tmp_path, **windows(mode)) as server, server.http() as http:
        deleted, left = await Raw.open(http), await Raw.open(http)
        async with stream_of(left):
            for raw, name in ((deleted, "task"), (left, "other")):
                await raw.cell("say")
                [kernel] = [one for one in server.registry.mains() if one.name.startswith("private-")]
                renamed = await http.post(f"/api/resources/{kernel.id}/rename", json={"name": name})
                assert renamed.json() == {"ok": True, "name": name}
                snapshot = (await http.get(f"/api/resources/{kernel.id}")).json()
                assert (snapshot["scope"], snapshot["autoclose"]) == ("named", False)
            assert (await http.delete("/mcp", headers=deleted.headers)).status_code == 200
        # The private window has passed for a kernel that was opened later than these, so it has for them.
        await (await Raw.open(http)).cell("say")
        await until(lambda: not any(name.startswith("private-") for name in server.names()))
        assert server.names() == ["task", "other"]
        remaining = server.leasing.retention_remaining(server.kernel("task"))
        assert remaining is not None and remaining > SHORT
        async with server.agent() as agent:
            assert "(attached; 1 earlier execution" in await agent.run("%%loommux --attach task\nsay")


@pytest.mark.case("X16")
async def test_a_kernel_renamed_during_a_call_of_a_caller_without_a_session_is_not_held_for_ever(
    tmp_path: Path,
) -> None:
    script = Script()
    settings = windows("activity", SHORT, SHORT)
    async with http_server(tmp_path, {"hold": script.hold}, **settings) as server, server.http() as http:
        message, headers = modern(tool_call("run_cell", freeform="hold"))
        call = asyncio.create_task(http.post("/mcp", json=message, headers={**headers, **LAB}))
        await until(lambda: server.names() == ["lab"] and server.kernel("lab").life is not None)
        kernel = server.kernel("lab")
        await until(lambda: kernel.life is not None and kernel.life.busy)
        assert (await http.post(f"/api/resources/{kernel.id}/rename", json={"name": "task"})).is_success
        script.go.set()
        assert "In [1]" in (await call).text
        await until(lambda: len(server.registry) == 0)


async def test_an_autoclose_kernel_ends_with_its_sessions_and_attaching_takes_no_ownership(tmp_path: Path) -> None:
    async with http_server(tmp_path, **windows("activity", LONG, LONG)) as server, server.http() as http:
        opener, guest, kept = await Raw.open(http), await Raw.open(http), await Raw.open(http)
        opened = (await opener.cell("%%loommux --attach lab --create --autoclose\nsay")).text
        assert "Kernel: lab (opened; ends with its sessions)" in opened
        came = (await guest.cell("%%loommux --attach lab --create --keep\nsay")).text
        assert "Kernel: lab (attached; 1 earlier execution; --keep changes nothing, for it was open already)" in came
        assert "Kernel: kept (opened)" in (await kept.cell("%%loommux --attach kept --create --keep\nsay")).text
        for raw in (guest, kept):
            await http.delete("/mcp", headers=raw.headers)
        assert sorted(server.names()) == ["kept", "lab"], "its opener holds it; the other is kept"
        assert server.leasing.retention_remaining(server.kernel("kept")) is not None
        await http.delete("/mcp", headers=opener.headers)
        await until(lambda: server.names() == ["kept"])


async def test_an_autoclose_kernel_waits_for_its_cell_and_for_its_result_to_be_told(tmp_path: Path) -> None:
    script = Script()
    settings = windows("activity", LONG, LONG)
    async with http_server(tmp_path, {QUICK: script.hold}, **settings) as server, server.http() as http:
        opener, other = await Raw.open(http), await Raw.open(http)
        await opener.cell("%%loommux --attach lab --create --autoclose\nsay")
        await opener.cell(QUICK)
        kernel = server.kernel("lab")
        await http.delete("/mcp", headers=opener.headers)
        assert server.leasing.retention_remaining(kernel) is not None, "its cell runs"
        script.go.set()
        await until(lambda: kernel.life is not None and not kernel.life.busy)
        assert server.names() == ["lab"], "nobody was told the result"
        wait = {"name": "wait", "arguments": {"kernel": "lab"}}
        assert "In [2]" in (await other.post({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": wait})).text
        await until(lambda: "lab" not in server.names())


async def test_who_holds_a_kernel_alone_lets_others_read_and_nothing_else(tmp_path: Path) -> None:
    async with http_server(tmp_path, **windows("activity", LONG, LONG)) as server, server.http() as http:
        async with server.agent(**{"X-Loommux-Operator": "ann"}) as ann:
            async with server.agent(**{**LAB, "X-Loommux-Operator": "bob"}) as bob:
                await bob.run("say")
                held = await ann.run("%%loommux --attach lab --alone\nsay")
                assert "Kernel: lab (attached; 1 earlier execution; held alone: others may only read" in held
                assert "Kernel:" not in await ann.run("%%loommux --attach lab --alone\nsay"), "it is so already"
                assert "ann holds this kernel alone from now on" in await bob.text("status")
                for tool, arguments in (("run_cell", {"freeform": "say"}), ("interrupt", {}), ("restart", {})):
                    refused = await bob.refusal(tool, **arguments)
                    assert refused.startswith("claimed: ann holds lab alone since ") and "Nothing was done" in refused
                assert "claimed" in await bob.refusal("run_cell", freeform="%%loommux --attach lab --alone\nsay")
                assert not (await bob.call("read_output", execution=2)).is_error
                assert "completed" in await bob.text("execution_status")
                path = f"/api/resources/{server.kernel('lab').id}"
                assert (await http.get(path)).json()["held_alone"]["holder"] == "ann"
                cell = await http.post(f"{path}/executions", json={"source": "say"})
                assert cell.json()["ok"], "people are never refused"
                assert (await http.post(f"{path}/release")).json() == {"ok": True, "released": "ann"}
                assert (await http.post(f"{path}/release")).json() == {"ok": True, "released": None}
                assert "released by the console: ann does not hold it alone any more" in await bob.run("say")
                assert "held alone" in await ann.run("%%loommux --attach lab --alone\nsay")
                assert "claimed" in await bob.refusal("run_cell", freeform="say")
            assert server.leasing.alone_in(server.kernel("lab")) is not None, "who leaves was not its holder"
        assert server.leasing.alone_in(server.kernel("lab")) is None, "it ends with the lease"


async def test_a_claim_is_refused_before_anything_moves(tmp_path: Path) -> None:
    settings = windows("activity", LONG, LONG)
    async with http_server(tmp_path, **settings) as server, server.agent() as ann, server.agent() as bob:
        await ann.run("%%loommux --attach lab --create --alone\nsay")
        await bob.run("%%loommux --attach mine --create\nsay")
        assert "claimed" in await bob.refusal("run_cell", freeform="%%loommux --attach lab\nsay")
        assert "claimed" in await bob.refusal("run_cell", freeform="say", kernel="lab")
        assert (await bob.run("say")).startswith("In [2]"), "it is still in its own kernel"


async def test_what_a_person_opens_is_kept_for_the_named_window_and_renewed_by_use(tmp_path: Path) -> None:
    async with http_server(tmp_path, **windows("activity", SHORT, LONG)) as server, server.http() as http:
        made = (await http.post("/api/resources", json={"path": "bench"})).json()
        assert (made["opened"], made["scope"], made["autoclose"]) == (True, "named", False)
        assert (await http.post("/api/resources", json={"path": "/bench"})).json()["opened"] is False
        kernel = server.kernel("bench")
        before = server.leasing.retention_remaining(kernel)
        assert before is not None and LONG - SHORT < before <= LONG
        await asyncio.sleep(0.2)
        cell = await http.post(f"/api/resources/{kernel.id}/executions", json={"source": "say"})
        assert cell.json()["ok"]
        after = server.leasing.retention_remaining(kernel)
        assert after is not None and after > LONG - 0.2
        async with server.agent(**{"X-Loommux-Resource": "bench"}) as agent:
            assert "bench (attached; 1 earlier execution)" in await agent.run("say")


# -- the end of a session -------------------------------------------------------------


async def test_deleting_a_session_retires_its_private_kernel_and_keeps_a_named_one(tmp_path: Path) -> None:
    async with http_server(tmp_path, **windows("activity", LONG, LONG)) as server, server.http() as http:
        private, named = await Raw.open(http), await Raw.open(http)
        named.headers.update(LAB)
        await private.cell("say")
        await named.cell("say")
        for raw in (private, named):
            assert (await http.delete("/mcp", headers=raw.headers)).status_code == 200
        await until(lambda: server.names() == ["lab"])
        assert server.leasing.retention_remaining(server.kernel("lab")) is not None
        assert (await private.cell("say")).status_code == 404


async def test_a_busy_kernel_that_nobody_holds_any_more_is_orphaned_and_may_be_attached_in_time(
    tmp_path: Path,
) -> None:
    script = Script()
    settings = windows("activity", named=2 * SHORT, orphan_grace_seconds=LONG)
    async with http_server(tmp_path, {QUICK: script.hold}, **settings) as server, server.http() as http:
        raw = await Raw.open(http)
        await raw.cell(QUICK)
        [kernel] = server.registry.mains()
        await http.delete("/mcp", headers=raw.headers)
        assert not server.leasing.is_orphaned(kernel), "a running cell is held for the named window"
        await until(lambda: server.leasing.is_orphaned(kernel))
        async with server.agent() as agent:
            assert "busy: In [1]" in await agent.refusal("run_cell", freeform=f"%%loommux --attach {kernel.name}\nsay")
            assert not server.leasing.is_orphaned(kernel)
            assert "(attached; 1 earlier execution)" not in await agent.text("status"), "told with the refusal"


async def test_an_orphan_is_retired_after_its_grace(tmp_path: Path) -> None:
    script = Script()
    settings = windows("activity", named=SHORT, orphan_grace_seconds=0.2)
    async with http_server(tmp_path, {QUICK: script.hold}, **settings) as server, server.http() as http:
        raw = await Raw.open(http)
        await raw.cell(QUICK)
        await http.delete("/mcp", headers=raw.headers)
        await until(lambda: len(server.registry) == 0)
        [retired] = server.leasing._retired.values()
        assert retired.reason == "a cell was running and nobody held it"


# -- heartbeat ------------------------------------------------------------------------


async def test_a_heartbeat_client_keeps_its_kernel_by_pings_alone(tmp_path: Path) -> None:
    async with http_server(tmp_path, **windows("heartbeat")) as server:
        async with LeaseAwareClient(server.url, operator="ann") as client:
            assert (client.policy["lease_mode"], client.policy["generation"]) == ("heartbeat", 1)
            await client.run_cell("say")
            await asyncio.sleep(2.5 * SHORT)
            [kernel] = server.registry.mains()
            assert [one.label for one in server.leasing.held_by(kernel)] == ["ann"]
        await until(lambda: len(server.registry) == 0)


async def test_without_pings_a_heartbeat_lease_lapses(tmp_path: Path) -> None:
    async with http_server(tmp_path, **windows("heartbeat", LONG)) as server, server.http() as http:
        raw = await Raw.open(http)
        await raw.cell("say")
        await until(lambda: len(server.registry) == 0)


async def test_a_modern_callers_requests_renew_its_heartbeat(tmp_path: Path) -> None:
    async with http_server(tmp_path, **windows("heartbeat", LONG, 2 * LONG)) as server, server.http(**LAB) as http:
        body, headers = modern({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "run_cell", "arguments": {"freeform": "say"}}})  # fmt: skip
        await http.post("/mcp", json=body, headers=headers)
        kernel = server.kernel("lab")
        for _ in range(10):
            await asyncio.sleep(SHORT / 4)
            body, headers = modern({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}})
            assert (await http.post("/mcp", json=body, headers=headers)).status_code == 200
        assert [one.lease.held for one in server.leasing.held_by(kernel)] == [True]
        await until(lambda: not server.leasing.held_by(kernel))


async def test_a_modern_caller_that_says_it_is_gone_holds_nothing_and_others_go_on(tmp_path: Path) -> None:
    async with http_server(tmp_path, **windows("activity", LONG)) as server, server.http(**LAB) as http:
        for who in ("ann%40here.org", "ann", "ann%40here.org-2"):
            body, headers = modern(
                {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
                    "name": "run_cell", "arguments": {"freeform": "say"}}}
            )  # fmt: skip
            await http.post("/mcp", json=body, headers=headers | {"X-Loommux-Operator": who})
        lab = server.kernel("lab")
        assert [one.label for one in server.leasing.held_by(lab)] == ["ann@here.org", "ann", "ann@here.org-2"]
        for who, left in (("ann", ["ann@here.org", "ann@here.org-2"]), ("ann%40here.org", ["ann@here.org-2"])):
            gone = await http.delete("/mcp", headers={"X-Loommux-Operator": who})
            assert gone.status_code == 200
            assert [one.label for one in server.leasing.held_by(lab)] == left
        assert server.registry.mains() == [lab], "a named kernel outlives those who worked in it"


async def test_the_private_kernel_of_a_modern_caller_goes_with_it(tmp_path: Path) -> None:
    async with http_server(tmp_path, **windows("activity", LONG)) as server, server.http() as http:
        body, headers = modern({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "run_cell", "arguments": {"freeform": "say"}}})  # fmt: skip
        operator = {"X-Loommux-Operator": "ann"}
        await http.post("/mcp", json=body, headers=headers | operator)
        assert len(server.registry) == 1
        assert (await http.delete("/mcp", headers={"X-Loommux-Operator": "bob"})).status_code == 200
        assert len(server.registry) == 1
        assert (await http.delete("/mcp", headers=operator)).status_code == 200
        await until(lambda: len(server.registry) == 0)
        assert (await http.delete("/mcp")).status_code in (400, 405), "without a session or an operator as before"


async def test_a_server_for_sessions_alone_knows_no_such_caller(tmp_path: Path) -> None:
    async with http_server(tmp_path, protocol="handshake") as server, server.http() as http:
        assert (await http.delete("/mcp", headers={"X-Loommux-Operator": "ann"})).status_code in (400, 405)


# -- connection -------------------------------------------------------------------------


async def test_a_connection_client_holds_by_its_stream_and_may_reconnect(tmp_path: Path) -> None:
    async with http_server(tmp_path, **windows("connection")) as server, server.http() as http:
        raw = await Raw.open(http)
        async with stream_of(raw):
            await raw.cell("say")
            [kernel] = server.registry.mains()
            await asyncio.sleep(2 * SHORT)
            assert [str(one.lease.standing) for one in server.leasing.held_by(kernel)] == ["connected"]
        await until(lambda: server.leasing.held_by(kernel)[0].lease.standing == "reconnecting")
        async with stream_of(raw):
            await asyncio.sleep(2 * SHORT)
            assert len(server.registry) == 1
        await until(lambda: len(server.registry) == 0)


async def test_a_connection_client_without_a_stream_is_warned_in_every_result_log_and_api(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with http_server(tmp_path, **windows("connection", LONG)) as server, server.http() as http:
        raw = await Raw.open(http)
        with caplog.at_level(logging.WARNING, "loommux_host.sessions.lease_enforcement"):
            assert "Lease alert" not in (await raw.cell("say")).text
            [kernel] = server.registry.mains()
            await until(lambda: server.leasing.held_by(kernel)[0].lease.standing == "unbound")
        for _ in range(2):
            assert "Lease alert (unbound): " in (await raw.cell("say")).text
        snapshot = (await http.get(f"/api/resources/{kernel.id}")).json()
        assert [lease["standing"] for lease in snapshot["leases"]] == ["unbound"]
        assert len([r for r in caplog.records if "is unbound" in r.getMessage()]) == 1
        async with stream_of(raw):
            await until(lambda: server.leasing.held_by(kernel)[0].lease.standing == "connected")
            assert "Lease alert" not in (await raw.cell("say")).text


async def test_a_client_that_lost_its_stream_but_calls_is_warned_and_kept(tmp_path: Path) -> None:
    async with http_server(tmp_path, **windows("connection", LONG)) as server, server.http() as http:
        raw = await Raw.open(http)
        async with stream_of(raw):
            await raw.cell("say")
        await until(lambda: server.leasing.held_by(server.registry.mains()[0])[0].lease.standing == "reconnecting")
        await raw.cell("say")
        await until(lambda: server.leasing.held_by(server.registry.mains()[0])[0].lease.standing == "stream_lost")
        assert "Lease alert (stream_lost): " in (await raw.cell("say")).text


async def test_the_lease_aware_client_holds_its_stream(tmp_path: Path) -> None:
    async with http_server(tmp_path, **windows("connection")) as server:
        async with LeaseAwareClient(server.url, resource_name="my lab") as client:
            await client.run_cell("say")
            await asyncio.sleep(2 * SHORT)
            assert [str(one.lease.standing) for one in server.leasing.held_by(server.kernel("my lab"))] == ["connected"]
        await until(lambda: not any(one.lease.held for one in server.leasing.held_by(server.kernel("my lab"))))
        assert server.leasing.retention_remaining(server.kernel("my lab")) is not None


async def test_a_modern_client_holds_by_listening_with_its_resource(tmp_path: Path) -> None:
    async with http_server(tmp_path, **windows("connection")) as server:
        async with server.agent("2026-07-28", **LAB) as agent:
            async with agent.client.listen(tools_list_changed=True):
                await agent.run("say")
                await asyncio.sleep(2 * SHORT)
                assert [str(one.lease.standing) for one in server.leasing.held_by(server.kernel("lab"))] == [
                    "connected"
                ]
            await until(lambda: str(server.leasing.held_by(server.kernel("lab"))[0].lease.standing) == "reconnecting")
        await until(lambda: not any(one.lease.held for one in server.leasing.held_by(server.kernel("lab"))))


async def test_a_modern_client_without_a_resource_has_the_activity_window_and_no_alert(tmp_path: Path) -> None:
    async with http_server(tmp_path, **windows("connection", 3 * SHORT)) as server:
        async with server.agent("2026-07-28") as agent:
            await agent.run("say")
            [kernel] = server.registry.mains()
            await asyncio.sleep(2 * SHORT)
            assert [one.lease.standing for one in server.leasing.held_by(kernel)] == [None]
        await until(lambda: len(server.registry) == 0)


# -- policies ---------------------------------------------------------------------------


async def test_a_lease_keeps_its_policy_and_a_client_may_pin_an_old_one(tmp_path: Path) -> None:
    async with http_server(tmp_path, **windows("activity", LONG)) as server, server.http() as http:
        first, second = await Raw.open(http), await Raw.open(http)
        await first.cell("say")
        changed = await http.put("/api/lease-policy", json={"lease_mode": "heartbeat"})
        assert (changed.json()["generation"], changed.json()["lease_mode"]) == (2, "heartbeat")
        second.headers["X-Loommux-Lease-Policy-Generation"] = "1"
        await second.cell("say")
        third = await Raw.open(http)
        await third.cell("say")
        leases = [lease for r in (await http.get("/api/resources")).json()["resources"] for lease in r["leases"]]
        assert [(lease["mode"], lease["generation"]) for lease in leases] == [
            ("activity", 1), ("activity", 1), ("heartbeat", 2),
        ]  # fmt: skip


async def test_reading_the_api_renews_no_lease(tmp_path: Path) -> None:
    async with http_server(tmp_path, **windows("activity")) as server, server.http() as http:
        raw = await Raw.open(http)
        await raw.cell("say")
        [kernel] = server.registry.mains()
        async with asyncio.timeout(20):
            while len(server.registry):
                for path in ("", "/executions", "/executions/latest", "/output", "/combined"):
                    await http.get(f"/api/resources/{kernel.id}{path}")
                await asyncio.sleep(0.05)
