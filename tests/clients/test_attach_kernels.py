"""Clients that talk Jupyter's protocol to an agent's kernel, and through the proxy kernel of the kernelspec."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jupyter_kernel_test
import nbclient
import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.clients.jupyter import LOOMMUX, PATIENCE, Agent, until


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch, private_jupyter: Path, tmp_path: Path) -> Path:
    """The kernelspec, installed as a person would; the directory that it is in."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    subprocess.run([LOOMMUX, "kernelspec", "install", "--user"], check=True, stdout=subprocess.PIPE)
    return tmp_path / "data" / "kernels" / "loommux"


@contextmanager
def notebook(**environment: str) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    """A kernel of the kernelspec, as a notebook has it."""
    manager = KernelManager(kernel_name="loommux", shutdown_wait_time=10.0)
    manager.start_kernel(env={**os.environ, **environment})
    client: Any = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def run(client: BlockingKernelClient, source: str, **options: Any) -> dict[str, Any]:
    """A cell's reply, with what it published as `text`."""
    seen: list[str] = []

    def take(message: dict[str, Any]) -> None:
        content = message["content"]
        seen.append(content.get("text") or content.get("data", {}).get("text/plain") or content.get("evalue") or "")

    reply = client.execute_interactive(source, timeout=PATIENCE, output_hook=take, **options)
    return {**reply["content"], "text": "".join(seen)}


class Conformance(jupyter_kernel_test.KernelTests):
    """What jupyter_kernel_test asks of every Python kernel."""

    __test__ = False  # run by the test below, which has a kernel for it
    language_name, file_extension = "python", ".py"
    code_hello_world, code_stderr = "print('hello, world')", "import sys; print('test', file=sys.stderr)"
    completion_samples = [{"text": "zi", "matches": {"zip"}}]  # noqa: RUF012
    complete_code_samples = ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n"]  # noqa: RUF012
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2"]  # noqa: RUF012
    invalid_code_samples = ["import = 7q"]  # noqa: RUF012
    code_generate_error, code_page_something, code_inspect_sample = "raise", "zip?", "zip"
    code_execute_result = [{"code": "1+2+3", "result": "6"}]  # noqa: RUF012
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    code_history_pattern, supported_history_operations = "1?2*", ("tail", "range", "search")
    code_display_data = [  # noqa: RUF012
        {"code": "from IPython.display import HTML, display; display(HTML('<b>x</b>'))", "mime": "text/html"},
        {"code": "from IPython.display import Math, display; display(Math('x'))", "mime": "text/latex"},
    ]


class Direct(Conformance):
    """On the kernel's own connection file."""

    connection_file = ""

    @classmethod
    def setUpClass(cls) -> None:
        client: Any = BlockingKernelClient(connection_file=cls.connection_file)
        client.load_connection_file()
        client.start_channels()
        client.wait_for_ready(timeout=PATIENCE)
        cls.kc = client

    @classmethod
    def tearDownClass(cls) -> None:
        cls.kc.stop_channels()


class Proxied(Conformance):
    """As a notebook has it."""

    kernel_name = "loommux"


@pytest.mark.parametrize("suite", [Direct, Proxied])
def test_jupyter_kernel_test_passes_on_the_kernel_itself_and_through_the_proxy(
    agent: Agent, spec: Path, suite: type[Conformance]
) -> None:
    agent.run("1")
    Direct.connection_file = agent.connection_file
    said = io.StringIO()
    result = unittest.TextTestRunner(said, verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(suite))
    assert result.wasSuccessful(), said.getvalue()
    assert result.testsRun >= 12
    assert not result.skipped, said.getvalue()


def test_nbclient_and_jupyter_execute_run_a_notebook_in_the_agents_kernel(
    agent: Agent, spec: Path, tmp_path: Path
) -> None:
    agent.run("given = 20")
    made = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("made = given + 1"), nbformat.v4.new_code_cell("made")]
    )
    nbclient.NotebookClient(made, kernel_name="loommux", timeout=int(PATIENCE)).execute()
    assert made.cells[1].outputs[0]["data"]["text/plain"] == "21"
    made.cells[0].source = "made = given + 2"
    nbformat.write(made, tmp_path / "n.ipynb")
    command = [sys.executable, "-m", "jupyter", "execute", "--kernel_name=loommux", "--inplace", "n.ipynb"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=PATIENCE)
    assert nbformat.read(tmp_path / "n.ipynb", 4).cells[1].outputs[0]["data"]["text/plain"] == "22"
    assert "Out[6]: 22" in agent.run("made")


