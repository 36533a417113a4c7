"""No result is larger than a message may be, and nothing is cut silently."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loommux_host.facts.refusals import kernel_start_failed
from loommux_host.facts.result_limits import FRAME_BYTES, Limits
from loommux_host.facts.results import Answer, Notice, ReadAnswer, RestartAnswer, SearchAnswer, StatusAnswer
from loommux_host.rendering.excerpts import last_lines
from loommux_host.rendering.images import ImageBlock
from loommux_host.rendering.message import Rendered, TextBlock, render
from loommux_host.token_counting.vocabulary import SHIPPED, Vocabulary
from loommux_kernel.shared.lines import LineRange, clip
from loommux_kernel.shared.protocol import Counts, State, Stream
from loommux_kernel.shared.record_types import SearchResult
from tests.host.answers import KERNEL, NOW, cell, counts, execution, fields_of, rendered, text_of

LINES = [f"line {n} " + "x" * (n % 140) for n in range(1, 12_045)]
BODY = "".join(f"{line}\n" for line in LINES)


def wire(made: Rendered, ascii_wire: bool = True) -> int:
    """The bytes of a response that carries `made`."""
    content: list[dict[str, Any]] = []
    for block in made.blocks:
        if isinstance(block, TextBlock):
            content.append({"type": "text", "text": block.text})
        else:
            content.append({"type": "image", "data": block.data, "mimeType": block.mime_type, "_meta": block.meta})
    result: dict[str, Any] = {"content": content, "isError": made.is_error, "resultType": "complete"}
    if made.structured is not None:
        result["structuredContent"] = made.structured
    message = {"jsonrpc": "2.0", "id": "x" * 36, "result": result}
    return len(json.dumps(message, ensure_ascii=ascii_wire).encode())


def read(lines: list[str], **more: Any) -> ReadAnswer:
    total = more.pop("total", counts("".join(f"{line}\n" for line in lines)))
    first = more.pop("first", 1)
    return ReadAnswer(
        kernel=KERNEL, now=NOW, execution=execution(), first=first, last=first + len(lines) - 1, total=total,
        lines=lines, **more,
    )  # fmt: skip


def named_range(call: str) -> tuple[int, int]:
    match = re.search(r'line_range="(\d+:\d+)"', call)
    assert match
    return LineRange.parse(match[1]).resolve(len(LINES))


def test_a_body_within_200_000_characters_is_shown_whole() -> None:
    body = "x" * 199_999 + "\n"
    assert text_of(cell(body)) == "In [7] · 54.3 s:\n" + body[:-1]


def test_a_larger_one_is_its_ends_its_counts_and_the_call_that_reads_on() -> None:
    text = text_of(cell(BODY, full_output=True))
    second = text.splitlines()[1]
    assert second.startswith(f"Output omitted: 12,044 lines, {len(BODY):,} characters, ")
    assert '; over 200,000 characters. Next: read_output(execution=7, line_range="1:' in second
    assert second.endswith(", or search_output().")
    head, tail = excerpts(text)
    assert head == LINES[: len(head)] and tail == LINES[-len(tail) :]
    for excerpt in (head, tail):
        assert len(excerpt) > 10 and 300 < SHIPPED.count("\n".join(excerpt)) <= 500
    first, last = named_range(second)
    assert first == 1 and 180_000 <= sum(len(line) + 1 for line in LINES[:last]) <= 200_001


def excerpts(text: str) -> tuple[list[str], list[str]]:
    lines = text.splitlines()
    at = [i for i, line in enumerate(lines) if re.fullmatch(r"(First|Last) (line|\d+ lines):", line)]
    return lines[at[0] + 1 : at[1]], lines[at[1] + 1 :]


def test_a_body_that_was_never_read_names_a_range_by_its_average() -> None:
    facts = {"counts": Counts(12_044, 903_112, 903_112)}
    answer = cell(None, body_omitted="size_limit_exceeded", full_output=True, head=[], tail=[], facts=facts)
    assert 'read_output(execution=7, line_range="1:2400")' in text_of(answer)
    known = cell(None, body_omitted="size_limit_exceeded", head=LINES[:200], tail=LINES[-200:], facts=facts)
    assert 'line_range="1:2' in text_of(known)


def test_a_single_line_that_is_too_long_is_read_with_max_chars() -> None:
    text = text_of(read(["x" * 1_000_000]))
    assert 'read_output(execution=7, line_range="1:1", max_chars=180000)' in text
    assert text.splitlines()[-1] == "x" * 199 + "…"
    assert text.count("x" * 199) == 1, "the one line stands there once"
    clipped = read([clip("x" * 1_000_000, 180_000)], max_chars=180_000)
    assert text_of(clipped).endswith("…[820,000 chars omitted]")


@pytest.mark.case("X18")
def test_of_a_single_line_that_is_too_long_every_result_says_how_to_read_on() -> None:
    line, start, seen = "".join(f"{n:06d}" for n in range(100_000)), 1, ""
    first = text_of(read([line], line_characters=600_000))
    most = re.search(r'line_range="1:1", max_chars=(\d+)\)', first)
    assert most
    for _ in range(9):
        lines = [clip(line, int(most[1]), start)]
        answer = read(lines, start_char=start, max_chars=int(most[1]), line_characters=600_000)
        text, fields = text_of(answer), fields_of(answer)
        end = min(600_000, start + int(most[1]) - 1)
        assert text.startswith(f"[lines 1–1 of 1, characters {start:,}–{end:,} of 600,000")
        seen += text.split("\n")[1][: int(most[1])]
        on = re.search(r"; start_char=(\d+) reads on\]\n", text)
        call = on and f'read_output(execution=7, line_range="1:1", start_char={on[1]}, max_chars={most[1]})'
        assert fields["next_call"] == call
        if on is None:
            break
        start = int(on[1])
    assert seen == line
    rest = text_of(read([line[1:]], start_char=2, line_characters=600_000))
    assert f'line_range="1:1", start_char=2, max_chars={most[1]})' in rest
    beyond = text_of(read([""], start_char=600_001, line_characters=600_000))
    assert beyond.startswith("[lines 1–1 of 1, no character 600,001: it has 600,000]")
    assert text_of(read(["", "b"], start_char=3)).startswith("[lines 1–2 of 2, from character 3 on]")


def test_the_next_call_of_a_read_keeps_stream_process_and_clipping() -> None:
    answer = read(LINES, stream=Stream.STDERR, max_chars=150)
    answer.execution = execution(process=1)
    call = re.search(r"read_output\(.*?\)", text_of(answer))
    assert call and re.fullmatch(
        r'read_output\(execution=7, stream="stderr", line_range="1:\d+", max_chars=150, process=1\)', call[0]
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=600, max_size=900), st.integers(1, 1000), st.booleans())
def test_a_read_that_is_too_large_names_a_range_that_is_not(widths: list[int], first: int, structured: bool) -> None:
    lines = ["é" * width for width in widths]
    limits = Limits(max_result_bytes=100_000)
    total = Counts(len(lines) + first + 500, 10**6, 10**6)
    made = render(read(lines, first=first, total=total), structured=structured, limits=limits)
    assert wire(made) <= 100_000
    (block,) = made.blocks
    assert isinstance(block, TextBlock)
    if "Next:" not in block.text:
        return
    match = re.search(r'line_range="(\d+):(\d+)"', block.text)
    assert match
    start, stop = int(match[1]), int(match[2])
    again = read(lines[start - first : stop - first + 1], first=start, total=total)
    assert start == first and "Next:" not in text_of_one(render(again, structured=structured, limits=limits))


def text_of_one(made: Rendered) -> str:
    (block,) = made.blocks
    assert isinstance(block, TextBlock)
    return block.text


def test_a_search_that_found_too_much_says_where_to_read_on() -> None:
    rows = [(n, "M", line) for n, line in enumerate(LINES, 1)]
    answer = SearchAnswer(
        kernel=KERNEL, now=NOW, execution=execution(), query="line", result=SearchResult(12_044, 12_044, rows, 12_044)
    )
    text = text_of(answer)
    head, tail = excerpts(text)
    assert text.startswith(
        "[12,044 matching lines, 12,044 matches, of 12,044]\nRows omitted: 12,044 rows; over 200,000"
    )
    assert head[0].startswith("M 1 | line 1") and tail[-1].startswith("M 12044 | line 12044")
    assert named_range(text)[0] == len(head) + 1
    assert ", or a narrower query." in text


def test_rows_that_a_search_did_not_keep_are_counted_with_those_left_out() -> None:
    rows = [(n, "M", line) for n, line in enumerate(LINES, 1)]
    result = SearchResult(20_044, 20_044, rows, 20_044, omitted_rows=8_000)
    answer = SearchAnswer(kernel=KERNEL, now=NOW, execution=execution(), query="line", result=result)
    assert text_of(answer).splitlines()[1].startswith("Rows omitted: 20,044 rows; ")


def test_the_tail_of_an_omission_is_within_its_three_limits() -> None:
    facts = {"counts": Counts(10**6, 10**8, 10**8)}
    tail = ["漢字" * 300 for _ in range(20)]
    lines = text_of(cell(None, body_omitted="token_limit_exceeded", tail=tail, facts=facts)).splitlines()
    shown = lines[3:]
    assert lines[2] == ("Last line:" if len(shown) == 1 else f"Last {len(shown)} lines:")
    assert shown and all(len(line) == 200 for line in shown) and SHIPPED.count("\n".join(shown)) <= 500
    short = [f"{n}" for n in range(30)]
    answer = cell(None, body_omitted="token_limit_exceeded", tail=short, facts=facts)
    assert text_of(answer).splitlines()[2:] == ["Last 20 lines:", *short[10:]]
    assert text_of(answer, omission_tail_lines=3).splitlines()[2:] == ["Last 3 lines:", "27", "28", "29"]
    assert len(text_of(answer, omission_tail_lines=0).splitlines()) == 2


def test_last_lines_of_few_bytes_are_shown_without_loading_the_vocabulary(tmp_path: Any) -> None:
    missing = Vocabulary(tmp_path / "none")
    lines = [f"line {n}" for n in range(999_980, 1_000_000)]
    assert last_lines(lines, missing) == lines
    assert missing._encoding is None


def test_without_the_vocabulary_excerpts_are_so_short_that_their_bytes_decide(tmp_path: Any) -> None:
    missing = Vocabulary(tmp_path / "missing.gz")
    facts = {"counts": Counts(10**6, 10**8, 10**8)}
    answer = cell(None, body_omitted="token_limit_exceeded", tail=["y" * 99] * 20, facts=facts)
    made = render(answer, structured=False, limits=Limits(), counter=missing)
    assert text_of_one(made).splitlines()[2:] == ["Last 5 lines:", *["y" * 99] * 5]


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize("body", ["漢" * 190_000, "😀" * 150_000, '"\\' * 90_000, "x" * 190_000, "\t" * 199_000])
def test_no_message_is_too_large_whatever_its_characters(body: str, structured: bool) -> None:
    streams = {Stream.STDOUT: body, Stream.STDERR: "", Stream.RESULT: ""}
    answer = cell(body, full_output=True, streams=streams if structured else {})
    made = rendered(answer, structured)
    assert wire(made) <= 1_000_000
    assert wire(rendered(answer, structured, ascii_wire=False), ascii_wire=False) <= 1_000_000
    if body.startswith("x"):
        assert body in text_of_one(made)


def test_structured_mode_gives_up_the_single_streams_before_the_body() -> None:
    body = "y" * 190_000
    answer = cell(body, full_output=True, streams={Stream.STDOUT: body, Stream.STDERR: "", Stream.RESULT: body})
    whole = fields_of(answer)
    assert (whole["output_text"], whole["stdout"], whole["result_text"]) == (body, body, body)
    less = fields_of(answer, max_result_bytes=500_000)
    assert (less["output_text"], less["stdout"], less["stderr"]) == (body, None, None)
    least = fields_of(answer, max_result_bytes=300_000)
    assert (least["output_text"], least["output_omitted_reason"]) == (None, "size_limit_exceeded")
    assert least["next_call"].startswith("read_output(execution=7")


@settings(max_examples=60, deadline=None)
@given(
    st.integers(10_000, 60_000),
    st.text(st.characters(codec=None), max_size=3_000),
    st.lists(st.text(max_size=500), max_size=40),
    st.booleans(),
    st.booleans(),
)
def test_every_result_fits_and_is_valid_json(
    room: int, body: str, notices: list[str], structured: bool, omitted: bool
) -> None:
    answer = cell(
        None if omitted else body * 20,
        body_omitted="token_limit_exceeded" if omitted else None,
        tail=body.split("\n"),
        notices=[Notice(text, "In [6]") for text in notices],
    )
    made = rendered(answer, structured, max_result_bytes=room)
    assert wire(made) <= room
    json.dumps([b.text for b in made.blocks if isinstance(b, TextBlock)], ensure_ascii=False).encode()
    json.dumps(made.structured, ensure_ascii=False).encode()


@pytest.mark.parametrize("structured", [False, True])
def test_texts_without_a_bound_of_their_own_are_shortened_in_the_middle_with_a_count(structured: bool) -> None:
    answers: list[Answer] = [
        kernel_start_failed("lab", "it exited", "\n".join("Traceback " + "z" * 100_000 for _ in range(20))),
        StatusAnswer(kernel=KERNEL, now=NOW, children=["child" * 20 for _ in range(20_000)]),
        RestartAnswer(kernel=KERNEL, now=NOW, attached_clients=["client" * 20 for _ in range(20_000)], new_process=1),
    ]
    for answer in answers:
        made = rendered(answer, structured)
        assert wire(made) <= 1_000_000
        assert re.search(r"…\[[\d,]+ characters omitted\]…", text_of_one(made))


def test_many_notices_leave_room_for_the_result_and_are_counted() -> None:
    answer = cell("the result\n", notices=[Notice(f"{n} " + "n" * 490) for n in range(5_000)])
    text = text_of(answer)
    assert "the result" in text and wire(rendered(answer)) <= 1_000_000
    assert re.search(r"[\d,]+ more notices: no room for them here\.\n</loommux-notice>$", text)


def test_a_running_cell_carries_no_body_and_no_images() -> None:
    answer = cell(None, State.RUNNING, body_omitted="running", silent_seconds=0.1)
    fields = fields_of(answer)
    assert fields["output_omitted"] and fields["output_omitted_reason"] == "running"
    assert not [b for b in rendered(answer).blocks if isinstance(b, ImageBlock)]


def test_the_frame_leaves_room_for_what_a_transport_adds() -> None:
    made = rendered(cell("x" * 199_000))
    text = text_of_one(made)
    assert wire(made) - len(json.dumps(text)) < FRAME_BYTES
