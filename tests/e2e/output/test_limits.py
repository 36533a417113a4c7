"""Output at scale and at the limits: complete in the record, bounded in results and in memory (contract 3.2, 3.5)."""

from __future__ import annotations

import random
import re

import psutil
import pytest

from loommux_host.token_counting.vocabulary import SHIPPED
from tests.e2e.driving import Agent, Place
from tests.e2e.shown import body, lines_of

pytestmark = pytest.mark.anyio

PATIENT = "%%loommux --wait 100 --silence 100\n"
LIMIT = 5_000


def prose(chance: random.Random) -> str:
    return " ".join("".join(chance.choices("etaoinshr", k=chance.randint(2, 9))) for _ in range(6_000))


TEXTS = {
    "prose": prose(random.Random(1)),
    "code": "\n".join(f"    if value_{i} >= {i * 7}:\n\treturn [x**2 for x in range({i})]  # why" for i in range(900)),
    "CJK": "".join(map(chr, random.Random(2).choices(range(0x4E00, 0x9FA5), k=9_000))),
    "emoji": "".join(random.Random(3).choices("😀🎉👩‍💻🇩🇪🏳️‍🌈❤️🚀", k=9_000)),
    "spaces": " " * 128 * LIMIT,
}


def sized(kind: str, wanted: int) -> str:
    """A text of exactly so many tokens, as tiktoken counts."""
    encoding = SHIPPED.encoding()
    if kind == "spaces":
        text = " " * 128 * wanted
    else:
        tokens = encoding.encode_ordinary(TEXTS[kind])[: wanted - 20]
        text = encoding.decode(tokens, errors="ignore").rstrip()
        text += " a" * (wanted - len(encoding.encode_ordinary(text)))
    assert len(encoding.encode_ordinary(text)) == wanted
    return text


@pytest.mark.parametrize("kind", TEXTS)
async def test_the_limit_of_a_result_is_exact(agent: Agent, common_place: Place, kind: str) -> None:
    for tokens in (LIMIT - 1, LIMIT, LIMIT + 1):
        text = sized(kind, tokens)
        common_place.workspace.joinpath("text").write_text(text, newline="")
        result = await agent.run("print(open('text', newline='').read(), end='')")
        if tokens <= LIMIT:
            assert body(result) == text
        else:
            assert re.match(r"Output omitted: [\d,]+ lines?, [\d,]+ characters, .*; over 5,000 tokens\. ", body(result))
            assert f", {len(text):,} characters, " in result


async def test_what_stands_for_an_omitted_output_is_its_last_lines_each_cut(agent: Agent) -> None:
    result = await agent.run("for i in range(3000): print(i, 'word ' * (i % 100))")
    said, heading, *tail = body(result).split("\n")
    assert said.startswith("Output omitted: 3,000 lines, ")
    assert "Use read_output() or search_output(); %%loommux --full-output returns all of the next run." in said
    assert heading == f"Last {len(tail)} lines:"
    assert len(tail) <= 20
    assert all(len(line) <= 201 for line in tail)
    assert tail[-1].startswith("2999 word ")
    assert SHIPPED.count("\n".join(tail)) <= 500


async def test_full_output_is_whole_up_to_200_000_characters_and_then_its_ends_and_the_next_call(agent: Agent) -> None:
    whole = await agent.run("%%loommux --full-output\nfor i in range(20_000): print(i)")
    assert body(whole).split("\n") == [str(i) for i in range(20_000)]
    assert body(await agent.text("wait")) == body(whole)
    ends = body(await agent.run("%%loommux --full-output\nfor i in range(60_000): print(i)"))
    call = re.search(r"read_output\(execution=(\d+), line_range=\"1:(\d+)\"\)", ends)
    assert call
    assert ends.endswith("\n59999")
    read = await lines_of(agent, int(call[1]), range=f"1:{call[2]}")
    assert read == [str(i) for i in range(int(call[2]))]


@pytest.mark.parametrize("characters", [1_000_000, 5_000_000])
async def test_what_can_never_fit_is_answered_without_counting(agent: Agent, characters: int) -> None:
    for character in ("x", " "):
        result = await agent.run(f"print({character!r} * {characters})")
        assert f"Output omitted: 1 line, {characters + 1:,} characters, " in result


#: name -> source, lines, and which lines to look at.
SCALES = {
    "one by one": ("for i in range(100_000): print('line', i)", 100_000),
    "a million in big prints": (
        "for c in range(1000): print('\\n'.join(f'line {i}' for i in range(c * 1000, c * 1000 + 1000)))", 1_000_000
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALES)
async def test_every_line_is_there_and_memory_does_not_grow_with_them(
    agent: Agent, common_place: Place, name: str
) -> None:
    source, count = SCALES[name]
    host, kernel = await processes(agent, common_place)
    before = memory(host), memory(kernel)
    result = await agent.run(PATIENT + source)
    characters = sum(len(f"line {i}\n") for i in range(count))
    assert f"Output omitted: {count:,} lines, {characters:,} characters, " in result
    middle = count // 2
    for range_, first in (("1:3", 0), (f"{middle}:{middle + 2}", middle - 1), ("-3:", count - 3)):
        assert await lines_of(agent, range=range_) == [f"line {i}" for i in range(first, first + 3)]
    found = await agent.text("search_output", query=r"line \d*777$", query_mode="regex")
    assert found.startswith(f"[{count // 1000:,} matching lines, {count // 1000:,} matches, of {count:,}]")
    assert memory(host) - before[0] < 16e6
    assert memory(kernel) - before[1] < 64e6


async def test_one_line_of_fifty_megabytes_is_there_and_can_be_searched_in_little_memory(
    agent: Agent, common_place: Place
) -> None:
    host, kernel = await processes(agent, common_place)
    before = memory(host), memory(kernel)
    result = await agent.run(f"{PATIENT}print('y' * 25_000_000 + 'middle' + 'y' * 25_000_000)")
    assert "Output omitted: 1 line, 50,000,007 characters, " in result
    assert await agent.text("read_output", max_chars=5) == (
        "[lines 1–1 of 1, characters 1–5 of 50,000,006; start_char=6 reads on]\nyyyyy…[50,000,001 chars omitted]"
    )
    assert (await agent.text("read_output", max_chars=8, start_char=25_000_000)).split("\n")[1].startswith("ymiddley…[")
    for query, matches in (("middle", 1), ("m[a-z]{4}e|zebra", 1), ("none", 0)):
        found = await agent.text("search_output", query=query, max_chars=5)
        heading = f"[{matches} matching line{'s' * (matches != 1)}, {matches} match{'es' * (matches != 1)}, of 1]"
        assert found.split("\n")[0] == heading
    assert memory(host) - before[0] < 16e6
    assert memory(kernel) - before[1] < 64e6


async def processes(agent: Agent, place: Place) -> tuple[psutil.Process, psutil.Process]:
    """The server's process and the kernel's, with all imported that a search and a count need."""
    await agent.run(f"print('line\\n' * {2 * LIMIT})")
    await agent.text("search_output", query="x.y", query_mode="regex")
    pid = int(body(await agent.run("import os; print(os.getpid())")))
    (host,) = [p for p in place.processes() if "loommux_host.cli" in p.cmdline()]
    return host, psutil.Process(pid)


def memory(process: psutil.Process) -> int:
    return process.memory_info().rss
