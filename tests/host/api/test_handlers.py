"""The JSON API: what each endpoint says, and one shape of everything that did nothing."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any, cast

import httpx2
import nbformat
import pytest

from loommux_host.api.endpoint import Endpoint
from loommux_host.api.endpoint_table import endpoints
from loommux_host.api.handlers import Api
from loommux_host.usecases import fleet
from loommux_host.web.auth import access
from tests.host.server.http_server import HttpServer, Raw, http_server
from tests.host.twins import Script, until

pytestmark = pytest.mark.anyio
LAB = {"X-Loommux-Resource": "lab"}
ROUTES = endpoints(cast(Api, type("Table", (), {"__getattr__": lambda self, name: None})()))
#: The paths with an id that no kernel has.
MISSING = [e for e in ROUTES if "{id}" in e.path]


async def opened(server: HttpServer, http: httpx2.AsyncClient) -> str:
    """The path of a kernel that a session has opened; the session goes on living."""
    raw = await Raw.open(http)
    raw.headers.update(LAB)
    await raw.cell("say")
    return f"/api/resources/{server.kernel('lab').id}"


def assert_refused(answer: httpx2.Response, code: int, status: str | None = None) -> str:
    assert answer.status_code == code, answer.text
    assert answer.headers["content-type"] == "application/json"
    refused = answer.json()
    assert set(refused) == {"ok", "status", "message"}
    assert refused["ok"] is False
    assert re.fullmatch(r"[a-z_]+", refused["status"])
    assert refused["message"]
    if status is not None:
        assert refused["status"] == status
    return refused["message"]


async def ask(http: httpx2.AsyncClient, endpoint: Endpoint, **given: Any) -> httpx2.Response:
    path = endpoint.path.replace("{id}", "nowhere").replace("{n}", "1")
    body = {"json": {"source": "1", "name": "x"}} if endpoint.body is not None else {}
    if endpoint.body is not None:
        body = {"json": {p.name: body["json"].get(p.name, "x") for p in endpoint.body if p.required}}
    query = {p.name: 1 if p.kind.schema["type"] == "integer" else "x" for p in endpoint.query if p.required}
    return await http.request(endpoint.method, path, params=query, **{**body, **given})


# -- one shape of errors ------------------------------------------------------------------


async def test_every_refusal_of_every_route_has_one_shape(http: httpx2.AsyncClient) -> None:
    for endpoint in MISSING:
        assert_refused(await ask(http, endpoint), 404, "kernel_not_found")
    for endpoint in ROUTES:
        await _refused_alike(http, endpoint)
    assert_refused(await http.get("/api/nowhere"), 404, "not_found")
    assert_refused(await http.get("/console/nowhere.js"), 404, "not_found")
    refused = await http.delete("/api/resources")
    assert_refused(refused, 405, "method_not_allowed")
    assert set(refused.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


@pytest.mark.case("X09", "X13")
async def test_what_the_system_refuses_is_an_answer_and_the_next_request_works(
    server: HttpServer, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(server.app._api.fleet, "snapshots", refused)
        message = assert_refused(await http.get("/api/resources"), 503, "system_error")
    assert "its part of GET /api/resources: [Errno 24] Too many open files." in message
    assert (await http.get("/api/resources")).json() == {"resources": []}


async def _refused_alike(http: httpx2.AsyncClient, endpoint: Endpoint) -> None:
    assert_refused(await ask(http, endpoint, headers={"Host": "evil.example"}), 421)
    assert_refused(await ask(http, endpoint, headers={"Origin": "http://evil.example"}), 403)
    path = endpoint.path.replace("{id}", "nowhere").replace("{n}", "1")
    message = assert_refused(await http.request(endpoint.method, path, params={"color": "red"}), 400)
    assert "color" in message
    if endpoint.body is None:
        return
    assert_refused(
        await http.request(endpoint.method, path, content=b"{}", headers={"content-type": "text/plain"}), 415
    )
    for content in (b"{", b"[1]", b'"x"', b"[" * 100_000, b'{"color": 1}'):
        sent = await http.request(endpoint.method, path, content=content, headers={"content-type": "application/json"})
        assert_refused(sent, 400, "invalid_argument")
    large = b" " * (5 * 1024 * 1024)
    sent = await http.request(endpoint.method, path, content=large, headers={"content-type": "application/json"})
    assert_refused(sent, 413)


async def test_every_route_needs_the_token(tmp_path: Path) -> None:
    rules = access("127.0.0.1", "secret-token", auth=True)
    async with http_server(tmp_path, rules=rules) as server, server.http() as http:
        # What a browser asks before its login, which says nothing of anybody.
        assert (await http.get("/api/login")).json() == {"by": "token"}
        for endpoint in ROUTES:
            if (endpoint.method, endpoint.path) == ("GET", "/api/login"):
                continue
            for headers in ({}, {"Authorization": "Bearer secret-toke"}):
                assert_refused(await ask(http, endpoint, headers=headers), 401, "unauthorized")
        assert_refused(await http.post("/mcp", json={}), 401)
        assert (await http.get("/api/health", headers={"Authorization": "Bearer secret-token"})).status_code == 200


async def test_bad_values_are_refused_by_name(server: HttpServer, http: httpx2.AsyncClient) -> None:
    path = await opened(server, http)
    for query, named in [
        ("/output?execution=0", "execution"),
        ("/output?execution=x", "execution"),
        ("/output?stream=x", "stream"),
        ("/output?line_range=x", "line_range"),
        ("/output?max_chars=1.5", "max_chars"),
        ("/output?execution=1&execution=2", "execution"),
        ("/search", "query"),
        ("/search?query=x&ignore_case=maybe", "ignore_case"),
        ("/executions?limit=0", "limit"),
        ("/executions?limit=501", "limit"),
        ("/executions/0", "n="),
        ("/executions/x", "n="),
        (f"/executions/{'9' * 5000}", "n="),
        ("/combined?wait=31", "wait"),
        ("/combined?since=-1", "since"),
        ("/combined?wait=nan", "wait"),
    ]:
        assert named in assert_refused(await http.get(path + query), 400, "invalid_argument"), query


async def test_a_fault_of_the_server_is_told_without_its_insides(
    server: HttpServer, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.registry, "mains", lambda: 1 / 0)
    assert_refused(await http.get("/api/resources"), 500, "internal_error")


# -- kernels ---------------------------------------------------------------------------------


async def test_a_snapshot_has_all_that_the_contract_lists(server: HttpServer, http: httpx2.AsyncClient) -> None:
    path = await opened(server, http)
    snapshot = (await http.get(path)).json()
    assert {
        "resource_id", "name", "scope", "home", "state", "kernel_state", "kernel_pid", "process", "busy",
        "current_execution", "recent_execution", "execution_count", "idle_since", "leases", "lease_count",
        "retention_remaining_seconds", "attached_clients", "rss_bytes", "cpu_percent", "connection_file",
        "attach_command", "qtconsole_command",
    } <= set(snapshot)  # fmt: skip
    assert (snapshot["name"], snapshot["scope"], snapshot["state"]) == ("lab", "named", "idle")
    assert snapshot["recent_execution"]["execution"] == snapshot["execution_count"] == 1
    [lease] = snapshot["leases"]
    assert (lease["holder"][:7], lease["mode"], lease["standing"], lease["held"]) == ("client-", "activity", None, True)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", lease["client_address"])
    [listed] = (await http.get("/api/resources")).json()["resources"]
    assert set(listed) == set(snapshot)
    assert listed["resource_id"] == snapshot["resource_id"]


async def test_kernels_are_found_by_path_id_and_name(server: HttpServer, http: httpx2.AsyncClient) -> None:
    path = await opened(server, http)
    id = path.rpartition("/")[2]
    child = (await http.post("/api/resources", json={"path": "/lab/build"})).json()
    assert (child["opened"], child["scope"], child["home"], child["path"]) == (True, "child", id, "/lab/build")
    assert (await http.post("/api/resources", json={"path": "build", "context": id})).json()["opened"] is False
    for query in ("path=/lab/build", f"path=build&context={id}", f"path={child['resource_id']}"):
        assert (await http.get(f"/api/resources/lookup?{query}")).json()["resource_id"] == child["resource_id"]
    assert_refused(await http.get("/api/resources/lookup?path=build"), 404, "kernel_not_found")
    assert_refused(await http.post("/api/resources", json={"path": "a/b"}), 400, "invalid_argument")
    assert_refused(await http.post("/api/resources", json={"path": "/"}), 400, "invalid_argument")
    assert_refused(await http.post("/api/resources", json={"path": "/nowhere/x"}), 404, "kernel_not_found")
    assert [r["path"] for r in (await http.get("/api/resources")).json()["resources"]] == ["/lab", "/lab/build"]


async def test_renaming_tells_the_sessions_that_work_there(server: HttpServer, http: httpx2.AsyncClient) -> None:
    async with server.agent(**LAB) as agent:
        await agent.run("say")
        path = f"/api/resources/{server.kernel('lab').id}"
        assert (await http.post(f"{path}/rename", json={"name": "report"})).json()["name"] == "report"
        assert "This kernel was renamed by the console: lab is report now." in await agent.run("say")
        assert_refused(await http.post(f"{path}/rename", json={"name": "a/b"}), 400, "invalid_argument")


async def test_a_busy_kernel_is_recycled_only_by_force(
    server: HttpServer, http: httpx2.AsyncClient, script: Script
) -> None:
    path = await opened(server, http)
    run = await http.post(f"{path}/executions", json={"source": "hold", "wait_seconds": 0})
    assert (run.status_code, run.json()["status"]) == (200, "running")
    assert "In [2] of lab is running" in assert_refused(await http.post(f"{path}/recycle", json={}), 409, "kernel_busy")
    assert (await http.post("/api/resources/recycle-idle")).json()["recycled"] == []
    assert (await http.post(f"{path}/recycle", json={"force": True})).json()["recycled"] == ["lab"]
    assert "was retired at" in assert_refused(await http.get(path), 404, "kernel_not_found")


async def test_recycling_all_and_what_is_idle_and_not_held(server: HttpServer, http: httpx2.AsyncClient) -> None:
    async with server.agent() as agent:
        await agent.run("say")
        await opened(server, http)
        async with server.agent(**{"X-Loommux-Resource": "free"}) as leaving:
            await leaving.run("say")
        await until(lambda: not server.leasing.held_by(server.kernel("free")))
        assert (await http.post("/api/resources/recycle-idle")).json()["recycled"] == ["free"]
        assert len((await http.post("/api/resources/recycle-all")).json()["recycled"]) == 2
        assert len(server.registry) == 0


async def test_health_of_the_server_and_of_a_kernel(server: HttpServer, http: httpx2.AsyncClient) -> None:
    path = await opened(server, http)
    health = (await http.get("/api/health")).json()
    assert health.items() >= {"ok": True, "status": "running", "kernels": 1, "mcp_path": "/mcp"}.items()
    assert (await http.post(f"{path}/health")).json()["answers"] is True


# -- cells ---------------------------------------------------------------------------------------


async def test_a_person_runs_waits_reads_and_searches(
    server: HttpServer, http: httpx2.AsyncClient, script: Script
) -> None:
    path = await opened(server, http)
    run = (await http.post(f"{path}/executions", json={"source": "hold", "wait_seconds": 0})).json()
    assert (run["ok"], run["execution"], run["status"]) == (True, 2, "running")
    assert_refused(await http.post(f"{path}/executions", json={"source": "say"}), 409, "busy")
    for blank in ("", " "):
        assert_refused(await http.post(f"{path}/executions", json={"source": blank}), 400, "empty_cell")
    assert script.cell is not None
    script.cell.print("epoch 1\nepoch 2\n")
    script.go.set()
    assert (await http.post(f"{path}/wait", json={})).json()["status"] == "completed"
    assert (await http.get(f"{path}/output?line_range=2:")).json()["text"] == "epoch 2"
    assert (await http.get(f"{path}/search?query=epoch&context_before=1")).json()["matches"] == 2
    one = (await http.get(f"{path}/executions/latest")).json()
    assert (one["execution"], one["origin"]["kind"]) == (2, "console")
    assert_refused(await http.get(f"{path}/executions/7"), 404, "execution_not_found")
    assert_refused(await http.get(f"{path}/output?process=3"), 404, "process_not_found")


async def test_executions_are_paged_newest_first(server: HttpServer, http: httpx2.AsyncClient) -> None:
    path = await opened(server, http)
    for _ in range(4):
        await http.post(f"{path}/executions", json={"source": "say"})
    first = (await http.get(f"{path}/executions?limit=3")).json()
    assert [e["execution"] for e in first["executions"]] == [5, 4, 3]
    second = (await http.get(f"{path}/executions?limit=3&before={first['next']}")).json()
    assert [e["execution"] for e in second["executions"]] == [2, 1]
    assert second["next"] is None
    assert second["executions"][1]["origin"]["kind"] == "session"


async def test_combined_output_is_followed_as_it_arrives(
    server: HttpServer, http: httpx2.AsyncClient, script: Script
) -> None:
    path = await opened(server, http)
    await http.post(f"{path}/executions", json={"source": "hold", "wait_seconds": 0})
    assert script.cell is not None
    waiting = asyncio.create_task(http.get(f"{path}/combined?wait=20"))
    await until(lambda: bool(server.app._news._waiting))
    script.cell.print("".join(f"line {n}\n" for n in range(100)) + "50 %")
    first = (await waiting).json()
    assert first["state"] == "running"
    lines = first["text"] + first["tail"]
    assert lines.startswith("line 0\n")
    assert lines.endswith("50 %")
    more = (await http.get(f"{path}/combined?since={first['offset']}")).json()
    assert (more["text"], more["tail"]) == ("", first["tail"])
    waiting = asyncio.create_task(http.get(f"{path}/combined?since={first['offset']}&wait=20"))
    script.go.set()
    last = (await waiting).json()
    async with asyncio.timeout(20):
        while last["state"] == "running":
            last = (await http.get(f"{path}/combined?since={first['offset']}&wait=5")).json()
    whole = first["text"] + last["text"] + last["tail"]
    assert whole.rstrip("\n") == "".join(f"line {n}\n" for n in range(100)) + "50 %"


async def test_a_kernel_is_exported_as_a_notebook_with_its_earlier_processes(
    server: HttpServer, http: httpx2.AsyncClient
) -> None:
    path = await opened(server, http)
    await http.post(f"{path}/restart")
    await http.post(f"{path}/executions", json={"source": "say"})
    answer = await http.get(f"{path}/notebook")
    assert answer.headers["content-type"] == "application/x-ipynb+json"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''lab.ipynb"
    made = nbformat.reads(answer.text, as_version=4)
    nbformat.validate(made)
    first, mark, second = made.cells
    assert (first.source, first.outputs[0].text) == ("say", "say\n")
    assert "Process 1 ended by restart" in mark.source
    assert second.metadata.loommux.process == 2


async def test_variables_are_told_or_it_is_said_that_the_kernel_does_not_answer(
    server: HttpServer, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await opened(server, http)
    kernel = server.kernel("lab")
    channel = server.launchings[kernel.id].channel
    channel.variables = [{"name": "x", "type": "int", "size": None, "bytes": 28, "preview": "1"}]
    told = (await http.get(f"{path}/variables")).json()
    assert told == {"process": 1, "kernel_state": "running", "variables": channel.variables, "total": 1}
    channel.answers.clear()
    monkeypatch.setattr(fleet, "HEALTH_SECONDS", 0.05)
    message = assert_refused(await http.get(f"{path}/variables"), 503, "kernel_unresponsive")
    assert message.startswith("lab has not answered for")
    channel.answers.set()
    server.launchings[kernel.id].process.die(code=0)
    await until(lambda: kernel.state == "stopped")
    none = (await http.get(f"{path}/variables")).json()
    assert none == {"process": None, "kernel_state": "stopped", "variables": [], "total": 0}


async def test_reading_a_notebook_and_variables_renews_no_lease_and_starts_nothing(
    server: HttpServer, http: httpx2.AsyncClient
) -> None:
    path = await opened(server, http)
    kernel = server.kernel("lab")
    launching = server.launchings[kernel.id]
    launching.process.die(code=0)
    await until(lambda: kernel.state == "stopped")
    [before] = server.leasing.held_by(kernel)
    for read in ("notebook", "variables"):
        assert (await http.get(f"{path}/{read}")).status_code == 200
    [after] = server.leasing.held_by(kernel)
    assert (launching.starts, kernel.state) == (1, "stopped")
    assert before.lease.remaining_seconds is not None and after.lease.remaining_seconds is not None
    assert after.lease.remaining_seconds < before.lease.remaining_seconds


async def test_what_a_person_does_is_told_to_the_agent(
    server: HttpServer, http: httpx2.AsyncClient, script: Script
) -> None:
    async with server.agent(**LAB) as agent:
        await agent.run("say")
        path = f"/api/resources/{server.kernel('lab').id}"
        running = asyncio.create_task(agent.call("run_cell", freeform="hold"))
        await asyncio.wait_for(script.running.wait(), 10)
        assert (await http.post(f"{path}/interrupt", json={})).json()["status"] == "interrupted"
        assert not (await running).is_error
        assert "In [2] was interrupted by the console" in await agent.text("status")
        assert_refused(await http.post(f"{path}/interrupt"), 409, "idle")
        assert (await http.post(f"{path}/restart")).json()["new_process"] == 2
        assert "Process 1 ended by restart (the console)" in await agent.run("say")


async def test_what_a_person_reads_is_not_counted_as_told_to_anybody(
    server: HttpServer, http: httpx2.AsyncClient, script: Script
) -> None:
    async with server.agent(**LAB) as agent:
        await agent.run("say")
        kernel = server.kernel("lab")
        server.launchings[kernel.id].channel.noticed(None, None, "for the agent")
        for path in ("/executions/latest", "/output", "/combined"):
            assert (await http.get(f"/api/resources/{kernel.id}{path}")).status_code == 200
        await http.post(f"/api/resources/{kernel.id}/wait", json={})
        assert "for the agent" in await agent.text("status")


# -- the server ------------------------------------------------------------------------------------


async def test_the_lease_policy_is_shown_and_changed_as_a_new_generation(http: httpx2.AsyncClient) -> None:
    policy = (await http.get("/api/lease-policy")).json()
    assert (policy["generation"], policy["lease_mode"], policy["heartbeat_timeout_seconds"]) == (1, "activity", 60)
    changed = (await http.put("/api/lease-policy", json={"heartbeat_timeout_seconds": 90})).json()
    assert changed == policy | {"generation": 2, "heartbeat_timeout_seconds": 90}
    assert (await http.get("/api/lease-policy")).json() == changed
    for body in (
        {"lease_mode": "x"},
        {"heartbeat_timeout_seconds": 1},
        {"orphan_grace_seconds": -1},
        {"generation": 9},
    ):
        assert_refused(await http.put("/api/lease-policy", json=body), 400, "invalid_argument")
    assert (await http.get("/api/lease-policy")).json() == changed


async def test_the_feed_tells_of_kernels_cells_and_calls_and_resumes(
    server: HttpServer, http: httpx2.AsyncClient
) -> None:
    async def read(last: str | None, until_event: str) -> list[tuple[str, str, dict[str, Any]]]:
        got: list[tuple[str, str, dict[str, Any]]] = []
        fields: dict[str, str] = {}
        headers = {"last-event-id": last} if last else {}
        async with asyncio.timeout(20), http.stream("GET", "/api/events", headers=headers) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            async for line in stream.aiter_lines():
                name, _, value = line.partition(": ")
                if line:
                    fields[name] = value
                elif "event" in fields:
                    got.append((fields["id"], fields["event"], json.loads(fields["data"])))
                    fields = {}
                    if got[-1][1] == until_event:
                        break
        return got

    reading = asyncio.create_task(read(None, "call_ended"))
    await until(lambda: len(server.feed._waiting) == 1)
    await opened(server, http)
    seen = await reading
    assert [event for _, event, _ in seen] == [
        "call_began", "kernel_opened", "execution_started", "execution_ended", "call_ended"
    ]  # fmt: skip
    assert seen[-1][2]["result"].startswith("In [1] · ")
    again = await read(seen[1][0], "call_ended")
    assert again == seen[2:]


async def test_the_description_is_made_from_the_table(http: httpx2.AsyncClient) -> None:
    described = (await http.get("/api/openapi.json")).json()
    assert described["openapi"].startswith("3.1")
    operations = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert operations == {(e.method, e.path) for e in ROUTES}
    run = described["paths"]["/api/resources/{id}/executions"]["post"]
    assert run["requestBody"]["content"]["application/json"]["schema"]["required"] == ["source"]
    assert set(run["responses"]) >= {"200", "400", "401", "403", "404", "409", "413", "415", "421", "503"}
