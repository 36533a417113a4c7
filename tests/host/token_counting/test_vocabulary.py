"""Token counts: what tiktoken counts, without the network, and bounds that never lie."""

from __future__ import annotations

import base64
import gzip
import random
import socket
import string
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tiktoken
from hypothesis import example, given, settings
from hypothesis import strategies as st

import loommux_host
from loommux_host.facts.result_limits import LONGEST_TOKEN_BYTES, TOKEN_LIMIT, always_within, never_within
from loommux_host.token_counting import vocabulary as counter
from loommux_host.token_counting.vocabulary import LONGEST_TOKEN_WITH, SHIPPED, Vocabulary, VocabularyUnavailable

DATA = Path(loommux_host.__file__).parent / "data" / "o200k_base.tiktoken.gz"
#: What pieces are made of: letters of all kinds, blanks of all kinds, what drags blanks along.
ALPHABET = "aA zZ'sS1\u00e9\u4e2d\u3042\u0301\u01c5\u02b0😀/.,-=*\n\r\t\x0b\x1c\x1f\u00a0\u2028\u3000\ufeff\x85\u0661"
TEXTS = st.one_of(st.text(ALPHABET, max_size=80), st.text(max_size=60))


@pytest.fixture(scope="module")
def plain() -> tiktoken.Encoding:
    return SHIPPED.encoding()


def counted(encoding: tiktoken.Encoding, text: str) -> int:
    return len(encoding.encode_ordinary(text))


def vocabulary() -> list[bytes]:
    return [base64.b64decode(line.split()[0]) for line in gzip.decompress(DATA.read_bytes()).splitlines()]


def test_no_token_of_the_vocabulary_is_longer_than_the_bound_says() -> None:
    assert max(map(len, vocabulary())) == LONGEST_TOKEN_BYTES
    assert never_within(640_001) and not never_within(640_000)
    assert always_within(5_000) and not always_within(5_001)


def test_the_table_of_weights_is_what_the_vocabulary_says() -> None:
    longest = [1] * 256
    for token in vocabulary():
        for byte in token:
            longest[byte] = max(longest[byte], len(token))
    assert bytes(longest) == LONGEST_TOKEN_WITH


@settings(max_examples=400, deadline=None)
@given(TEXTS, TEXTS)
@example("a", " b")
@example("...\n", "a")
@example("...", "\n/a")
@example(".\n\n", "\x1fa")
@example(" \n", "\u0301x")
def test_counts_add_up_at_every_cut(left: str, right: str) -> None:
    encoding = SHIPPED.encoding()
    text = left + right
    for cut in counter._CUT.finditer(text):
        at = cut.start()
        assert counted(encoding, text[:at]) + counted(encoding, text[at:]) == counted(encoding, text)


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXTS, max_size=6), st.integers(1, 60), st.integers(0, 40))
def test_a_text_counted_in_parts_has_the_count_of_the_whole(parts: list[str], chunk: int, limit: int) -> None:
    text = "".join(parts)
    exact = counted(SHIPPED.encoding(), text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counter, "_CHUNK", chunk)
        assert SHIPPED.count(text) == exact
        assert SHIPPED.within_limit(text, limit) == (exact <= limit)


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_the_lower_bound_is_never_above_the_count(text: str) -> None:
    exact = counted(SHIPPED.encoding(), text)
    encodable = counter.encodable(text)
    if encodable:
        assert counter._lower_bound(encodable, encodable.encode(), 10_000) <= exact
        assert counter._lower_bound(encodable, encodable.encode(), 0) <= exact


@settings(max_examples=150, deadline=None)
@given(
    st.text(ALPHABET, max_size=5),
    st.text(" \t\u00a0\u2028", min_size=3, max_size=9),
    st.text(ALPHABET, max_size=5),
    st.text(" \n", max_size=6),
)
def test_blank_runs_encoded_by_themselves_change_no_count(before: str, run: str, after: str, more: str) -> None:
    text = before + run + after + more
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counter, "_LONG_BLANK", counter.re.compile(counter._LONG_BLANK.pattern.replace("100000", "3")))
        assert SHIPPED.count(text) == counted(SHIPPED.encoding(), text)


def prose() -> str:
    words = random.Random(1)
    return "".join(
        " " * (i > 0) + "".join(words.choices(string.ascii_lowercase, k=words.randint(2, 9))) + "." * (i % 11 == 0)
        for i in range(8_000)
    )