def test_the_proxy_forwards_stdin_comms_with_buffers_and_interrupts_and_its_end_is_its_own(
    agent: Agent, spec: Path
) -> None:
    agent.run(
        "from comm import get_comm_manager\n"
        "def opened(comm, message):\n"
        "    def answer(m):\n"
        "        comm.send({'got': m['content']['data']}, buffers=[bytes(b)[::-1] for b in m['buffers']])\n"
        "    comm.on_msg(answer)\n"
        "get_comm_manager().register_target('echo', opened)"
    )
    with notebook() as (manager, client):
        reply = client.execute("name = input('who? ')", allow_stdin=True)
        asked = client.get_stdin_msg(timeout=PATIENCE)
        assert asked["content"]["prompt"] == "who? "
        assert asked["parent_header"]["msg_id"] == reply
        client.input("ada")
        assert client.get_shell_msg(timeout=PATIENCE)["content"]["status"] == "ok"
        assert run(client, "name")["text"] == "'ada'"

        echoed = comm_echo(client)
        assert echoed["content"]["data"] == {"got": {"x": 1}}
        assert [bytes(b) for b in echoed["buffers"]] == [b"cba"]

        client.execute("import time; time.sleep(300)")
        until(lambda: "Running: In [" in agent.call("status"))
        manager.interrupt_kernel()
        assert client.get_shell_msg(timeout=PATIENCE)["content"]["ename"] == "KeyboardInterrupt"
        assert manager.is_alive()
    assert "ada" in agent.run("name")
    assert "process 1" in agent.call("status")


def comm_echo(client: BlockingKernelClient) -> dict[str, Any]:
    """Open a comm, send it something with a buffer, and get what it sends back."""
    session = client.session
    opening = session.msg("comm_open", {"comm_id": "c1", "target_name": "echo", "data": {}})
    client.shell_channel.send(opening)
    saying = session.msg("comm_msg", {"comm_id": "c1", "data": {"x": 1}})
    session.send(client.shell_channel.socket, saying, buffers=[b"abc"])
    while True:
        message = client.get_iopub_msg(timeout=PATIENCE)
        if message["msg_type"] == "comm_msg":
            return message


def test_a_notebook_follows_a_restart_and_is_told_of_the_kernels_end_before_it_gets_another(
    private_jupyter: Path, spec: Path, tmp_path: Path
) -> None:
    first = Agent(private_jupyter, folder(tmp_path, "first"))
    first.run("here = 'first'")
    with notebook() as (_, client):
        assert run(client, "here")["text"] == "'first'"
        running = client.execute("import time; time.sleep(300)")
        until(lambda: "Running: In [" in first.call("status"))
        first.call("restart")
        lost = client.get_shell_msg(timeout=PATIENCE)
        assert lost["parent_header"]["msg_id"] == running
        assert "ended before it had answered" in lost["content"]["evalue"]
        assert run(client, "'here' in globals()")["text"] == "False", "the new process, by itself"
        first.close()
        second = Agent(private_jupyter, folder(tmp_path, "second"))
        second.run("here = 'second'")
        try:
            told = run(client, "here")
            assert told["status"] == "error"
            assert "has ended, and its variables with it" in told["evalue"]
            assert run(client, "here")["text"] == "'second'"
        finally:
            second.close()
        none = run(client, "here")
        none = run(client, "here") if "has ended" in none["evalue"] else none
        assert "no loommux kernel is running for this user" in none["evalue"]
        assert "loommux --server" in none["evalue"]


def test_a_notebook_may_name_its_kernel_and_is_told_which_there_are(
    private_jupyter: Path, spec: Path, tmp_path: Path
) -> None:
    older, newer = (Agent(private_jupyter, folder(tmp_path, name)) for name in ("older", "newer"))
    try:
        older.run("here = 'older'")
        newer.run("here = 'newer'")
        name = re.match(r"\S+(?=:)", older.call("status"))
        assert name
        with notebook() as (_, client):
            assert run(client, "here")["text"] == "'newer'"
        with notebook(LOOMMUX_SESSION=name[0]) as (_, client):
            assert run(client, "here")["text"] == "'older'"
        with notebook(LOOMMUX_SESSION="nobody") as (_, client):
            refusal = run(client, "here")["evalue"]
            assert "no loommux kernel is called 'nobody'; there are private-" in refusal
            assert name[0] in refusal
    finally:
        older.close()
        newer.close()


def test_the_kernelspec_goes_where_it_is_wanted_with_its_logos_and_away_again(spec: Path, tmp_path: Path) -> None:
    described = json.loads((spec / "kernel.json").read_text())
    assert described["argv"][0] == sys.executable
    assert described["interrupt_mode"] == "message"
    assert described["display_name"] == "loommux session"
    assert {p.name for p in spec.iterdir()} == {"kernel.json", "logo-32x32.png", "logo-64x64.png", "logo-svg.svg"}
    subprocess.run([LOOMMUX, "kernelspec", "remove"], check=True, stdout=subprocess.PIPE)
    assert not spec.exists()
    below = tmp_path / "elsewhere"
    subprocess.run([LOOMMUX, "kernelspec", "install", "--prefix", str(below)], check=True, stdout=subprocess.PIPE)
    assert (below / "share" / "jupyter" / "kernels" / "loommux" / "kernel.json").is_file()
    subprocess.run([LOOMMUX, "kernelspec", "remove", "--prefix", str(below)], check=True, stdout=subprocess.PIPE)
    again = subprocess.run([LOOMMUX, "kernelspec", "remove"], capture_output=True, text=True)
    assert again.returncode == 3
    assert "no kernelspec of loommux" in again.stderr


def folder(below: Path, name: str) -> Path:
    made = below / name
    made.mkdir()
    return made
