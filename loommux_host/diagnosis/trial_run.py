"""A server started over stdio as a host would, one cell run in it, and ended: does it work at all?

Owns that one conversation, line by line, so that nothing of a client library is between. Called by `commands.doctor`.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

ANSWER_SECONDS = 90.0
END_SECONDS = 15.0
CELL = "6 * 7"
OPENING = {
    "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "loommux doctor", "version": "1"},
}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """How it went: seconds until the server and until the first result answered; `failure` when one did not."""

    answered: float = 0.0
    first_result: float = 0.0
    failure: str | None = None


class _Failed(Exception):
    """The server did not do its part."""


def run(flags: Sequence[str]) -> Trial:
    """Start a server with those flags, run a cell, end it."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "loommux_host.cli", *flags],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        talk = _Talk(process)
        try:
            return _tried(talk, began)
        except (_Failed, OSError, KeyError) as error:
            why = str(error) or type(error).__name__
        finally:
            _end(process)
            talk.join()
        last = b"".join(talk.said[-5:]).decode(errors="replace").strip()
        return Trial(failure=f"{why}{': ' if last else ''}{last}")


def _tried(talk: _Talk, began: float) -> Trial:
    talk.ask(1, "initialize", OPENING)
    answered = time.monotonic() - began
    talk.tell("notifications/initialized")
    call = {"name": "run_cell", "arguments": {"freeform": f"%%loommux --wait 60\n{CELL}"}}
    text = "".join(block.get("text", "") for block in talk.ask(2, "tools/call", call)["content"])
    if "Out[1]: 42" not in text:
        raise _Failed(f"{CELL} gave {text}")
    return Trial(answered, time.monotonic() - began)


def _end(process: subprocess.Popen[bytes]) -> None:
    """A server ends when its input does."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


class _Talk:
    """Requests and their answers on the pipes of a process, each within a time."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._out: IO[bytes] = process.stdin
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        #: What it said on stderr, line by line.
        self.said: list[bytes] = []
        self._readers = [
            threading.Thread(target=self._read, args=(process.stdout,), daemon=True),
            threading.Thread(target=lambda: self.said.extend(process.stderr or ()), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def join(self) -> None:
        """Until all it said was read; only once it has ended."""
        for reader in self._readers:
            reader.join(END_SECONDS)

    def tell(self, method: str) -> None:
        self._send({"jsonrpc": "2.0", "method": method})

    def ask(self, id: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        end = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise _Failed(f"no answer to {method} within {ANSWER_SECONDS:g} s") from None
            if not line:
                raise _Failed(f"the server ended before it answered {method}")
            message = json.loads(line)
            if message.get("id") == id:
                if "error" in message:
                    raise _Failed(str(message["error"].get("message")))
                return message["result"]

    def _send(self, message: dict[str, Any]) -> None:
        self._out.write(json.dumps(message).encode() + b"\n")
        self._out.flush()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            self._lines.put(line)
        self._lines.put(b"")