TEXTS_AT_THE_BOUNDARY = {
    "prose": prose(),
    "code": "\n".join(
        f"    if value_{i} >= {i * 7}:\n\treturn [x**2 for x in range({i})]  # why" for i in range(1_500)
    ),
    "cjk": "".join(chr(c) for c in random.Random(2).choices(range(0x4E00, 0x9FA5), k=9_000)),
    "emoji": "".join(random.Random(3).choices("😀🎉👩‍💻🇩🇪🏳️‍🌈❤️🚀", k=9_000)),
    "dashes": "--------\n\n" * 6_000,
    "no blanks": base64.b64encode(random.Random(4).randbytes(40_000)).decode(),
    "windows lines": "key=value; path=/usr/lib\r\n" * 2_000,
}


@pytest.mark.parametrize("kind", [*TEXTS_AT_THE_BOUNDARY, "spaces"])
def test_the_limit_is_exact_at_the_boundary(kind: str, plain: tiktoken.Encoding) -> None:
    for wanted in (TOKEN_LIMIT - 1, TOKEN_LIMIT, TOKEN_LIMIT + 1):
        text = " " * (128 * wanted) if kind == "spaces" else sized(TEXTS_AT_THE_BOUNDARY[kind], wanted, plain)
        assert counted(plain, text) == wanted == SHIPPED.count(text)
        assert SHIPPED.within_limit(text) == (wanted <= TOKEN_LIMIT)


def sized(text: str, wanted: int, encoding: tiktoken.Encoding) -> str:
    """The beginning of `text`, filled up with short words to exactly `wanted` tokens."""
    beginning = encoding.decode(encoding.encode_ordinary(text)[: wanted - 20], errors="ignore").rstrip()
    return beginning + " a" * (wanted - counted(encoding, beginning))


MILLION = 1_000_100
MILLIONS = {
    "then a word": " " * MILLION + "x",
    "then a newline": " " * MILLION + "\n",
    "mixed": "a" + "\u00a0 " * (MILLION // 2) + "/",
    "after a newline": ". \n" + " " * MILLION,
}


@pytest.mark.parametrize("text", MILLIONS.values(), ids=MILLIONS)
def test_a_million_blanks_are_counted_and_do_not_panic(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    total = SHIPPED.count(text)
    assert len(text) / 128 <= total <= len(text)
    assert not SHIPPED.within_limit(text)
    assert SHIPPED.within_limit(text, limit=total)
    assert capfd.readouterr().err == ""


def test_what_bounds_decide_needs_no_vocabulary(tmp_path: Path) -> None:
    missing = Vocabulary(tmp_path / "missing.gz")
    assert missing.within_limit("x" * 5_000)
    assert not missing.within_limit("x" * 1_000_000)
    assert not missing.within_limit("x" * 5_000_000)
    assert not missing.within_limit("loss=0.1 " * 20_000)
    assert not missing.within_limit("a" * 200_000), "by the longest token with an a"
    with pytest.raises(VocabularyUnavailable, match=r"missing\.gz"):
        missing.within_limit("x" * 6_000)


def test_a_damaged_vocabulary_is_told_from_a_missing_one_and_never_used(tmp_path: Path) -> None:
    for name, content in {
        "other.gz": gzip.compress(b"AA== 0\n"),
        "cut.gz": DATA.read_bytes()[:100_000],
        "text.gz": b"no gzip at all",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(VocabularyUnavailable):
            Vocabulary(tmp_path / name).count("x" * 6_000)
    assert Vocabulary(DATA).count("x") == 1


def test_special_tokens_are_ordinary_text(plain: tiktoken.Encoding) -> None:
    assert SHIPPED.count("<|endoftext|>") == 7 == counted(plain, "<|endoftext|>")


def test_lone_surrogates_are_counted_as_tiktoken_does(plain: tiktoken.Encoding) -> None:
    text = "a\ud8ff b\udce9\ud83d\ude00" * 50
    assert SHIPPED.count(text) == counted(plain, text)
    assert not SHIPPED.within_limit(text, 10)


def test_threads_share_one_vocabulary() -> None:
    shared = Vocabulary(DATA)
    seen: list[object] = []
    threads = [threading.Thread(target=lambda: seen.append(shared.encoding())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(seen) == 4 and len(set(map(id, seen))) == 1


def test_counting_never_uses_the_network_nor_a_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("network used")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    assert Vocabulary(DATA).count("hello world") == 2
    assert not (tmp_path / "cache").exists()


def test_importing_the_module_loads_neither_tiktoken_nor_the_vocabulary() -> None:
    code = (
        "import sys, loommux_host.token_counting.vocabulary as t; print('tiktoken' in sys.modules, t.SHIPPED._encoding)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "None"]
