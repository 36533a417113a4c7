"""A real HTTP server: how it starts, whom it lets in, how it ends."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from tests.e2e.driving import PATIENCE, Place, configure, until
from tests.e2e.http_driving import ACCEPT, Session, initialize, refused_start, start, web

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="signals and permissions of POSIX"),
]
SLEEP = "%%loommux --wait 60 --silence 60\nimport time; print('asleep'); time.sleep(100)"
BLOCK = """\
import asyncio.base_events as events, sys, time
_run = events.BaseEventLoop.run_forever
def _held():
    print("loop is blocked", file=sys.stderr, flush=True)
    time.sleep(3)
def _run_and_block(loop):
    loop.call_later(0.5, _held)
    _run(loop)
events.BaseEventLoop.run_forever = _run_and_block
"""


# -- start --------------------------------------------------------------------------------


async def test_a_free_port_is_found_and_printed_with_the_configuration_directory(place: Place) -> None:
    configure(place, "allowed_hosts = ['lab.example.org']")
    async with web(place, "--path", "/tools/mcp") as server, server.http() as http:
        assert f"configuration directory: {place.workspace / '.loommux'}" in place.log()
        assert re.search(r"listening on http://127\.0\.0\.1:\d+/tools/mcp\n", place.log())
        assert (await http.post("/tools/mcp", json=initialize(), headers=ACCEPT)).status_code == 200
        assert (await http.post("/mcp", json=initialize(), headers=ACCEPT)).status_code == 404
        assert (await http.get("/api/health", headers={"Host": "lab.example.org"})).status_code == 200
        assert "token" not in place.log(), "loopback needs none"


async def test_an_existing_server_on_the_port_is_told_in_one_line_with_exit_code_2(place: Place) -> None:
    async with web(place) as server:
        port = server.base.rpartition(":")[2]
        said = await refused_start(place, "--port", port)
        assert f"another server has 127.0.0.1:{port} already" in said
        assert len(said.splitlines()) == 2, "the configuration directory, and why"
        async with server.http() as http:
            assert (await http.get("/api/health")).json()["ok"]


@pytest.mark.parametrize(
    ("config", "status"),
    [
        ("1 / 0", "config_load_failed"),
        ("colour = 1", "config_unknown_setting"),
        ("lease_mode = 'x'", "config_invalid_setting"),
        ("auth_token_file = 'missing'", "config_invalid_setting"),
        ("auth_token_file = 'config.py'  # two words", "config_invalid_setting"),
        ("def resolve_workspace(cwd): return '/no/such'", "workspace_not_found"),
    ],
)
async def test_a_start_that_cannot_work_says_so_before_anything_listens(place: Place, config: str, status: str) -> None:
    configure(place, config)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said = await refused_start(place, "--port", str(port))
    assert f"loommux: {status}: " in said
    assert "listening" not in said
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1)


async def test_a_config_that_others_may_write_is_not_run(place: Place) -> None:
    configure(place, "raise SystemExit('it ran')")
    (place.workspace / ".loommux" / "config.py").chmod(0o666)
    said = await refused_start(place)
    assert "config_untrusted" in said
    assert "it ran" not in said


async def test_the_stacks_are_printed_while_the_loop_is_blocked(place: Place) -> None:
    configure(place, BLOCK)
    process = start(place)
    try:

        async def is_blocked() -> bool:
            return "loop is blocked" in place.log()

        await until(is_blocked)
        process.send_signal(signal.SIGUSR1)

        async def has_stacks() -> bool:
            return "in _held" in place.log()

        await until(has_stacks)
        assert "most recent call first" in place.log()
    finally:
        process.terminate()
        assert await asyncio.to_thread(process.wait, 30) == 0


# -- unix socket --------------------------------------------------------------------------------


async def test_a_unix_socket_is_private_and_gone_at_the_end(place: Place) -> None:
    path = place.temporary / "s"
    async with web(place, "--uds", str(path)) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with server.http() as http:
            assert "Out[1]: 2" in (await (await Session.open(http)).cell("1 + 1")).text
        assert f"another server has {path} already" in await refused_start(place, "--uds", str(path))
    assert not path.exists()


async def test_the_socket_of_a_killed_server_gives_way_and_another_file_does_not(place: Place) -> None:
    path = place.temporary / "s"
    async with web(place, "--uds", str(path)) as server:
        assert await server.end(signal.SIGKILL) == -signal.SIGKILL
    assert path.exists()
    async with web(place, "--uds", str(path)) as server, server.http() as http:
        assert (await http.get("/api/health")).json()["ok"]
    path.write_text("precious")
    assert "is no socket" in await refused_start(place, "--uds", str(path))
    path.unlink()


# -- how its kernels reach it -----------------------------------------------------------------------

#: Asks the server by what a kernel knows, as any program of a cell may.
ASK = """\
import os
from loommux_kernel.client import Daemon
print(os.environ["LOOMMUX_CONTROL_URL"], len(Daemon().kernels()))"""


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_kernels_reach_their_server_over_its_private_socket(place: Place, host: str) -> None:
    async with web(place, "--host", host, "--no-auth") as server:
        server.base = f"http://127.0.0.1:{server.base.rpartition(':')[2]}"
        async with server.agent() as agent:
            assert re.search(r"^http\+unix://\S+ 1$", await agent.run(ASK), re.M)


async def test_also_when_it_listens_on_a_unix_socket_and_another_address_was_inherited(place: Place) -> None:
    other = {"LOOMMUX_CONTROL_URL": "http://127.0.0.1:1"}
    async with web(place, "--uds", str(place.temporary / "s"), **other) as server, server.agent() as agent:
        assert re.search(r"^http\+unix://\S+ 1$", await agent.run(ASK), re.M)


#: Where a cell finds the secret: arguments and environments of all processes, and what the server wrote for its kernel.
SECRETS = """\
import glob, os
from urllib.parse import unquote
server = os.path.dirname(unquote(os.environ["LOOMMUX_CONTROL_URL"].removeprefix("http+unix://")))
assert len(os.listdir(server)) > 3
paths = glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ")
paths += [path for path in glob.glob(server + "/**", recursive=True) if os.path.isfile(path)]
def holds(path):
    try: return b"correct-horse" + b"-battery" in open(path, "rb").read()
    except OSError: return False
