"""The main job over stdio, in both protocol eras, through the official client."""

from __future__ import annotations

import base64
import re

import pytest
from mcp.shared.exceptions import MCPError

from tests.e2e.driving import ERAS, Place, Start, text_of

pytestmark = pytest.mark.anyio

TOOLS = {"run_cell", "wait", "status", "execution_status", "read_output", "search_output", "interrupt", "restart"}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
FIGURE = f"""\
import base64
from IPython.display import Image, display
display(Image(data=base64.b64decode("{PIXEL}"), format="png"))
print("after")"""


@pytest.mark.parametrize("mode", [*ERAS, "auto"])
async def test_a_kernel_keeps_state_between_cells(start: Start, mode: str) -> None:
    async with start(mode=mode) as agent:
        assert re.fullmatch(r"In \[1\] · [\d.]+ m?s:\n?", await agent.run("x = 40"))
        assert (await agent.run("x + 2")).splitlines()[1:] == ["Out[2]: 42"]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_is_told_of_eight_tools(start: Start, mode: str) -> None:
    async with start(mode=mode) as agent:
        listed = await agent.client.list_tools()
        assert {tool.name for tool in listed.tools} == TOOLS
        assert all(tool.output_schema is None for tool in listed.tools)


@pytest.mark.parametrize("mode", ERAS)
async def test_a_python_error_is_a_state_and_not_an_error_of_the_call(start: Start, mode: str) -> None:
    async with start(mode=mode) as agent:
        text = await agent.run("1 / 0")
        assert "ZeroDivisionError: division by zero" in text
        assert "error" in await agent.text("execution_status")


@pytest.mark.parametrize("mode", ERAS)
async def test_images_stand_among_the_text(start: Start, mode: str) -> None:
    async with start(mode=mode) as agent:
        for result in (await agent.call("run_cell", freeform=FIGURE), await agent.call("wait", execution=1)):
            images = [block for block in result.content if block.type == "image"]
            assert [image.mime_type for image in images] == ["image/png"]
            assert base64.b64decode(images[0].data).startswith(b"\x89PNG")
            assert text_of(result).endswith("after\n") or text_of(result).endswith("after")


@pytest.mark.parametrize("mode", ERAS)
async def test_a_long_cell_is_watched_read_searched_and_interrupted(start: Start, mode: str) -> None:
    async with start(mode=mode) as agent:
        source = "import time\nfor i in range(10**6): print('row', i); time.sleep(0.01)"
        text = await agent.run(f"%%loommux --wait 0.5 --silence 0.5\n{source}")
        assert "Running" in text
        assert "Last lines:" in text
        assert (await agent.refusal("run_cell", freeform="1")).startswith("busy: In [1]")
        assert "running" in await agent.text("execution_status")
        assert (await agent.text("read_output", line_range="1:2")).splitlines()[1:] == ["row 0", "row 1"]
        assert "M 2 | row 1" in await agent.text("search_output", query=r"row 1$")
        assert "interrupted" in await agent.text("interrupt", execution=1)
        assert "Interrupted." in await agent.text("wait")
        assert "row" in await agent.text("read_output", stream="stdout", line_range="-1:")


@pytest.mark.parametrize("mode", ERAS)
async def test_a_restart_loses_variables_and_keeps_records(start: Start, mode: str) -> None:
    async with start(mode=mode) as agent:
        await agent.run("x = 1; print('before')")
        assert "process 2" in await agent.text("restart")
        assert "NameError" in await agent.run("x")
        assert "before" in await agent.text("read_output", execution=1, process=1)


