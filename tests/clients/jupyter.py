"""An agent over stdio, and the person at its kernel: what the tests of attached clients drive."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pexpect
import pyte

#: Seconds for anything that a loaded machine may take long for.
PATIENCE = 60.0
LOOMMUX = str(Path(sys.executable).with_name("loommux"))


def until(condition: Callable[[], Any], what: str = "it", seconds: float = PATIENCE) -> Any:
    """Wait for something in another process, which has no event to wait for; what it gave."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not come to be"
        time.sleep(0.05)
    return found


class Agent:
    """An MCP host's end of a stdio server."""

    def __init__(self, runtime: Path, workspace: Path) -> None:
        self.runtime, self.workspace = runtime, workspace
        self._temporary = tempfile.mkdtemp(prefix="lm-")  # not below the test's own: the paths of sockets are short
        self.environment = os.environ | {"JUPYTER_RUNTIME_DIR": str(runtime), "TMPDIR": self._temporary}
        self._log = (workspace / "server.log").open("w+")
        self._process = subprocess.Popen(
            [LOOMMUX], cwd=workspace, env=self.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
        )  # fmt: skip
        self._sent = 0
        client = {"name": "tester", "version": "1"}
        self._ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client})
        self._send({"method": "notifications/initialized"})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._process.stdin.flush()

    def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdout is not None
        self._sent += 1
        self._send({"id": self._sent, "method": method, "params": params})
        while True:
            line = self._process.stdout.readline()
            assert line, "the server has ended"
            message = json.loads(line)
            if message.get("id") == self._sent:
                return message["result"]

    def call(self, tool: str, **arguments: Any) -> str:
        """The text of a tool's result, also of a refusal."""
        result = self._ask("tools/call", {"name": tool, "arguments": arguments})
        return "".join(block.get("text", "") for block in result["content"])

    def run(self, source: str) -> str:
        return self.call("run_cell", freeform=source)

    @property
    def connection_file(self) -> str:
        found = re.search(r"--existing (\S+\.json)", self.call("status"))
        assert found
        return found[1]

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            assert self._process.wait(PATIENCE) == 0
        finally:
            self._process.kill()
            self._process.stdout.close()
            self._log.seek(0)
            log = self._log.read()
            self._log.close()
            shutil.rmtree(self._temporary, ignore_errors=True)
        assert "ERROR" not in log, log


class Terminal:
    """A program in a terminal, as a person sees it."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        environment = environment | {"TERM": "xterm"}
        self.program: Any = pexpect.spawn(
            command[0], list(command[1:]), dimensions=(50, 160), env=environment, encoding="utf-8", timeout=PATIENCE
        )
        self._screen = pyte.Screen(160, 50)
        self._screen.write_process_input = self.program.send  # where the cursor is, when it is asked
        self._stream = pyte.Stream(self._screen)

    def text(self) -> str:
        """What stands on the screen."""
        with contextlib.suppress(pexpect.TIMEOUT, pexpect.EOF):
            self._stream.feed(self.program.read_nonblocking(100_000, timeout=0.05))
        return "\n".join(line.rstrip() for line in self._screen.display)

    def until(self, pattern: str) -> str:
        """Wait until the screen shows that; all of it."""
        try:
            until(lambda: re.search(pattern, self.text()), repr(pattern))
        except AssertionError as error:
            raise AssertionError(f"{error}; the screen:\n{self.text().rstrip()}") from None
        return self.text()

    def prompt(self) -> int:
        """Wait for a prompt at the screen's end, with nothing behind it; its number."""
        self.until(r"In \[\d+\]:\s*\Z")
        return int(re.findall(r"In \[(\d+)\]:", self.text())[-1])

    def type(self, line: str) -> None:
        self.program.send(line + "\r")

    def cell(self, line: str) -> None:
        """Type it behind a prompt; back once it shows, so that nobody takes this prompt for the next."""
        number = self.prompt()
        self.type(line)
        empty = re.compile(rf"In \[{number}\]:\s*\Z")
        until(lambda: not empty.search(self.text()) or not self.program.isalive(), f"the echo of {line!r}")

    def exit_code(self) -> int:
        until(lambda: self.text() is not None and not self.program.isalive(), "the program's end")
        self.program.close()
        return self.program.exitstatus
