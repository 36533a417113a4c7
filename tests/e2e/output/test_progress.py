"""Whatever redraws itself is its final state, and while it goes on its current one (contract 3.5)."""

from __future__ import annotations

import pytest

from tests.e2e.driving import Agent, Place, until
from tests.e2e.shown import body, lines_of, printed

pytestmark = pytest.mark.anyio

FULL = "100%|"


@pytest.mark.case("M15")
async def test_a_bar_of_twenty_thousand_updates_is_one_line(agent: Agent) -> None:
    source = (
        "from tqdm import tqdm\nfor i in tqdm(range(20000), mininterval=0, miniters=1): pass\nprint('ready')\n"
        "import sys\nfor i in range(20000): sys.stdout.write(f'\\r{i + 1}/20000'); sys.stdout.flush()\n"
        "print('\\nready')"
    )
    bar, *rest = (await printed(agent, f"%%loommux --wait 60 --silence 60\n{source}")).split("\n")
    assert bar.startswith(FULL)
    assert " 20000/20000 [" in bar
    assert rest == ["ready", "20000/20000", "ready"]


async def test_nested_bars_are_their_last_lines(agent: Agent) -> None:
    source = (
        "from tqdm import tqdm\nfor i in tqdm(range(3), 'outer', {position}mininterval=0):\n"
        "    for j in tqdm(range(40), 'inner', {inner}mininterval=0): pass\nprint('after')"
    )
    gone = (await printed(agent, source.format(position="", inner="leave=False, "))).split("\n")
    assert [line.split("|")[0] for line in gone] == ["outer: 100%", "after"]
    kept = (await printed(agent, source.format(position="position=0, ", inner="position=1, "))).split("\n")
    assert sorted(line.split("|")[0] for line in kept) == ["after", *["inner: 100%"] * 3, "outer: 100%"]
    assert kept[-1] == "after"


@pytest.mark.case("E11")
async def test_a_notebooks_bars_are_text(agent: Agent) -> None:
    source = (
        "from tqdm.auto import tqdm\nfor i in tqdm(range(500)): pass\nprint('between')\n"
        "for i in tqdm(range(3), 'outer'):\n    for j in tqdm(range(9), 'inner', leave=False): pass"
    )
    first, between, second = (await printed(agent, source)).split("\n")
    assert first.startswith(FULL)
    assert " 500/500 [" in first
    assert between == "between"
    assert second.startswith("outer: 100%|")


CONSOLES = ["", "force_terminal=True", "force_jupyter=False", "force_terminal=True, force_jupyter=False"]


@pytest.mark.parametrize("console", CONSOLES)
async def test_progress_and_live_tables_of_rich_are_their_last_state(agent: Agent, console: str) -> None:
    await agent.run(
        "from rich.console import Console\nfrom rich.live import Live\nfrom rich.progress import Progress\n"
        "from rich.table import Table\nimport time\ndef table(rows):\n    made = Table('row', 'square')\n"
        "    for row in range(rows): made.add_row(str(row), str(row * row))\n    return made"
    )
    source = (
        f"with Progress(console=Console({console}), refresh_per_second=50) as progress:\n"
        "    one, two = progress.add_task('one', total=50), progress.add_task('two', total=100)\n"
        "    for i in range(50): progress.advance(one); progress.advance(two); time.sleep(0.004)\nprint('after')"
    )
    lines = [line for line in (await printed(agent, source)).split("\n") if line]
    assert [line.split()[0] for line in lines] == ["one", "two", "after"]
    assert " 100% " in lines[0]
    assert " 50% " in lines[1]
    source = (
        f"with Live(table(1), console=Console({console}), refresh_per_second=50) as live:\n"
        "    for rows in range(1, 7): live.update(table(rows)); time.sleep(0.03)"
    )
    rows = [line for line in (await printed(agent, source)).split("\n") if line.startswith("│")]
    assert [line.split()[1] for line in rows] == ["0", "1", "2", "3", "4", "5"]


