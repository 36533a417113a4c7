"""The cell header inside the kernel: taken out without a trace, refused where it may not be."""

from __future__ import annotations

import pytest

from loommux_kernel.shared.protocol import State
from tests.kernel.kernel_process import Client, KernelProcess


def test_a_header_is_taken_out_and_the_history_keeps_it(server: Client) -> None:
    source = "%%loommux --wait 3 --full-output\nkept = 1"
    number = server.run(source).number
    assert server.run(f"assert kept == 1; assert _i{number} == {source!r}").state is State.COMPLETED


@pytest.mark.parametrize(
    "source",
    ["%%loommux --wait 3\n\nx = 1\n1/0", "\n\n%%loommux\nx = 1\n1/0", "\n\n\n\n1/0", "%%loommux\n    x = 1\n\n    1/0"],
)
def test_tracebacks_count_lines_as_they_were_sent(server: Client, source: str) -> None:
    line = source[: source.index("1/0")].count("\n") + 1
    reply = server.run(source)
    assert reply.ename == "ZeroDivisionError"
    assert reply.body is not None
    assert f", line {line}\n" in reply.body


@pytest.mark.parametrize(
    "source",
    ["\ufeff6 * 7", "\ufeff\n\n6 * 7", "\ufeff%%loommux --wait 3\n6 * 7", "%%loommux --wait 3\n\ufeff6 * 7",
     "\ufeff%%loommux --kernel test\n\ufeff6 * 7", "\ufeffimport asyncio\nawait asyncio.sleep(0)\n6 * 7"],
)  # fmt: skip
@pytest.mark.case("X20")
def test_a_byte_order_mark_is_passed_over(server: Client, source: str) -> None:
    reply = server.run(source)
    assert reply.body == f"Out[{reply.number}]: 42\n"
    assert server.run("'\ufeff' == chr(0xfeff)").body.endswith("True\n")  # type: ignore[union-attr]


@pytest.mark.case("X20")
def test_tracebacks_count_lines_behind_a_byte_order_mark(server: Client) -> None:
    assert ", line 3\n" in (server.run("\ufeff\n\n1/0").body or "")


def test_top_level_await_works_under_a_header(server: Client) -> None:
    reply = server.run("%%loommux --wait 3\nimport asyncio\nawait asyncio.sleep(0)\nprint('awaited')")
    assert reply.body == "awaited\n"


def test_another_cell_magic_may_follow(server: Client) -> None:
    reply = server.run("%%loommux --wait 3\n%%capture caught\nprint('inside')")
    assert reply.state is State.COMPLETED
    assert server.run("assert caught.stdout == 'inside\\n'").state is State.COMPLETED


def test_naming_this_kernel_is_naming_none(server: Client) -> None:
    assert server.run("%%loommux --kernel test\nok = 1").state is State.COMPLETED


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("%%loommux --wat 3\n1", "'--wat' is not an option"),
        ("%%loommux\n%%loommux --wait 3\n1", "it cannot stand anywhere else"),
        ("x = 1\n%%loommux --wait 3", "it cannot stand anywhere else"),
        ("%loommux --wait 3", "it cannot stand anywhere else"),
        ("%%time\n%%loommux --wait 3\n1", "it cannot stand anywhere else"),
        ("get_ipython().run_cell('%%loommux\\n1').raise_error()", "it cannot stand anywhere else"),
    ],
)
def test_a_header_elsewhere_or_in_error_is_a_usage_error(server: Client, source: str, says: str) -> None:
    reply = server.run(source)
    assert (reply.state, reply.ename) == (State.ERROR, "UsageError")
    assert reply.evalue is not None
    assert says in reply.evalue


def test_asking_for_help_shows_it(server: Client) -> None:
    reply = server.run("%%loommux?")
    assert reply.state is State.COMPLETED
    assert "--silence SECONDS" in (reply.body or "")


def test_a_header_with_nothing_under_it_runs_nothing(server: Client) -> None:
    assert server.run("%%loommux --wait 3").state is State.COMPLETED


def test_a_session_that_attaches_has_its_header_taken_out_and_a_client_is_refused(
    server: Client, kernel: KernelProcess
) -> None:
    source = "%%loommux --attach test --create\n'here'"
    assert server.run(source).state is State.COMPLETED
    refused = kernel.foreign().run_foreign(source)
    assert (refused["ename"], refused["status"]) == ("UsageError", "error")
    assert "only an MCP session" in refused["evalue"]
