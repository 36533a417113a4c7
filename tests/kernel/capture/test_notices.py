"""Notices, and the `loommux` object that gives them (contract 6 and 8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loommux_kernel.capture.notices import Notices, shorten
from loommux_kernel.shared.protocol import NOTICE_CHARACTERS, NOTICES_KEPT, ExecutionEnded, NoticeGiven, State
from tests.kernel.kernel_process import Client, KernelProcess

Given = tuple[int | None, int | None, str, str]


class Heard:
    def __init__(self) -> None:
        self.given: list[Given] = []
        self.notices = Notices(lambda *notice: self.given.append(notice))


def test_a_notice_carries_its_execution_and_a_label() -> None:
    heard = Heard()
    heard.notices.begin(7, 5)
    heard.notices.give(7, "half done")
    heard.notices.give(None, "outside")
    heard.notices.give(7, "failed", label="Startup")
    assert heard.given == [(7, 5, "In [5]", "half done"), (None, None, "", "outside"), (7, 5, "Startup", "failed")]


def test_an_execution_keeps_ten_and_counts_the_rest() -> None:
    heard = Heard()
    heard.notices.begin(1, 1)
    kept = [heard.notices.give(1, str(n)) for n in range(13)]
    heard.notices.end(1)
    assert kept == [True] * NOTICES_KEPT + [False] * 3
    assert [text for *_, text in heard.given] == [*map(str, range(10)), "3 more notices were left out"]


def test_those_left_out_after_the_end_are_told_of_too() -> None:
    heard = Heard()
    heard.notices.begin(1, 1)
    for n in range(8):
        heard.notices.give(1, str(n))
    heard.notices.end(1)
    kept = [heard.notices.give(1, str(n)) for n in range(8, 15)]
    assert kept == [True] * 2 + [False] * 5
    heard.notices.begin(2, 2)
    heard.notices.give(1, "again")
    heard.notices.end(2)
    heard.notices.begin(3, 3)
    assert [text for *_, text in heard.given] == [
        *map(str, range(10)),
        "1 more notice was left out",
        "4 more notices were left out",
        "1 more notice was left out",
    ]
    assert {given[:3] for given in heard.given} == {(1, 1, "In [1]")}


def test_outside_executions_there_are_ten_again_after_each_that_begins() -> None:
    heard = Heard()
    for n in range(12):
        heard.notices.give(None, str(n))
    heard.notices.begin(1, 1)
    assert [text for *_, text in heard.given] == [*map(str, range(10)), *["1 more notice was left out"] * 2]
    assert [heard.notices.give(None, "more") for _ in range(11)] == [True] * NOTICES_KEPT + [False]
    assert {given[:3] for given in heard.given} == {(None, None, "")}


def test_nothing_is_said_at_the_end_of_an_execution_that_said_little() -> None:
    heard = Heard()
    heard.notices.begin(1, 1)
    heard.notices.give(1, "once")
    heard.notices.end(1)
    assert len(heard.given) == 1


def test_counts_of_old_executions_are_forgotten() -> None:
    heard = Heard()
    for serial in range(2000):
        heard.notices.begin(serial, serial)
        heard.notices.give(serial, "x")
    assert len(heard.notices._numbers) <= 256
    assert len(heard.notices._given) <= 256


@given(st.text(max_size=2000))
def test_a_notice_is_short_and_valid(text: str) -> None:
    short = shorten(text)
    assert len(short) <= NOTICE_CHARACTERS
    short.encode()
    assert len(short) < NOTICE_CHARACTERS or short == text or short.endswith("…")


def test_a_cell_tells_the_agent_something_at_once(server: Client) -> None:
    reply = server.run("loommux.notify('half done'); loommux.notify(42); loommux.notify('x' * 1000)")
    ended = server.wait_event(ExecutionEnded, serial=reply.serial)
    given = [e for e in server.events if isinstance(e, NoticeGiven) and e.serial == reply.serial]
    assert [e.text for e in given[:2]] == ["half done", "42"]
    assert (len(given[2].text), given[2].text[-1]) == (500, "…")
    assert {e.label for e in given} == {f"In [{reply.number}]"}
    assert all(e.sequence < ended.sequence for e in given)
    assert reply.body == ""


@pytest.mark.parametrize(
    "code",
    [
        "import threading\nt = threading.Thread(target=lambda: loommux.notify('spoke'))\nt.start(); t.join()",
        "import asyncio\nasync def f(): loommux.notify('spoke')\nawait asyncio.create_task(f())",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor() as pool: pool.submit(loommux.notify, 'spoke')",
        "def hook(*_): loommux.notify('spoke'); get_ipython().events.unregister('post_run_cell', hook)\n"
        "get_ipython().events.register('post_run_cell', hook)",
    ],
)  # fmt: skip
def test_threads_tasks_pools_and_hooks_speak_for_their_cell(server: Client, code: str) -> None:
    reply = server.run(code)
    assert reply.state is State.COMPLETED
    assert server.wait_event(NoticeGiven, text="spoke", serial=reply.serial).number == reply.number
    server.events.clear()


def test_a_thread_speaks_for_its_cell_after_that_has_ended(server: Client) -> None:
    code = (
        "import threading\ngo = threading.Event()\n"
        "t = threading.Thread(target=lambda: (go.wait(), loommux.notify('late')))\nt.start()"
    )
    first = server.run(code)
    server.run("go.set(); t.join()")
    assert server.wait_event(NoticeGiven, text="late").serial == first.serial


def test_loommux_knows_its_kernel_and_stays_out_of_sight(server: Client, kernel: KernelProcess) -> None:
    launch = kernel.launch
    expected = (launch.kernel_name, launch.kernel_id, launch.process)
    assert server.run(f"me = loommux.self; assert (me.name, me.id, me.process) == {expected}").state is State.COMPLETED
    body = server.run("%who").body
    assert body is not None
    assert "loommux" not in body.split()


def test_a_variable_of_that_name_is_the_users(server: Client) -> None:
    server.run("loommux = 'mine'")
    assert server.run("assert loommux == 'mine'; del loommux").state is State.COMPLETED
    server.run("%reset -f")
    assert server.run("loommux.notify").state is State.COMPLETED
