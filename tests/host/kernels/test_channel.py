"""The channel to a kernel process, against the kernel's side of Jupyter's sockets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zmq
from jupyter_client.session import Session

from loommux_host.kernels.channel import ChannelClosed, KernelUnresponsive, RequestFailed, ZmqChannel
from loommux_kernel.shared.protocol import (
    EVENT_TOPIC,
    EVENT_TYPE,
    METADATA_KEY,
    Event,
    NoticeGiven,
    Origin,
    OriginKind,
    Reply,
    Submission,
)

pytestmark = pytest.mark.anyio

Answer = Callable[[dict[str, Any]], tuple[dict[str, Any], dict[str, Any]] | None]
SUBMISSION = Submission("s1", 0, Origin(OriginKind.SESSION, "claude", "c1"), 1.0)


@dataclass
class Kernel:
    """The far side: sockets in a thread of their own, answering as a test wants."""

    connection_file: Path
    publish: Callable[[list[Event]], None]
    answers: dict[str, Answer]
    seen: list[dict[str, Any]]


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


@pytest.fixture
def kernel(context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path) -> Iterator[Kernel]:
    session = Session(key=b"secret")
    sockets = {name: context.socket(zmq.ROUTER) for name in ("shell", "control")}
    iopub, orders, near = context.socket(zmq.XPUB), context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    orders.bind("inproc://orders")
    near.connect("inproc://orders")
    info: dict[str, Any] = {"ip": "127.0.0.1", "transport": "tcp", "key": "secret", "signature_scheme": "hmac-sha256"}
    for name, socket in {**sockets, "iopub": iopub}.items():
        info[f"{name}_port"] = socket.bind_to_random_port("tcp://127.0.0.1")
    file = tmp_path / "connection.json"
    file.write_text(json.dumps(info))
    answers: dict[str, Answer] = {}
    seen: list[dict[str, Any]] = []

    def answer(socket: zmq.Socket[bytes]) -> None:
        identities, frames = session.feed_identities(socket.recv_multipart())
        message = session.deserialize(frames)
        seen.append(message)
        given = answers.get(message["msg_type"], lambda message: ({}, {}))(message)
        if given is not None:
            content, metadata = given
            kind = message["msg_type"].replace("_request", "") + "_reply"
            session.send(socket, kind, content, parent=message, ident=identities, metadata=metadata)

    def serve() -> None:
        poller = zmq.Poller()
        for socket in (*sockets.values(), iopub, orders):
            poller.register(socket, zmq.POLLIN)
        while True:
            for socket, _ in poller.poll():
                if socket is iopub:
                    topic = iopub.recv()[1:]
                    session.send(iopub, "iopub_welcome", {}, ident=topic)
                elif socket is orders:
                    order = orders.recv()
                    if not order:
                        return
                    session.send(iopub, EVENT_TYPE, json.loads(order), ident=EVENT_TOPIC)
                else:
                    answer(socket)  # pyright: ignore[reportArgumentType]

    def publish(events: list[Event]) -> None:
        for event in events:
            near.send(json.dumps(event.to_wire()).encode())

    thread = threading.Thread(target=serve)
    thread.start()
    yield Kernel(file, publish, answers, seen)
    near.send(b"")
    thread.join(10)
    for socket in (*sockets.values(), iopub, orders, near):
        socket.close(0)


@pytest.fixture
async def events() -> list[Event]:
    return []


@pytest.fixture
async def channel(
    context: zmq.Context[zmq.Socket[bytes]], kernel: Kernel, events: list[Event]
) -> AsyncIterator[ZmqChannel]:
    channel = ZmqChannel(context, kernel.connection_file, "the-server")
    await channel.open(events.append)
    yield channel
    channel.close()


def ran(number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"status": "ok"}, {METADATA_KEY: Reply(serial=number, number=number, body="1\n").to_wire()}


async def test_a_cell_goes_out_with_its_submission_and_comes_back_with_how_it_ended(
    channel: ZmqChannel, kernel: Kernel
) -> None:
    kernel.answers["execute_request"] = lambda message: ran(3)
    reply = await channel.execute("1", SUBMISSION)
    assert reply == Reply(serial=3, number=3, body="1\n")
    sent = kernel.seen[-1]
    assert Submission.from_wire(sent["metadata"][METADATA_KEY]) == SUBMISSION
    assert sent["content"]["code"] == "1"
    assert sent["content"]["stop_on_error"] is False
    assert sent["content"]["allow_stdin"] is False
    assert sent["header"]["session"] == "the-server"


async def test_answers_find_their_requests_whatever_their_order(channel: ZmqChannel, kernel: Kernel) -> None:
    kernel.answers["loommux_flush"] = lambda message: ({"n": message["content"]["n"]}, {})
    wanted = [channel.request("flush", {"n": n}, deadline=10) for n in range(500)]
    assert [answer["n"] for answer in await asyncio.gather(*wanted)] == list(range(500))


async def test_a_reply_that_says_nothing_of_the_cell_is_an_error(channel: ZmqChannel, kernel: Kernel) -> None:
    kernel.answers["execute_request"] = lambda message: ({"status": "aborted"}, {})
    with pytest.raises(RequestFailed, match="aborted"):
        await channel.execute("1", SUBMISSION)


async def test_a_request_that_is_not_answered_ends_at_its_deadline(channel: ZmqChannel, kernel: Kernel) -> None:
    kernel.answers["loommux_status"] = lambda message: None
    with pytest.raises(KernelUnresponsive, match=r"status within 0\.05 s"):
        await channel.request("status", deadline=0.05)


async def test_an_error_answer_is_raised_with_its_text(channel: ZmqChannel, kernel: Kernel) -> None:
    kernel.answers["loommux_told"] = lambda message: ({"error": "no such execution"}, {})
    with pytest.raises(RequestFailed, match="told: no such execution"):
        await channel.request("told", {"serials": [9]}, deadline=10)


async def test_events_arrive_in_order_and_none_is_left_when_many_come_at_once(
    channel: ZmqChannel, kernel: Kernel, events: list[Event]
) -> None:
    sent = [NoticeGiven(n, 1.0, None, None, "", "x") for n in range(1, 2001)]
    kernel.publish(list(sent))
    async with asyncio.timeout(20):
        while len(events) < len(sent):
            await channel.request("flush", deadline=10)
    assert events == sent


async def test_a_message_that_cannot_be_read_does_not_stop_the_next_ones(
    channel: ZmqChannel, kernel: Kernel, events: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    class Unknown(Event):
        kind = "unknown"

    kernel.publish([Unknown(1, 1.0), NoticeGiven(2, 1.0, None, None, "", "after")])
    async with asyncio.timeout(20):
        while not events:
            await channel.request("flush", deadline=10)
    assert [e.sequence for e in events] == [2]
    assert "could not be read" in caplog.text


async def test_closing_ends_whoever_waits_and_refuses_what_comes_after(channel: ZmqChannel, kernel: Kernel) -> None:
    kernel.answers["execute_request"] = lambda message: None
    waiting = asyncio.ensure_future(channel.execute("1", SUBMISSION))
    await channel.request("flush", deadline=10)
    channel.close()
    with pytest.raises(ChannelClosed):
        await waiting
    with pytest.raises(ChannelClosed):
        await channel.request("status", deadline=10)


async def test_a_cancelled_call_changes_nothing_for_the_next(channel: ZmqChannel, kernel: Kernel) -> None:
    kernel.answers["execute_request"] = lambda message: None
    waiting = asyncio.ensure_future(channel.execute("1", SUBMISSION))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    kernel.answers["execute_request"] = lambda message: ran(2)
    assert (await channel.execute("2", SUBMISSION)).serial == 2
