"""Kernels that are reached over TCP speak with those alone who have read their connection files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from jupyter_client.connect import write_connection_file

from loommux_host.processes import transport_keys
from loommux_host.processes.transport_keys import transport_obstacles
from tests.e2e.driving import Agent, Place, Start, configure, connected, foreign

pytestmark = pytest.mark.anyio

TCP = 'kernel_transport = "tcp"'


async def connection(agent: Agent) -> tuple[str, dict[str, Any]]:
    """The connection file of its kernel, and what it says."""
    found = re.search(r"(/\S+kernel-loommux-\S+\.json)", await agent.text("status"))
    assert found
    return found[1], said_by(found[1])


def said_by(file: str) -> dict[str, Any]:
    return json.loads(Path(file).read_text())


class Eavesdropper:
    """Subscribes to everything on a kernel's IOPub, and sends rubbish to its shell, with other keys or none."""

    def __init__(self, info: dict[str, Any]) -> None:
        self._context = zmq.Context()
        self._subscribers = []
        for keys in (None, zmq.curve_keypair()):
            subscriber = self._socket(zmq.SUB, keys)
            subscriber.subscribe(b"")
            subscriber.connect(f"tcp://{info['ip']}:{info['iopub_port']}")
            self._subscribers.append(subscriber)
            heart = self._socket(zmq.DEALER, keys)
            heart.connect(f"tcp://{info['ip']}:{info['hb_port']}")
            heart.send(b"there?")
            self._subscribers.append(heart)

    def _socket(self, kind: int, keys: tuple[bytes, bytes] | None) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.linger = 0
        if keys is not None:  # the kernel's public key stands in its file, so this is a guess
            socket.curve_publickey, socket.curve_secretkey = keys
            socket.curve_serverkey = keys[0]
        return socket

    def __enter__(self) -> Eavesdropper:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def heard(self) -> int:
        return sum(bool(subscriber.poll(0)) for subscriber in self._subscribers)


async def said_of_a_kernel(place: Place, name: str) -> str:
    """What `loommux attach` says that finds no such kernel: which there are."""
    command = [sys.executable, "-m", "loommux_host.cli", "attach", name]
    environment = os.environ | place.environment
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
    return (await process.communicate())[1].decode()


@contextlib.asynccontextmanager
async def running_proxy(place: Place, file: str) -> AsyncIterator[None]:
    """The kernel that Jupyter starts for a notebook."""
    command = [sys.executable, "-m", "loommux_host.jupyter.proxy", "-f", file]
    process = await asyncio.create_subprocess_exec(*command, env=os.environ | place.environment)
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.case("X07")
async def test_a_kernel_over_tcp_is_heard_by_nobody_without_its_file(place: Place, start: Start) -> None:
    configure(place, TCP)
    async with start() as agent:
        await agent.run("1")
        file, info = await connection(agent)
        assert info["transport"] == "tcp"
        with Eavesdropper(info) as stranger:
            async with connected(file) as person:  # jupyter_client itself, by the file
                await foreign(person, "h = 41")
                assert "Out[3]: 42" in await agent.run("print('not for you'); h + 1")
                assert "restarted" in await agent.text("restart")
                await agent.run("print('nor this')")
            assert stranger.heard() == 0
        assert "there is private-" in await said_of_a_kernel(place, "nobody"), "a kernel answers our own commands"
        command = (await agent.text("status")).partition("Attach: ")[2].splitlines()[0]
        assert command.endswith(f"-m loommux_host.jupyter.console_clients console {file}")


@pytest.mark.case("X07")
async def test_jupyterlabs_kernel_is_encrypted_where_jupyter_wants_it(place: Place, start: Start) -> None:
    public, secret = zmq.curve_keypair()
    file, _ = write_connection_file(
        str(place.workspace / "notebook.json"), ip="127.0.0.1", key=b"key-of-jupyter", curve_publickey=public,
        curve_secretkey=secret,
    )  # fmt: skip
    configure(place, TCP)
    async with start() as agent:
        await agent.run("x = 6")
        async with running_proxy(place, file):
            with Eavesdropper(said_by(file)) as stranger:
                async with connected(file) as notebook:
                    await foreign(notebook, "y = x * 7")
                assert "Out[3]: 42" in await agent.run("y")
                assert stranger.heard() == 0


@pytest.mark.case("X07")
def test_without_encryption_a_start_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert transport_obstacles("ipc") == transport_obstacles("tcp") == []
    monkeypatch.setattr(zmq, "has", lambda capability: False)
    assert transport_obstacles("ipc") == []
    [warning] = transport_obstacles("tcp")
    assert "every account of this machine can read all cells and their output" in warning
    assert transport_keys.encryption_keys() == {}
