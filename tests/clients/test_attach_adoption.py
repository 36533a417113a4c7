"""jupyter console at a kernel whose server is killed, and taken over by the next."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.clients.jupyter import PATIENCE, Terminal, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a keeper")


class Servers:
    """Servers one after the other on one port, and a session that goes on through all of them."""

    def __init__(self, runtime: Path, workspace: Path) -> None:
        self._temporary = tempfile.mkdtemp(prefix="lm-")  # not below the test's own: the paths of sockets are short
        self.environment = os.environ | {"JUPYTER_RUNTIME_DIR": str(runtime), "TMPDIR": self._temporary}
        self._workspace = workspace
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.http = httpx2.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=PATIENCE, trust_env=False)
        self._headers = {"accept": "application/json, text/event-stream"}
        self.process = self.start()
        client = {"name": "tester", "version": "1"}
        answer = self._post("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client})
        self._headers["mcp-session-id"] = answer.headers["mcp-session-id"]

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "loommux_host.cli", "--server", "--port", str(self._port)]
        self.process = subprocess.Popen(command, cwd=self._workspace, env=self.environment, stdin=subprocess.DEVNULL)
        until(self._answers, "the server")
        return self.process

    def _answers(self) -> bool:
        try:
            return self.http.get("/api/health").status_code == 200
        except httpx2.TransportError:
            return False

    def _post(self, method: str, params: dict[str, Any]) -> httpx2.Response:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return self.http.post("/mcp", json=message, headers=self._headers)

    def call(self, tool: str, **arguments: Any) -> str:
        text = self._post("tools/call", {"name": tool, "arguments": arguments}).text
        data = next(line for line in text.splitlines() if line.startswith("data: {"))
        return "".join(block["text"] for block in json.loads(data[6:])["result"]["content"])

    def close(self) -> None:
        self.http.close()
        self.process.terminate()
        try:
            assert self.process.wait(PATIENCE) == 0
        finally:
            self.process.kill()
            shutil.rmtree(self._temporary, ignore_errors=True)


@pytest.fixture
def servers(private_jupyter: Path, tmp_path: Path) -> Iterator[Servers]:
    made = Servers(private_jupyter, tmp_path)
    yield made
    made.close()


def test_a_console_never_notices_that_the_server_was_killed(servers: Servers) -> None:
    servers.call("run_cell", freeform="from_agent = 41")
    file = re.search(r"--existing (\S+\.json)", servers.call("status"))
    assert file
    person = Terminal([sys.executable, "-m", "jupyter_console", "--existing", file[1]], servers.environment)
    person.cell("import time; [print('line', i) or time.sleep(0.1) for i in range(30)] and 'person'")
    person.until("line 3")
    servers.process.kill()
    servers.process.wait()
    servers.start()
    person.until(r"line 29\s+Out\[2\]: 'person'")
    person.cell("from_agent + 1")
    person.until(r"Out\[3\]: 42")
    text = servers.call("run_cell", freeform="from_agent")
    assert "Out[4]: 41" in text
    assert "2 cells were run by others" in text
    person.cell("exit")
    assert person.exit_code() == 0