REDRAWN = {
    "pip": (
        "import sys, time\nw = sys.stdout.write\nw('Collecting thing\\n\\x1b[?25l')\nfor i in range(0, 101, 5):\n"
        "    w('\\r\\x1b[K     |' + '#' * (i // 5) + ' ' * (20 - i // 5) + f'| {i} kB 1.2 MB/s eta 0:00:01')\n"
        "w('\\x1b[?25h\\r\\x1b[K     |' + '#' * 20 + '| 100 kB 1.2 MB/s\\nInstalled thing\\n');",
        ["Collecting thing", "     |####################| 100 kB 1.2 MB/s", "Installed thing"],
    ),
    "Keras": (
        "import sys\nfor epoch in (1, 2):\n    print(f'Epoch {epoch}/2')\n    for step in range(1, 11):\n"
        "        sys.stdout.write('\\b' * 60 + f'\\r\\x1b[1m{step:2}/10\\x1b[0m \\x1b[32m' + '━' * step"
        " + '\\x1b[0m\\x1b[37m' + '━' * (10 - step) + f'\\x1b[0m 3ms/step - loss: {epoch / step:.4f}')\n    print()",
        [
            "Epoch 1/2", "10/10 ━━━━━━━━━━ 3ms/step - loss: 0.1000",
            "Epoch 2/2", "10/10 ━━━━━━━━━━ 3ms/step - loss: 0.2000",
        ],
    ),
    "two lines that move up": (
        "import sys\nfor i in range(100):\n    print(f'a {i}\\nb {i}')\n"
        "    sys.stdout.write('\\x1b[2A\\x1b[2K' if i < 99 else '')\nprint('end')",
        ["a 99", "b 99", "end"],
    ),
    "a spinner that clears itself": (
        "import sys\nfor i in range(50): sys.stdout.write('\\r' + '|/-\\\\'[i % 4] + ' working')\n"
        "sys.stdout.write('\\r\\x1b[K'); print('done')",
        ["done"],
    ),
    "clear_output(wait=True)": (
        "from IPython.display import clear_output\nfor i in range(500): clear_output(wait=True); print('step', i)",
        ["step 499"],
    ),
    "clear_output()": (
        "from IPython.display import clear_output\nprint('a'); display('b'); clear_output(); print('c')",
        ["c"],
    ),
    "a display updated a thousand times": (
        "handle = display('start', display_id=True)\nprint('below')\n"
        "for i in range(1000): handle.update(f'update {i}')\nprint('end')",
        ["'update 999'", "below", "end"],
    ),
    "an output widget": (
        "import ipywidgets\nfrom IPython.display import clear_output\nprint('kept')\n"
        "out = ipywidgets.Output(); display(out)\n"
        "for i in range(9):\n    with out: clear_output(wait=True); print('inside', i)\nprint('after')",
        ["kept", "inside 8", "after"],
    ),
    "a widget": (
        "import ipywidgets\nbar = ipywidgets.IntProgress(); display(bar)\nfor i in range(100): bar.value = i",
        ["IntProgress(value=99)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REDRAWN)
@pytest.mark.case("M15", "E11")
async def test_what_is_redrawn_is_read_once(agent: Agent, kind: str) -> None:
    source, wanted = REDRAWN[kind]
    assert (await printed(agent, source)).split("\n") == wanted
    assert await lines_of(agent) == wanted
    found = await agent.text("search_output", query=wanted[-1], query_mode="literal")
    assert [row.split(" | ")[1] for row in body(found).split("\n")] == [wanted[-1]] * wanted.count(wanted[-1])


LIVE = {
    "tqdm": ("from tqdm import tqdm\nbar = tqdm(total=10, mininterval=0)", "bar.update(1)", "bar.close()", "{n}/10 ["),
    "tqdm.notebook": (
        "from tqdm.notebook import tqdm\nbar = tqdm(total=10, mininterval=0)",
        "bar.update(1)", "bar.close()", "{n}/10 [",
    ),
    "rich": (
        "from rich.progress import Progress\nbar = Progress(auto_refresh=False)\n"
        "task = bar.add_task('t', total=10)\nbar.start()",
        "bar.advance(task); bar.refresh()", "bar.stop()", " {n}0% ",
    ),
    "update_display": ("handle = display('0/10', display_id=True)", "handle.update(f'{n}/10')", "", "'{n}/10'"),
    "clear_output": (
        "from IPython.display import clear_output", "clear_output(wait=True); print(f'{n}/10')", "", "{n}/10",
    ),
}  # fmt: skip
RUN = """\
%%loommux --silence 0.4
import os, time
{begin}
def advance(steps):
    for n in steps: {step}
advance(range(1, 6))
while not os.path.exists({go!r}): time.sleep(0.02)
advance(range(6, 11))
{end}"""


@pytest.mark.parametrize("kind", LIVE)
@pytest.mark.case("M15")
async def test_a_wait_shows_the_current_state(agent: Agent, common_place: Place, kind: str) -> None:
    begin, step, end, shown = LIVE[kind]
    running = body(await agent.run(RUN.format(begin=begin, step=step, end=end, go=f"go {kind}")))
    assert running.startswith("Running, silent for")

    async def shows_it() -> bool:
        waited = body(await agent.text("wait", timeout_seconds=0.3, silence_seconds=0.3)).split("\n")
        return waited[0].startswith("Running") and shown.format(n=5) in waited[-1]

    await until(shows_it)  # what draws it may take a while to be imported
    (line,) = [line for line in await lines_of(agent) if line]
    assert shown.format(n=5) in line
    common_place.workspace.joinpath(f"go {kind}").touch()
    (line,) = body(await agent.text("wait", timeout_seconds=30, silence_seconds=30)).rstrip("\n").split("\n")
    assert shown.format(n=10) in line
