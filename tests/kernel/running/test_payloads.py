"""What a cell asks of the program that shows it: done by a client, shown or told where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from loommux_kernel.running import payloads
from loommux_kernel.shared.protocol import NoticeGiven, State
from tests.kernel.kernel_process import Client, KernelProcess


def notices(server: Client, serial: int) -> list[str]:
    server.take_published(0.05)
    return [event.text for event in server.events if isinstance(event, NoticeGiven) and event.serial == serial]


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("%load s.py", "# %load s.py\nx = 40 + 2\n"),
        ("get_ipython().set_next_input('y = 2')", "y = 2\n"),
        ("import asyncio\nawait asyncio.sleep(0)\n%load -r 1 s.py", "# %load -r 1 s.py\nx = 40 + 2\n"),
    ],
)
@pytest.mark.case("N15")
def test_text_for_a_next_input_is_shown_and_not_run(
    kernel: KernelProcess, server: Client, source: str, shown: str
) -> None:
    (Path(kernel.launch.workspace) / "s.py").write_text("x = 40 + 2\n")
    reply = server.run(source)
    assert (reply.state, reply.body) == (State.COMPLETED, shown)
    assert notices(server, reply.serial) == [payloads.NOT_RUN]
    assert server.run("x").ename == "NameError"


@pytest.mark.case("N15")
def test_an_earlier_cell_is_recalled_as_text(server: Client) -> None:
    first = server.run("recalled = 1")
    reply = server.run(f"%recall {first.number}")
    assert (reply.body, notices(server, reply.serial)) == ("recalled = 1\n", [payloads.NOT_RUN])


@pytest.mark.case("N15")
def test_an_editor_that_cannot_be_opened_and_an_unknown_request_are_told(kernel: KernelProcess, server: Client) -> None:
    file = Path(kernel.launch.workspace) / "edited.py"
    file.write_text("x = 1\n")
    reply = server.run("%edit edited.py")
    assert reply.state is State.COMPLETED
    assert notices(server, reply.serial) == [payloads.NO_EDITOR.format(file=file.resolve())]
    reply = server.run("get_ipython().payload_manager.write_payload({'source': 'mine', 'x': 1})")
    assert notices(server, reply.serial) == [payloads.UNKNOWN.format(source="mine")]
    reply = server.run("get_ipython().run_line_magic('quickref', '')")
    assert notices(server, reply.serial) == []  # paged, which is printing here


@pytest.mark.case("N15")
def test_a_foreign_client_gets_its_payloads_and_no_words(kernel: KernelProcess, server: Client) -> None:
    content = kernel.foreign().run_foreign("get_ipython().set_next_input('y = 2')")
    assert [(p["source"], p["text"]) for p in content["payload"]] == [("set_next_input", "y = 2")]
    server.take_published(0.05)
    assert not [event for event in server.events if isinstance(event, NoticeGiven)]