[path for path in paths if holds(path)]"""


# -- whom it lets in --------------------------------------------------------------------------------


@pytest.mark.case("S02", "S05")
async def test_a_given_token_opens_every_route_and_is_never_shown(place: Place) -> None:
    (place.workspace / "token").write_text("correct-horse-battery\n")
    (place.workspace / "token").chmod(0o600)
    configure(place, f"auth_token_file = {str(place.workspace / 'token')!r}")
    good = {"Authorization": "Bearer correct-horse-battery"}
    async with web(place) as server, server.http() as http:
        page = (await http.get("/")).text  # where a person logs in
        assert "<script" in page and str(place.workspace) not in page
        for path in ("/mcp", "/api/health", "/api/resources", "/api/events", "/nowhere"):
            for bad in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer correct-horse-batter"}):
                assert (await http.get(path, headers=bad)).status_code == 401, path
            assert (await http.get(f"{path}?token=correct-horse-battery")).status_code == 401
        assert (await http.get("/api/health", headers=good)).status_code == 200
        async with server.agent(**good) as agent:
            assert "Out[1]: []" in await agent.run(SECRETS)
    assert "correct-horse" not in place.log()


async def test_beyond_loopback_a_token_is_made_and_printed_once_unless_it_is_declined(place: Place) -> None:
    async with web(place, "--host", "0.0.0.0") as server:
        [token] = re.findall(r"token made for this start .*: (\S+)$", place.log(), re.M)
        port = server.base.rpartition(":")[2]
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            assert (await http.get("/api/health")).status_code == 401
            assert (await http.get("/api/health", headers={"Authorization": f"Bearer {token}"})).status_code == 200
            assert (await http.get("/api/health", headers={"Host": "evil.example"})).status_code == 421
        assert place.log().count(token) == 1
    async with web(place, "--host", "0.0.0.0", "--no-auth") as server:
        assert "no token is asked for (--no-auth)" in place.log()
        port = server.base.rpartition(":")[2]
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            assert (await http.get("/api/health")).status_code == 200


@pytest.mark.case("S01")
async def test_what_a_page_or_a_stranger_sends_is_refused_on_every_route(place: Place) -> None:
    async with web(place) as server, server.http() as http:
        for path in ("/", "/mcp", "/api/resources", "/api/events"):
            assert (await http.get(path, headers={"Host": "evil.example"})).status_code == 421
            assert (await http.get(path, headers={"Origin": "http://evil.example"})).status_code == 403
            preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
            answer = await http.options(path, headers=preflight)
            assert answer.status_code == 403
            assert not [name for name in answer.headers if name.startswith("access-control")]
            text = await http.post(path, content=b"{}", headers={"Content-Type": "text/plain"})
            assert text.status_code == 415
            upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Origin": "http://evil.example"}
            assert (await http.get(path, headers=upgrade)).status_code == 403


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_hundred_megabytes_are_refused_and_the_client_gets_to_read_why(place: Place, chunked: bool) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * (1 << 20)

    async with web(place) as server, server.http() as http:
        length = {} if chunked else {"Content-Length": str(100 << 20)}
        for path in ("/mcp", "/api/resources", "/nowhere"):
            headers = {"Content-Type": "application/json", **length}
            answer = await http.post(path, content=body(), headers=headers)
            assert (answer.status_code, answer.json()["status"]) == (413, "too_large")


# -- the end --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_that_ends_answers_closes_and_leaves_nothing_within_five_seconds(
    place: Place, how: signal.Signals
) -> None:
    async with web(place) as server, server.http() as http:
        session, idle = await Session.open(http), await Session.open(http)
        await idle.cell("import subprocess; p = subprocess.Popen(['sleep', '1000'], start_new_session=True)")
        await session.cell("1")
        call = asyncio.create_task(session.cell(SLEEP))
        standing = asyncio.create_task(http.get("/mcp", headers=session.headers))
        feed = asyncio.create_task(http.get("/api/events"))

        async def runs() -> bool:
            return any(r["busy"] for r in (await http.get("/api/resources")).json()["resources"])

        await until(runs)
        began = asyncio.get_running_loop().time()
        ending = asyncio.create_task(server.end(how))
        answered = await call
        assert "Running" in answered.text
        assert "asleep" in answered.text
        assert (await standing).status_code == 200
        assert (await feed).status_code == 200
        assert await ending == 0
        assert asyncio.get_running_loop().time() - began < 5
    assert await asyncio.to_thread(place.wait_until_empty) == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
async def test_an_idle_server_sleeps(place: Place) -> None:
    async with web(place) as server, server.agent() as agent:
        await agent.run("1")
        async with server.http() as http, http.stream("GET", "/api/events") as stream:
            assert stream.status_code == 200

            def switches() -> int:
                status = Path(f"/proc/{server.process.pid}/status").read_text()
                found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.M)
                assert found
                return int(found[1])

            await asyncio.sleep(1)
            before = await asyncio.to_thread(switches)
            await asyncio.sleep(3)
            woken = await asyncio.to_thread(switches) - before
            assert woken <= 6, f"{woken} times in 3 s"


async def told(http: httpx2.AsyncClient, ends: int) -> str:
    """All that the feed tells, up to so many ends of calls."""
    lines: list[str] = []
    async with asyncio.timeout(PATIENCE), http.stream("GET", "/api/events?recent=1000") as stream:
        async for line in stream.aiter_lines():
            lines.append(line)
            if lines[-2:-1] == ["event: call_ended"]:
                ends -= 1
            if not ends:
                return "\n".join(lines)
    raise AssertionError("\n".join(lines))


@pytest.mark.case("X15")
async def test_a_handle_is_told_to_its_caller_and_to_nobody_else(place: Place) -> None:
    async with web(place) as server, server.http() as http, server.agent("2026-07-28") as agent:
        [handle] = re.findall(r"kernel=(k_\S+)", await agent.run("1"))
        cut = "%%loommux --wait 0.2 --silence 0.2\nimport time; time.sleep(1)"
        calls = [
            await agent.refusal("run_cell", freeform="2"),  # kernel_required: names it
            await agent.refusal("run_cell", freeform="2", kernel=f"{handle}x"),  # kernel_not_found
            await agent.refusal("run_cell", freeform="%%loommux --attach lab\n2", kernel=handle),
            await agent.text("run_cell", freeform=cut, kernel=handle),
            await agent.text("wait", kernel=handle, timeout_seconds=30),
            await agent.text("status", kernel=handle),
            await agent.refusal("run_cell", freeform=f"%%loommux --attach {handle} --create\n2"),  # as a name
        ]
        assert any(handle in text for text in calls)
        seen = await told(http, len(calls) + 1)
        resources = (await http.get("/api/resources")).json()["resources"]
        views = [seen, json.dumps(resources), place.log()]
        for one in resources:
            for view in ("", "/status", "/executions", "/notices", "/notebook"):
                views.append((await http.get(f"/api/resources/{one['resource_id']}{view}")).text)
    assert not [view for view in views if handle in view]
    assert "kernel_required: pass kernel=k_" in seen
