"""Counts o200k_base tokens exactly, offline, and without counting where a bound decides.

Owns the shipped vocabulary and the rules that make a count cheap: byte bounds, lower
bounds from pieces and bytes, exact cuts. Knows nothing of results. The vocabulary is loaded
when a count first needs it (0.7 s, 48 MB), in the process of `counter`.

Why cuts are exact: tiktoken splits a text into pieces by a pattern and encodes each piece
by itself. Where no piece can reach across a position, whatever stands on either side, the
counts of both sides add up. Prefixes in general do not: more text can lower a count.
"""

from __future__ import annotations

import binascii
import gzip
import hashlib
import re
import threading
import zlib
from collections.abc import Iterable, Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import islice
from typing import TYPE_CHECKING

from loommux_host.facts.result_limits import TOKEN_LIMIT, always_within, never_within

if TYPE_CHECKING:
    import tiktoken

VOCABULARY_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
#: The pattern o200k_base splits by. tiktoken has it inside the function that downloads the vocabulary.
_PIECES = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
#: Positions that no piece reaches across: a piece ends at a newline, unless white space or the
#: slashes that punctuation drags along follow; and it takes a blank after a non-blank never.
#: Python calls some characters white space that the pattern does not: that only means fewer cuts.
_CUT = re.compile(r"(?<=\n)(?=[^\s/])|(?<=\S)(?=[ \t])")
_CHUNK = 8_192
#: White space without newlines; at a million of them tiktoken's splitter overflows its stack and
#: panics (it prints to stderr and raises a BaseException), so such runs are encoded without it.
_LONG_BLANK = re.compile("[\t\x0b\x0c \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]{100000,}")
#: For each byte, the length of the longest token that has it. When a byte weighs 1/length, no
#: token weighs more than 1: the weight of a text is a lower bound of its tokens.
LONGEST_TOKEN_WITH = bytes.fromhex(
    "020201010101010101185101011a010101010101010101010101010101010101"
    "8010225009200811220c60481971415103030303030303030303101010600c08"
    "0f1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a0a0d0a0840"
    "061a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a084d0a2001"
    "3d3d3d2b3d1f313d3337221f3d311c1f3028282533313033313d37332b2b312e"
    "3331333d313d30372b1f3d37253d3131373d3d3d373728313d3d21211f213131"
    "010110140f110a02070f0d020801171721211b1b131f1f151717111101010101"
    "3d2b30301f1f1f1f1f1f16161610061807060401010101010101010101010101"
)


class VocabularyUnavailable(Exception):
    """The vocabulary cannot be loaded; the text says why."""


class Vocabulary:
    """One gzipped vocabulary file, loaded once, by whoever needs it first. A failed load is tried again."""

    def __init__(self, source: Traversable) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._encoding: tiktoken.Encoding | None = None

    def encoding(self) -> tiktoken.Encoding:
        """Raises `VocabularyUnavailable`. May be called from any thread; the first call takes 0.7 s."""
        with self._lock:
            if self._encoding is None:
                self._encoding = _build(_read(self._source))
            return self._encoding

    def count(self, text: str) -> int:
        """The number of tokens; the same as ``len(encode_ordinary(text))``."""
        return sum(self._counts(encodable(text)))

    def counts(self, texts: Iterable[str]) -> list[int]:
        return list(map(self.count, texts))

    def within_limit(self, text: str, limit: int = TOKEN_LIMIT) -> bool:
        """Whether `text` has at most `limit` tokens. The vocabulary is needed only when no bound decides."""
        known = decided(text, limit)
        if known is not None:
            return known
        total = 0
        for count in self._counts(encodable(text)):
            total += count
            if total > limit:
                return False
        return True

    def _counts(self, text: str) -> Iterator[int]:
        """Counts that add up to the text's, of parts between exact cuts."""
        encoding = self.encoding()
        for part in _parts(text):
            blank = _LONG_BLANK.fullmatch(part)
            if blank:
                yield len(encoding._encode_single_piece(part))
            else:
                yield len(encoding.encode_ordinary(part))


def decided(text: str, limit: int) -> bool | None:
    """Whether `text` has at most `limit` tokens, where that needs no count."""
    if never_within(len(text), limit):
        return False
    text = encodable(text)
    data = text.encode()
    if always_within(len(data), limit):
        return True
    if never_within(len(data), limit) or _lower_bound(text, data, limit) > limit:
        return False
    return None


def _parts(text: str) -> Iterator[str]:
    """`text` between cuts: at least `_CHUNK` characters each, but where a long blank run stands by itself."""
    start = 0
    while start < len(text):
        cut = _CUT.search(text, start + _CHUNK)
        end = cut.start() if cut else len(text)
        yield from _around_blank_runs(text[start:end])
        start = end


def _around_blank_runs(chunk: str) -> Iterator[str]:
    """A long blank run is one piece but for its last character, which the word after it may take.

    Where a newline follows, the run is only the beginning of a piece, which does no harm.
    """
    start = 0
    for run in _LONG_BLANK.finditer(chunk):
        end = run.end()
        if chunk[end : end + 1] in ("\n", "\r"):
            continue
        end -= end < len(chunk)
        if run.start() > start:
            yield chunk[start : run.start()]
        yield chunk[run.start() : end]
        start = end
    if start < len(chunk):
        yield chunk[start:]


def _lower_bound(text: str, data: bytes, enough: int) -> float:
    """A number of tokens that `text` has at least; more than `enough` is not looked for."""
    weight = sum(data.count(byte) / LONGEST_TOKEN_WITH[byte] for byte in set(data))
    if weight > enough + 1:
        return weight - 0.5  # what adding 256 fractions can be off by, and far more
    return 1 + sum(1 for _ in islice(_CUT.finditer(text), enough))


def encodable(text: str) -> str:
    """`text` as tiktoken reads it: lone surrogates become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _read(source: Traversable) -> bytes:
    try:
        data = gzip.decompress(source.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise VocabularyUnavailable(f"the vocabulary cannot be read: {error}") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != VOCABULARY_SHA256:
        raise VocabularyUnavailable(f"the vocabulary is damaged: its SHA-256 is {digest}")
    return data


def _build(data: bytes) -> tiktoken.Encoding:
    # Imported here: a kernel's start does not wait for it, and most results never need it.
    try:
        import tiktoken
    except ImportError as error:
        raise VocabularyUnavailable(f"tiktoken cannot be imported: {error}") from error
    lines = (line.split() for line in data.splitlines())
    ranks = {binascii.a2b_base64(token): int(rank) for token, rank in lines}
    # Special tokens are left out: output is ordinary text, whatever it spells.
    encoding = tiktoken.Encoding("o200k_base", pat_str=_PIECES, mergeable_ranks=ranks, special_tokens={})
    # It has its own copy of the ranks; Python's takes 28 MB.
    encoding._mergeable_ranks = {}
    return encoding


SHIPPED = Vocabulary(files("loommux_host") / "data" / "o200k_base.tiktoken.gz")