@pytest.mark.parametrize("mode", ERAS)
async def test_the_content_is_all_unless_structured_results_are_asked_for(start: Start, mode: str) -> None:
    async with start(mode=mode) as agent:
        assert (await agent.call("run_cell", freeform="1")).structured_content is None
    async with start("--result-mode", "structured", mode=mode) as agent:
        result = await agent.call("run_cell", freeform="print('é'); 6 * 7")
        facts = result.structured_content
        assert facts is not None
        assert facts["ok"] is True
        assert facts["status"] == "completed"
        assert facts["execution"] == 1
        assert facts["output_text"] == "é\nOut[1]: 42\n"
        read = (await agent.call("read_output")).structured_content
        assert read is not None and read["elapsed_seconds"] == facts["elapsed_seconds"], "one duration, wherever it is"
        assert facts["stdout"] == "é\n"
        refused = (await agent.call("read_output", execution=9)).structured_content
        assert refused is not None
        assert (refused["ok"], refused["status"]) == (False, "execution_not_found")


REFUSED: list[tuple[str, dict[str, object], str]] = [
    ("run_cell", {"code": "1"}, "invalid_argument: code='1'"),
    ("run_cell", {"freeform": "  \n"}, "empty_cell"),
    ("run_cell", {"freeform": "%%loommux --wait soon\n1"}, "invalid_cell_header"),
    ("wait", {"timeout_seconds": -1}, "invalid_argument: timeout_seconds=-1"),
    ("read_output", {"stream": "stdin"}, "invalid_argument: stream='stdin'"),
    ("read_output", {"execution": 999}, "execution_not_found"),
    ("read_output", {"line_range": "x"}, "invalid_argument: line_range='x' is not possible: it has to be start:stop"),
    ("search_output", {"query": "(", "query_mode": "regex"}, "invalid_argument: query='(' is not possible: it has to"),
    ("interrupt", {}, "idle"),
    ("interrupt", {"execution": 1}, "not_running: In [1] does not run; its state is completed."),
    ("interrupt", {"execution": 9}, "not_running: In [9] does not run; there is none with that number."),
    ("status", {"kernel": "nobody"}, "kernel_not_found"),
    ("wait", {"process": 9}, "process_not_found"),
]


@pytest.mark.parametrize("mode", ERAS)
async def test_what_cannot_be_done_is_refused_and_loses_nothing(start: Start, mode: str) -> None:
    async with start(mode=mode) as agent:
        await agent.run("x = 40")
        for tool, arguments, says in REFUSED:
            text = await agent.refusal(tool, **arguments)
            assert text.startswith(says), (tool, arguments, text)
        assert (await agent.run("x + 2")).splitlines()[1:] == ["Out[2]: 42"]


@pytest.mark.case("P05")
async def test_an_expensive_pattern_is_given_up_and_holds_nothing_up(start: Start) -> None:
    async with start() as agent:
        await agent.run("print('a' * 40 + 'b')")
        text = await agent.refusal("search_output", query=r"^(a|aa)+$", query_mode="regex")
        assert text.startswith("query_too_expensive")
        assert "Out[2]: 2" in await agent.run("1 + 1")


@pytest.mark.parametrize("mode", ERAS)
async def test_an_unknown_tool_is_a_protocol_error(start: Start, mode: str) -> None:
    async with start(mode=mode) as agent:
        with pytest.raises(MCPError, match="Unknown tool: no_such_tool"):
            await agent.call("no_such_tool")
        assert "Out[1]: 2" in await agent.run("1 + 1")


async def test_cells_run_in_the_workspace_that_config_py_chose(start: Start, place: Place) -> None:
    chosen = place.workspace / "chosen"
    (place.workspace / ".loommux" / "startup").mkdir(parents=True)
    chosen.mkdir()
    config = place.workspace / ".loommux" / "config.py"
    config.write_text("print('loading')\ndef resolve_workspace(launch_cwd): return launch_cwd / 'chosen'")
    (place.workspace / ".loommux" / "startup" / "10-names.py").write_text("greeting = 'hello'")
    async with start() as agent:
        assert f"hello {chosen}" in await agent.run("import os; print(greeting, os.getcwd())")
        assert "explicit_config" in await agent.text("status")


async def test_a_server_for_the_handshake_alone_serves_clients_that_would_speak_the_newer_era(start: Start) -> None:
    async with start("--protocol", "handshake", mode="auto") as agent:
        assert "Out[1]: 2" in await agent.run("1 + 1")
