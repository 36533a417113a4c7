"""Foreign Jupyter clients: their cells, their rights, and that they and the server do not disturb each other."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from loommux_kernel.running.foreign_clients import Clients, program_name
from loommux_kernel.shared.protocol import (
    METADATA_KEY,
    ExecutionEnded,
    ExecutionStarted,
    InputAwaited,
    NoticeGiven,
    Origin,
    OriginKind,
    State,
    Submission,
    now,
)
from tests.kernel.kernel_process import Client, KernelProcess

ME = "ada"


@pytest.fixture
def foreign(kernel: KernelProcess) -> Client:
    return kernel.foreign(ME)


def test_a_foreign_cell_is_recorded_with_its_origin_and_takes_the_next_number(server: Client, foreign: Client) -> None:
    before = server.run("shared = 5").number
    content = foreign.run_foreign("shared += 1")
    assert content["status"] == "ok"
    assert before is not None
    assert content["execution_count"] == before + 1
    started = server.wait_event(ExecutionStarted, source="shared += 1")
    assert started.submission is None
    assert (started.origin.kind, started.origin.client) == (OriginKind.CLIENT, foreign.id)
    assert started.origin.label == ME
    server.seen = started.serial
    assert server.run("assert shared == 6").number == before + 2


def test_a_submission_that_a_foreign_cell_overtook_is_refused(server: Client, foreign: Client) -> None:
    seen = server.seen
    foreign.run_foreign("1")
    assert server.reply(server.submit("2", seen=seen)).refused == "busy"


@pytest.mark.parametrize("options", [{"silent": True}, {"store_history": False}])
def test_a_foreign_cell_that_ipython_does_not_count_has_no_number(
    server: Client, foreign: Client, options: dict[str, bool]
) -> None:
    before = server.run("1").number
    foreign.run_foreign("uncounted = 1", **options)
    started = server.wait_event(ExecutionStarted, source="uncounted = 1")
    assert started.number is None
    server.seen = started.serial
    assert before is not None
    assert server.run("assert uncounted == 1").number == before + 1


def test_a_blank_foreign_request_is_no_execution(server: Client, foreign: Client) -> None:
    before = server.run("1")
    foreign.run_foreign("", silent=True)
    foreign.run_foreign("   \n")
    assert server.run("1").serial == before.serial + 1


def test_expressions_without_code_are_recorded_but_not_counted(server: Client, foreign: Client) -> None:
    before = server.run("shared = 7")
    content = foreign.run_foreign("", silent=True, user_expressions={"x": "shared"})
    assert content["user_expressions"]["x"]["data"]["text/plain"] == "7"
    started = server.wait_event(ExecutionStarted, serial=before.serial + 1)
    assert (started.number, started.source) == (None, "")


def test_a_foreign_error_skips_only_what_that_client_had_queued(server: Client, foreign: Client) -> None:
    hold = server.submit("import time; time.sleep(0.3)")
    server.wait_event(ExecutionStarted, serial=server.seen + 1)
    failing = foreign.execute("1/0")
    queued = foreign.execute("skipped = True")
    mine = server.submit("'not skipped'", seen=server.seen + 2)
    assert server.reply(hold).state is State.COMPLETED
    assert foreign.answer(foreign.shell, failing)["content"]["status"] == "error"
    assert foreign.answer(foreign.shell, queued)["content"]["status"] == "aborted"
    assert server.reply(mine).state is State.COMPLETED
    assert foreign.run_foreign("assert 'skipped' not in globals()")["status"] == "ok"


def test_a_foreign_client_may_go_on_after_its_own_error(foreign: Client) -> None:
    failing = foreign.execute("1/0", stop_on_error=False)
    queued = foreign.execute("ran = True")
    assert foreign.answer(foreign.shell, failing)["content"]["status"] == "error"
    assert foreign.answer(foreign.shell, queued)["content"]["status"] == "ok"


def test_a_foreign_cell_that_leaves_stdout_broken_gets_its_idle_status(foreign: Client) -> None:
    request = foreign.execute("import sys; sys.stdout = object()")
    foreign.answer(foreign.shell, request)
    assert foreign.wait_idle(request)


def test_a_foreign_shutdown_request_is_refused_clearly(kernel: KernelProcess, foreign: Client) -> None:
    for socket in (foreign.control, foreign.shell):
        reply = foreign.answer(socket, foreign.send(socket, "shutdown_request", {"restart": False}))["content"]
        assert reply["status"] == "error"
        assert "belongs to a loommux server" in reply["evalue"]
    assert kernel.process.poll() is None
    assert foreign.run_foreign("1")["status"] == "ok"


def test_only_the_server_is_answered_on_the_control_channel(foreign: Client) -> None:
    for name in ("status", "interrupt", "quit", "withdraw"):
        assert foreign.ask(name) == {"error": "only this kernel's server is answered"}


def test_a_foreign_client_cannot_submit_in_the_servers_name(server: Client, foreign: Client) -> None:
    forged = Submission("forged", 0, Origin(OriginKind.SESSION, "session x"), now())
    content = {"code": "'forged'", "store_history": True}
    request = foreign.send(foreign.shell, "execute_request", content, {METADATA_KEY: forged.to_wire()})
    assert METADATA_KEY not in foreign.answer(foreign.shell, request)["metadata"]
    assert server.wait_event(ExecutionStarted, source="'forged'").origin.kind is OriginKind.CLIENT


def test_a_foreign_interrupt_reaches_the_running_cell_and_is_told(server: Client, foreign: Client) -> None:
    request = server.submit("while True: pass")
    started = server.wait_event(ExecutionStarted, serial=server.seen + 1)
    foreign.answer(foreign.control, foreign.send(foreign.control, "interrupt_request", {}))
    assert server.reply(request).state is State.INTERRUPTED
    notice = server.wait_event(NoticeGiven, serial=started.serial)
    assert (notice.label, notice.text) == (f"In [{started.number}]", f"interrupted by {ME}")


def test_a_foreign_interrupt_of_an_idle_kernel_does_nothing(server: Client, foreign: Client) -> None:
    foreign.answer(foreign.control, foreign.send(foreign.control, "interrupt_request", {}))
    assert server.run("'fine'").state is State.COMPLETED


def test_a_foreign_cell_reads_its_own_clients_stdin_and_the_server_is_told(server: Client, foreign: Client) -> None:
    request = foreign.execute("answer = input('name? ')", allow_stdin=True)
    asked = foreign.receive(foreign.stdin)
    assert asked["content"]["prompt"] == "name? "
    assert server.wait_event(InputAwaited, waiting=True)
    foreign.send(foreign.stdin, "input_reply", {"value": "ada"})
    assert foreign.answer(foreign.shell, request)["content"]["status"] == "ok"
    assert server.wait_event(InputAwaited, waiting=False)
    assert foreign.run_foreign("assert answer == 'ada'")["status"] == "ok"


def test_the_status_lists_who_was_heard(server: Client, foreign: Client) -> None:
    foreign.run_foreign("1")
    clients = server.ask("status")["clients"]
    assert {"label": ME, "client": foreign.id} in [{k: c[k] for k in ("label", "client")} for c in clients]
    assert all(c["heard_seconds"] >= 0 for c in clients)
    assert not any(c["client"] == server.id for c in clients)


def test_jupyter_clients_own_client_works_beside_the_server(kernel: KernelProcess, server: Client) -> None:
    client: Any = BlockingKernelClient()
    client.load_connection_info(json.loads(kernel.connection.read_text()))
    client.start_channels()
    try:
        client.wait_for_ready(timeout=20)
        info = client.kernel_info(reply=True, timeout=20)["content"]
        assert info["supported_features"] == []
        lines: list[str] = []
        reply = client.execute_interactive(
            "print('from blocking client'); 3", timeout=20, output_hook=lambda m: lines.append(m["msg_type"])
        )
        assert reply["content"]["status"] == "ok"
        assert "stream" in lines
        assert "execute_result" in lines
        assert client.complete("impor", reply=True, timeout=60)["content"]["matches"]
        assert client.inspect("print", reply=True, timeout=20)["content"]["found"]
        assert client.history(reply=True, timeout=20)["content"]["status"] == "ok"
        for code in ("for x in y:", "%%loommux --wat"):
            client.is_complete(code)
            assert client.get_shell_msg(timeout=20)["content"]["status"] == "incomplete"
    finally:
        client.stop_channels()
    ended = server.wait_event(ExecutionEnded, state=State.COMPLETED)
    assert ended.number is not None


def test_an_unreadable_request_is_answered(foreign: Client) -> None:
    request = foreign.send(foreign.shell, "execute_request", {"no": "code"})
    content = foreign.answer(foreign.shell, request)["content"]
    assert (content["status"], content["ename"]) == ("error", "BadRequest")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["/usr/bin/python3.12", "-m", "qtconsole", "--existing", "x.json"], "qtconsole"),
        (["/venv/bin/python", "/venv/bin/jupyter-qtconsole"], "qtconsole"),
        (["/venv/bin/python", "-W", "ignore", "/venv/bin/jupyter-console", "--existing"], "console"),
        (["/venv/bin/python3", "-m", "jupyter_console"], "jupyter_console"),
        (["python", "-c", "code"], "python"),
        (["python"], "python"),
        (["/opt/tools/probe.py"], "probe.py"),
        (["python", "tools/probe.py"], "probe"),
        ([], None),
    ],
)  # fmt: skip
def test_a_client_is_called_as_people_call_its_program(command: list[str], name: str | None) -> None:
    assert program_name(command) == name


def test_a_client_that_tells_its_pid_is_called_by_its_program() -> None:
    program = [sys.executable, "-c", "print(flush=True); input()"]
    client = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert client.stdout is not None and client.stdout.readline()  # it has begun
        header = {"session": "s", "username": "ada", "msg_id": f"s_{client.pid}_1"}
        assert Clients("server").origin(header).label.startswith("python")
    finally:
        client.communicate(b"\n")
    assert Clients("server").origin(header).label == "ada"


def test_clients_without_a_pid_are_called_by_their_user_or_not_at_all() -> None:
    clients = Clients("server")
    assert clients.origin({"session": "s", "username": "ada", "msg_id": "0-1"}).label == "ada"
    assert clients.origin({"session": "s", "username": "", "msg_id": "0-1"}).label == "jupyter client"


def test_clients_are_remembered_up_to_a_bound_and_the_server_is_none() -> None:
    clients = Clients("server")
    clients.heard({"session": "server", "msg_id": "x"}, 1.0)
    for n in range(200):
        clients.heard({"session": f"s{n}", "username": "u", "msg_id": "x"}, float(n))
    wire = clients.to_wire(time.time())
    assert len(wire) == 64
    assert wire[-1]["client"] == "s199"
