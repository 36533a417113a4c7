"""What an agent reads in a result, taken apart as it would: heading, output, what the environment says."""

from __future__ import annotations

from mcp_types import CallToolResult, ImageContent

from tests.e2e.driving import Agent, text_of

OPENING, CLOSING = "<loommux-notice>", "</loommux-notice>"


def body(text: str) -> str:
    """What stands between the heading and the environment's envelope."""
    lines = text.split("\n")[1:]
    return "\n".join(lines[: lines.index(OPENING)] if OPENING in lines else lines)


def notices(text: str) -> list[str]:
    """The lines of the environment's envelope, which ends the result."""
    lines = text.split("\n")
    if OPENING not in lines:
        return []
    assert lines[-1] == CLOSING, text
    return lines[lines.index(OPENING) + 1 : -1]


async def printed(agent: Agent, source: str) -> str:
    """The output of a cell that is shown whole."""
    return body(await agent.run(source))


async def failed(agent: Agent, source: str) -> tuple[str, str]:
    """The output of a cell that ends as an error, and the error that its record names."""
    shown = await printed(agent, source)
    status = await agent.text("execution_status")
    assert ": error\n" in status, status
    (named,) = [line.removeprefix("Error: ") for line in status.split("\n") if line.startswith("Error: ")]
    return shown, named


async def lines_of(agent: Agent, execution: int | None = None, stream: str = "combined", range: str = ":") -> list[str]:
    """Lines of one stream of a record."""
    chosen = {} if execution is None else {"execution": execution}
    text = await agent.text("read_output", stream=stream, line_range=range, **chosen)
    return body(text).split("\n") if "\n" in text else []


async def number_of(agent: Agent) -> int:
    """The number of the execution that ran last."""
    status = await agent.text("execution_status")
    return int(status.split("]")[0].removeprefix("In ["))


def outline(result: CallToolResult) -> list[str]:
    """A result's text by lines and its images by type, in order, without the heading."""
    pieces: list[str] = []
    for block in result.content:
        if isinstance(block, ImageContent):
            pieces.append(f"<{block.mime_type}>")
        else:
            pieces += text_of(CallToolResult(content=[block])).split("\n")
    return pieces[1:]
