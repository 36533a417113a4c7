"""What a result says of a value, and that every character of what was printed can be read."""

from __future__ import annotations

import re

import pytest

from tests.e2e.driving import Agent
from tests.e2e.shown import body, lines_of, printed

pytestmark = pytest.mark.anyio

NEEDLE = "z" * 300_000 + "NEEDLE" + "y" * 300_000


@pytest.mark.case("X18")
@pytest.mark.parametrize("end", ["", "; print('\\n' * 99)"], ids=["on the screen", "settled"])
async def test_every_character_of_a_line_of_any_length_can_be_read(agent: Agent, end: str) -> None:
    shown = await agent.run(f"print('z' * 300_000 + 'NEEDLE' + 'y' * 300_000){end}")
    assert "Output omitted: " in shown
    for query in ("NEEDLE", "N[D-E]+", "(?i)needle"):
        (row,) = body(await agent.text("search_output", query=query)).split("\n")
        assert (found := re.fullmatch(r"M 1:300001 \| …(z+NEEDLEy+)…", row)) and len(found[1]) == 400
    assert body(await agent.text("search_output", query="NEEDLE", max_chars=10)) == "M 1:300001 | …zzNEEDLEyy…"
    text, read = await agent.text("read_output", line_range="1:1"), ""
    while call := re.search(r'line_range="1:1", (?:start_char=(\d+), )?max_chars=(\d+)|start_char=(\d+) reads', text):
        start, size = int(call[1] or call[3] or 1), int(call[2] or 180_000)
        text = await agent.text("read_output", line_range="1:1", start_char=start, max_chars=size)
        read += body(text)[:size]
    assert read == NEEDLE
    around = await agent.text("read_output", line_range="1:1", start_char=299_999, max_chars=10)
    assert around == (
        "[lines 1–1 of 1, characters 299,999–300,008 of 600,006; start_char=300009 reads on]\n"
        "zzNEEDLEyy…[299,998 chars omitted]"
    ).replace("of 1,", "of 101," if end else "of 1,")


@pytest.mark.case("X18")
async def test_rows_of_long_lines_are_cut_around_their_match_and_lines_are_read_by_columns(agent: Agent) -> None:
    await agent.run("for n in range(3): print(f'{n} ' + 'q' * 9_990 + f' hit {n}')\nprint('short hit')")
    rows = body(await agent.text("search_output", query="hit 1", max_chars=20, context_before=1)).split("\n")
    assert rows == ["C 1 | 0 qqqqqqqqqqqqqqqqqq…[9,978 chars omitted]", "M 2:9994 | …qqqqqqqqqqqqqq hit 1"]
    assert body(await agent.text("search_output", query="short")) == "M 4 | short hit"
    assert await lines_of(agent, range="4:") == ["short hit"]
    columns = await agent.text("read_output", start_char=9_994, max_chars=200)
    assert columns == "[lines 1–4 of 4, from character 9,994 on]\nhit 0\nhit 1\nhit 2"
    assert await agent.refusal("read_output", start_char=0) == (
        "invalid_argument: start_char=0 is not possible: it has to be a positive integer."
    )


FRAME = "import pandas; pandas.DataFrame({'a': [1], 'b': [2]})"
TABLE = ["   a  b", "0  1  2"]


@pytest.mark.case("X22")
async def test_a_result_of_several_lines_keeps_its_columns_wherever_it_is_shown(agent: Agent) -> None:
    shown = await agent.run(f"%%loommux --wait 60 --silence 60\n{FRAME}")
    number = int(shown.split("]")[0].removeprefix("In ["))
    told = [f"Out[{number}]:", *TABLE]
    assert body(shown).split("\n") == told
    assert await lines_of(agent, number) == told
    assert await lines_of(agent, number, "result") == TABLE
    assert body(await agent.run(f"%%loommux --wait 60 --silence 60 --kernel frames\n{FRAME}")).split("\n") == [
        "Out[1]:", *TABLE
    ]  # fmt: skip
    followed = await printed(agent, f"print(repr(''.join(loommux.self.follow({number}))))")
    assert followed == repr("\n".join([*told, ""]))
    source = (
        f"import json; loommux.export('frames.ipynb'); cells = json.load(open('frames.ipynb'))['cells']\n"
        f"[cell['outputs'] for cell in cells if cell['execution_count'] == {number}][0][0]['output_type']"
    )
    assert "execute_result" in await printed(agent, source), "the text is not there twice"
    assert body(await agent.run("'one line'")).endswith("]: 'one line'")


SHOWN = {
    "for models": ("display({'text/plain': '<Frame>', 'text/llm+plain': '3 rows: 1, 2'}, raw=True)", "3 rows: 1, 2"),
    "a frame's style": (
        "import pandas; display(pandas.DataFrame({'a': [1]}).style.hide(axis='index').format(precision=1))",
        r"<pandas\.io\.formats\.style\.Styler at 0x[0-9a-f]+>\n\[display 1: also text/html [\d.]+ k?B; not shown\]",
    ),
    "HTML": (
        "from IPython.display import HTML; HTML('<b>x</b>')",
        r"Out\[\d+\]: <IPython\.core\.display\.HTML object>\n\[display 1: also text/html 8 B; not shown\]",
    ),
    "a cell of HTML": (
        "%%html\n<b>x</b>", r"<IPython\.core\.display\.HTML object>\n\[display 1: also text/html 9 B; not shown\]"
    ),
    "a chart": (
        "display({'text/plain': 'alt.Chart(...)', 'application/vnd.vegalite.v6+json': {'mark': 'point'}}, raw=True)",
        r"alt\.Chart\(\.\.\.\)\n\[display 1: also application/vnd\.vegalite\.v6\+json 17 B; not shown\]",
    ),
}  # fmt: skip


@pytest.mark.case("N20", "X34")
@pytest.mark.parametrize("kind", SHOWN)
async def test_a_value_that_says_little_of_itself_is_told_with_what_it_has_beside(agent: Agent, kind: str) -> None:
    source, wanted = SHOWN[kind]
    shown = await printed(agent, source)
    assert re.fullmatch(wanted, shown), shown
    assert re.fullmatch(wanted, "\n".join(await lines_of(agent)))


@pytest.mark.case("N21")
async def test_markdown_and_latex_are_shown_also_after_a_library_took_over_printing(agent: Agent) -> None:
    await agent.run("from rich import pretty; pretty.install()\nfrom IPython.display import Markdown, Latex")
    try:
        assert (await printed(agent, "Markdown('# x')")).endswith("]: # x")
        assert await printed(agent, "display(Latex('$y$'))") == "$y$"
        source = "class Own:\n    def _repr_markdown_(self): return '*own*'\nOwn()"
        assert (await printed(agent, source)).endswith("]: *own*")
    finally:
        await agent.text("restart")
