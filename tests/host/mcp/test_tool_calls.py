"""One call from its arguments to MCP's JSON, in front of a service that a test decides."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from loommux_host.facts.result_limits import Limits
from loommux_host.facts.results import Answer
from loommux_host.mcp.tool_calls import Calls, progress_message
from loommux_host.rendering import message
from loommux_host.usecases.service import Service
from loommux_kernel.shared.protocol import Stream
from tests.host.faces import FakeService, calls_on, cell_answer, refusal

pytestmark = pytest.mark.anyio


def me() -> Any:
    return "me"


async def test_a_cell_reaches_the_service_as_its_source() -> None:
    service = FakeService(cell_answer("Out[7]: 1\n"))
    outcome = await calls_on(service).call(me, "run_cell", {"freeform": "1"})
    assert service.asked == [("run_cell", "me", {"source": "1", "kernel": None, "progress": None})]
    assert outcome.result == {
        "content": [{"type": "text", "text": "In [7] · 1.0 s:\nOut[7]: 1"}],
        "isError": False,
    }


async def test_arguments_reach_the_service_checked_and_with_their_defaults() -> None:
    service = FakeService(refusal())
    await calls_on(service).call(me, "read_output", {"execution": 7, "stream": "stderr"})
    name, _, values = service.asked[0]
    assert name == "read_output"
    assert values == {
        "execution": 7, "stream": Stream.STDERR, "line_range": None, "start_char": 1, "max_chars": None,
        "process": None, "kernel": None,
    }  # fmt: skip


async def test_a_refusal_is_marked_as_an_error() -> None:
    outcome = await calls_on(FakeService(refusal())).call(me, "run_cell", {"freeform": "1"})
    assert outcome.result["isError"] is True
    assert outcome.result["content"][0]["text"].startswith("busy: In [7] of lab")


async def test_a_bad_argument_is_refused_before_the_service_is_asked() -> None:
    service = FakeService(refusal())
    outcome = await calls_on(service, structured=True).call(me, "wait", {"timeout_seconds": -1})
    assert service.asked == []
    text = outcome.result["content"][0]["text"]
    assert text.startswith("invalid_argument: timeout_seconds=-1")
    assert "positive" in text
    assert outcome.result["isError"] is True
    assert outcome.result["structuredContent"]["status"] == "invalid_argument"


async def test_a_call_waits_for_a_service_that_is_still_starting() -> None:
    starting: asyncio.Future[Service] = asyncio.get_running_loop().create_future()
    calls = Calls(starting, Limits(), structured=False)
    call = asyncio.create_task(calls.call(me, "status", {}))
    impatient = asyncio.create_task(calls.call(me, "status", {}))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait({impatient})
    assert not starting.cancelled()
    starting.set_result(cast(Service, FakeService(cell_answer(""))))
    assert (await asyncio.wait_for(call, 10)).result["isError"] is False


async def test_images_are_blocks_of_their_own_with_their_meta() -> None:
    outcome = await calls_on(FakeService(cell_answer("before\nafter\n", image=True))).call(me, "wait", {})
    first, image, last = outcome.result["content"]
    assert first["text"].endswith("before")
    assert image["mimeType"] == "image/png"
    assert image["_meta"]["execution"] == 7
    assert last["text"] == "after"


@pytest.mark.parametrize(
    ("answer", "in_thread"),
    [(cell_answer("1\n"), False), (cell_answer("x" * 6_000), True), (cell_answer("", image=True), True)],
)
async def test_what_takes_long_to_render_does_not_hold_the_loop(
    answer: Answer, in_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    real = message.render

    def watched(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return real(*args, **options)

    monkeypatch.setattr(message, "render", watched)
    await calls_on(FakeService(answer)).call(me, "wait", {})
    assert (threads[0] is not threading.main_thread()) is in_thread


async def test_what_was_told_is_marked_by_whoever_hands_the_result_over() -> None:
    told: list[str] = []
    answer = cell_answer("")
    answer.delivered = lambda: told.append("told")
    outcome = await calls_on(FakeService(answer)).call(me, "wait", {})
    assert told == []
    outcome.delivered()
    assert told == ["told"]


async def test_a_cancelled_call_is_cancelled_in_the_service() -> None:
    service = FakeService(cell_answer(""))
    service.release = asyncio.Event()
    call = asyncio.create_task(calls_on(service).call(me, "run_cell", {"freeform": "1"}))
    await asyncio.wait_for(service.began.wait(), 10)
    call.cancel()
    await asyncio.wait_for(service.cancelled.wait(), 10)


def test_a_progress_message_has_the_elapsed_time_and_the_last_line() -> None:
    assert progress_message(75.0, "epoch 12") == "75.0 s · epoch 12"
    assert progress_message(4.0, "") == "4.0 s"


@pytest.mark.case("X09")
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("can't start new thread"), "can't start new thread"),
        (OSError(24, "Too many open files"), "[Errno 24] Too many open files"),
        (MemoryError(), "there is no memory left"),
    ],
)
async def test_what_the_system_refuses_is_an_answer(error: Exception, said: str) -> None:
    class Refused(FakeService):
        async def status(self, *_: Any, **__: Any) -> Answer:
            raise error

    outcome = await calls_on(Refused(refusal()), structured=True).call(me, "status", {})
    assert outcome.result["isError"] is True
    assert outcome.result["content"][0]["text"].startswith(
        f"system_error: the server could not do its part of status: {said}."
    )
    assert outcome.result["structuredContent"]["status"] == "system_error"


async def test_a_fault_of_ours_is_not_said_to_be_the_systems() -> None:
    class Broken(FakeService):
        async def status(self, *_: Any, **__: Any) -> Answer:
            raise RuntimeError("a fault")

    with pytest.raises(RuntimeError, match="a fault"):
        await calls_on(Broken(refusal())).call(me, "status", {})
