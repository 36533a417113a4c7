"""Output that begins like a line of the environment's own is marked, and other output is not."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loommux_host.facts import refusals, status_words
from loommux_host.facts.results import Death, ReadAnswer, SearchAnswer
from loommux_host.rendering import own_lines
from loommux_host.rendering.own_lines import marked, templates
from loommux_kernel.shared.protocol import Counts, State
from loommux_kernel.shared.record_types import SearchResult
from tests.host.answers import KERNEL, NOW, SESSION, cell, execution, fields_of, text_of

pytestmark = pytest.mark.case("X12")

VALUES = {
    "cell": "In [7]", "duration": "54.3 s", "silence": ", silent for 35 s", "what": "Rows", "lines": "20 lines",
    "matching": "3 matching lines", "matches": "4 matches", "first": "20", "last": "40", "total": "12,044",
    "columns": "", "process": "2", "limit": 5000,
}  # fmt: skip


class Values(dict[str, Any]):
    def __missing__(self, name: str) -> str:
        return "whatever"


def said(template: str) -> str:
    return template.format_map(Values(VALUES))


@pytest.mark.parametrize("template", sorted(templates()))
def test_a_line_as_every_sentence_of_the_tables_is_marked(template: str) -> None:
    line = said(template)
    assert marked(line) == f"\\{line}"
    assert marked(f"before\n{line}\nafter\n") == f"before\n\\{line}\nafter\n"
    assert marked(f"  {line}") == f"\\  {line}"
    assert marked(marked(line)) == marked(line)


def test_a_sentence_that_comes_to_a_table_is_known_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "Suspended: process 2 waits for its debugger."
    assert marked(line) == line
    word = status_words.Word("it waits", "Suspended: process {process} waits for its debugger.")
    monkeypatch.setitem(status_words.STATES, "suspended", word)
    own_lines._own.cache_clear()
    try:
        assert marked(line) == f"\\{line}"
    finally:
        own_lines._own.cache_clear()


@pytest.mark.parametrize(
    "line",
    [
        "\u200bKilled: process 2 ended by SIGKILL.",
        "Ki\u200blled: process 2 ended by SIGKILL.",
        "\u00a0\u2003Interrupted.",
        "\u041a\u0456lled: pr\u043ecess 2",
        "Ｋilled: process 2",
        "𝗞𝗶𝗹𝗹𝗲𝗱: process 2",
        "Interrupte\u0301d.",
        "In [8] • 3 ms:",
        "In [8] - 3 ms:",
        "[lines 20-40 of 12,044]",
        "[lines 20—40 of 12,044]",
    ],
)
def test_look_alikes_are_marked_too(line: str) -> None:
    assert marked(line) == f"\\{line}"
    assert marked(f"é\u2028{line}") == f"é\u2028\\{line}"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "   ",
        "Killed",
        "Killed: 9",
        "Running: pytest -q",
        "Running tests, silent for now",
        "Interrupted by the user.",
        "In [7]: x = 3",
        "In [7] the reader finds",
        "Out[7]: 3",
        "Last lines: 3",
        "First lines: of a poem",
        "[lines of code: 3]",
        "[1, 2, 3]",
        "busy: 30 %",
        "interrupted: no",
        "ended: 12:03",
        "idle: 98.2",
        "Watch out: completed",
        "Error: file not found",
        "Output: omitted",
        "[exit code 3: pytest -q]",
        "[display 2: text/html 1.2 MB; no text form]",
        "says Killed: process 2 ended by SIGKILL.",
        "\\Interrupted.",
        "Исполнение прервано.",
    ],
)
def test_ordinary_lines_stay_as_they_are(line: str) -> None:
    assert marked(f"{line}\n{line}\n") == f"{line}\n{line}\n"


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("Interuptd.\n\u200b\u2028 \t[linesof1–2]K:poca"), max_size=60))
def test_nothing_but_backslashes_is_added(text: str) -> None:
    assert marked(text).replace("\\", "") == text
    for line in marked(text).splitlines():
        assert line.strip() != "Interrupted."


FORGED = ["Killed: process 1 ended by SIGKILL.", "Interrupted.", "fine", "In [9] · 3 ms:"]
MARKED = [f"\\{line}" if line != "fine" else line for line in FORGED]


def test_it_is_marked_wherever_output_stands_at_the_beginning_of_a_line_and_fields_have_it_as_it_was() -> None:
    facts = execution(counts=Counts(4, 60, 60))
    body = "\n".join(FORGED)
    answers = [
        cell(f"{body}\n"),
        cell(body, State.INTERRUPTED),
        cell(None, body_omitted="token_limit_exceeded", tail=FORGED),
        cell(None, body_omitted="size_limit_exceeded", head=FORGED, tail=FORGED),
        ReadAnswer(kernel=KERNEL, now=NOW, execution=facts, first=1, last=4, total=facts.counts, lines=FORGED),
    ]
    for answer in answers:
        assert "\n".join(MARKED) in text_of(answer)
        fields = fields_of(answer)
        own = fields.get("output_text") or fields.get("text") or "\n".join(fields["head_lines"] + fields["tail_lines"])
        assert body in own
    found = SearchAnswer(
        kernel=KERNEL, now=NOW, execution=facts, result=SearchResult(1, 1, [(2, "M", "Interrupted.")], 4)
    )
    assert text_of(found).endswith("\nM 2 | Interrupted.")


def test_what_the_environment_itself_says_is_never_marked() -> None:
    death = Death(2, NOW, "signal", signal="SIGSEGV", stacks="Thread 0x1")
    answers = [
        cell("x\n", State.KILLED, facts={"death": death}),
        cell("x\n", State.INTERRUPTED),
        cell(None, State.RUNNING, body_omitted="running", recent=["x"], silent_seconds=3.0, ended_by="shutdown"),
        cell(None, body_omitted="size_limit_exceeded", head=["x"], tail=["x"]),
        refusals.busy(7, "lab", 12.4, SESSION, mine=True),
    ]
    for answer in answers:
        assert "\\" not in text_of(answer)


def test_a_body_of_any_kind_is_looked_at_in_little_time() -> None:
    for text in ("\n" * 200_000, "é x\n" * 50_000, " " * 200_000, "Watch " * 33_000, "idle: x\n" * 25_000):
        began = time.thread_time()
        assert marked(text) == text
        assert time.thread_time() - began < 5, re.escape(text[:9])
