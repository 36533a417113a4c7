"""Displayed images into blocks that no client refuses, within a budget (contract 3.6).

Owns what an image must be, how it is scaled, and the line of text that stands in place of
one that cannot be shown. Knows nothing of results: `message` says how many bytes there are
and puts the pieces where they belong. The bytes decide what an image is, never its label.
"""

from __future__ import annotations

import binascii
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from loommux_host.facts.phrases import one_line, size
from loommux_host.facts.result_limits import IMAGES
from loommux_host.rendering.image_codec import ORIGINAL, Damaged, Picture, dimensions, fitted, opened
from loommux_kernel.shared.record_types import DisplayRecord

#: Image types that hosts and models take, in the order of choice.
TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
DETAILS = ("low", "high", ORIGINAL)
DEFAULT_DETAIL = "high"
#: A block's JSON without its data.
BLOCK_BYTES = 256
#: A line of text about a display, as a block of its own.
LINE_BYTES = 512
#: Less than this is no image worth its place: fewer are shown instead.
LEAST_SHARE = 16_384
#: Lines about displays that cannot be shown; more are counted with those left out.
PROBLEMS = 40
#: Base64 characters of an image that is looked at.
MOST_CHARACTERS = 1 << 29
DECODED_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class ImageBlock:
    """An MCP image block: base64 data, the real type, and what `_meta` says of it."""

    data: str
    mime_type: str
    meta: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece:
    """What one display adds to a result: a line of text, an image, or both, after `line` lines of output."""

    ordinal: int
    line: int
    text: str = ""
    image: ImageBlock | None = None


class Unshowable(Exception):
    """The display has an image that cannot be shown; the text says what it is and why not."""


@dataclass(frozen=True)
class _Found:
    """A display whose image is sound. `label` is the type it was displayed as."""

    record: DisplayRecord
    picture: Picture
    detail: str
    label: str


def pieces(displays: Sequence[DisplayRecord], execution: int | None, budget: int) -> list[Piece]:
    """The images of `displays`, and a line for each that is not shown, in at most `budget` bytes of JSON.

    In the order of their text. Images that are left out are named in the last piece.
    """
    done: list[Piece] = []
    found: list[_Found] = []
    first: dict[bytes, int] = {}
    left_out: list[int] = []
    for record in sorted(displays, key=lambda record: (record.line, record.ordinal)):
        labels = _labels(record)
        if not labels:
            continue
        if len(found) == IMAGES or len(done) == PROBLEMS:
            left_out.append(record.ordinal)
            continue
        try:
            one = _find(record, labels, budget)
        except Unshowable as error:
            done.append(Piece(record.ordinal, record.line, f"[display {record.ordinal}: {error}]"))
            continue
        same = first.setdefault(_sameness(one), record.ordinal)
        if same == record.ordinal:
            found.append(one)
        else:
            done.append(_same(record, same))
    budget -= LINE_BYTES * (len(done) + len(found) + 1)
    room = _room(found, budget)
    left_out += [one.record.ordinal for one in found[room:]]
    done += _fit(found[:room], execution, budget)
    done.sort(key=lambda piece: (piece.line, piece.ordinal))
    if left_out:
        last = max((record.line for record in displays), default=0)
        done.append(Piece(max(left_out), last, _left_out(sorted(left_out), room)))
    return done


def without_last_image(done: list[Piece]) -> list[Piece]:
    """The same with one image less, which is named instead."""
    shown = [i for i, piece in enumerate(done) if piece.image is not None]
    piece = done[shown[-1]]
    text = f"[display {piece.ordinal}: image left out for lack of room; show it in a cell of its own]"
    return [*done[: shown[-1]], Piece(piece.ordinal, piece.line, text), *done[shown[-1] + 1 :]]


def _sameness(one: _Found) -> bytes:
    """Equal for images that would be sent alike."""
    return sha256(f"{one.detail} ".encode() + one.picture.data).digest()


def _same(record: DisplayRecord, shown: int) -> Piece:
    """The line for an image that the result has already."""
    return Piece(record.ordinal, record.line, f"[display {record.ordinal}: the same image as display {shown}]")


def _labels(record: DisplayRecord) -> list[str]:
    """The image types in a bundle: those that can be shown first, in the order of choice."""
    there = [mime for mime in record.bundle if mime.lower().startswith("image/")]
    return sorted(there, key=lambda mime: TYPES.index(mime.lower()) if mime.lower() in TYPES else len(TYPES))


def _find(record: DisplayRecord, labels: Sequence[str], budget: int) -> _Found:
    """The first image of the bundle that is sound. Raises `Unshowable` with what is wrong with the first."""
    problem: Unshowable | None = None
    for label in labels:
        try:
            detail = _detail(record, label)
            return _Found(record, _picture(record.bundle[label], label, detail, budget), detail, label.lower())
        except Unshowable as error:
            problem = problem or error
    raise problem or Unshowable("no image")


def _picture(data: object, label: str, detail: str, budget: int) -> Picture:
    text = data if isinstance(data, str) else ""
    named = f"{one_line(label, 60)}, {size(_bytes_of(text))}, not shown"
    if label.lower() not in TYPES:
        raise Unshowable(f"{named}: only PNG, JPEG, WEBP and single-frame GIF are; convert it, or save it to a file")
    if len(text) > MOST_CHARACTERS:
        raise Unshowable(f"{named}: more than {size(MOST_CHARACTERS * 3 // 4)} are not looked at")
    try:
        raw = _decoded(text)
    except binascii.Error:
        raise Unshowable(f"{named}: its data is not base64") from None
    if not raw:
        raise Unshowable(f"{named}: it has no data")
    try:
        return opened(raw, detail, budget)
    except Damaged as error:
        raise Unshowable(f"{named}: {error}") from None


def _decoded(text: str) -> bytes:
    """Base64, which may have line ends, in parts that leave other threads time. Raises `binascii.Error`."""
    raw, rest = bytearray(), ""
    for start in range(0, len(text), DECODED_AT_ONCE):
        part = rest + "".join(text[start : start + DECODED_AT_ONCE].split())
        whole = len(part) // 4 * 4
        raw += binascii.a2b_base64(part[:whole].encode("utf-8", "replace"), strict_mode=True)
        rest = part[whole:]
    if rest:
        raise binascii.Error("incomplete")
    return bytes(raw)


def _bytes_of(text: str) -> int:
    """How large the data is: of text as it is, of base64 decoded."""
    return len(text.encode(errors="replace")) if text.lstrip().startswith("<") else len(text) * 3 // 4


def _detail(record: DisplayRecord, label: str) -> str:
    """The detail that the display asks for: of the type, else of the whole display."""
    of_type = record.metadata.get(label)
    for metadata in (of_type, record.metadata):
        if isinstance(metadata, dict) and "detail" in metadata:
            detail = metadata["detail"]
            if detail in DETAILS:
                return str(detail)
            named = one_line(repr(detail), 60)
            raise Unshowable(f"{one_line(label, 60)}, not shown: its detail is {named}, not low, high or original")
    return DEFAULT_DETAIL


def _fit(found: Sequence[_Found], execution: int | None, budget: int) -> list[Piece]:
    """Share the budget: originals first and as they are, small images too, the large ones evenly in what is left."""
    done: list[Piece] = []
    originals = [one for one in found if one.detail == ORIGINAL]
    others = [one for one in found if one.detail != ORIGINAL]
    reserved = sum(map(_least, others))
    budget -= reserved
    for one in originals:
        piece = _piece(one, execution, budget - BLOCK_BYTES)
        budget -= len(piece.image.data) + BLOCK_BYTES if piece.image else 0
        done.append(piece)
    level = _level([one.picture.cost for one in others], budget + reserved - BLOCK_BYTES * len(others))
    return done + [_piece(one, execution, level) for one in others]


def _room(found: Sequence[_Found], budget: int) -> int:
    """How many of the first can have at least a share worth their place."""
    for count, one in enumerate(found):
        budget -= _least(one)
        if budget < 0:
            return count
    return len(found)


def _least(one: _Found) -> int:
    """What an image needs at least; an original is kept or refused, and keeps none from the others."""
    return 0 if one.detail == ORIGINAL else min(one.picture.cost, LEAST_SHARE) + BLOCK_BYTES


def _level(costs: Sequence[int], budget: int) -> int:
    """The share that uses up the budget when those that cost less take only what they cost."""
    waiting = len(costs)
    for cost in sorted(costs):
        if cost * waiting > budget:
            return budget // waiting
        budget -= cost
        waiting -= 1
    return max(costs, default=0)


def _piece(one: _Found, execution: int | None, share: int) -> Piece:
    """The image in at most `share` base64 characters, and what has to be said of it."""
    ordinal, line, picture = one.record.ordinal, one.record.line, one.picture
    what = f"{picture.original_mime_type} {dimensions(picture.original_size)}, {size(picture.original_bytes)}"
    try:
        picture = _kept(picture, share) if one.detail == ORIGINAL else fitted(picture, share)
    except Damaged as error:
        return Piece(ordinal, line, f"[display {ordinal}: {what}, not shown: {error}]")
    meta: dict[str, object] = {"detail": one.detail, "execution": execution, "display_ordinal": ordinal}
    said = [f"labelled {one_line(one.label, 60)}"] if one.label != picture.original_mime_type else []
    if picture.changed:
        as_type = f" as {picture.mime_type}" if picture.mime_type != picture.original_mime_type else ""
        said.append(f"shown at {dimensions(picture.size)}{as_type}")
    text = f"[display {ordinal}: {what}; {', '.join(said)}]" if said else ""
    return Piece(ordinal, line, text, ImageBlock(b64encode(picture.data).decode("ascii"), picture.mime_type, meta))


def _kept(picture: Picture, share: int) -> Picture:
    """An original as it is, or not at all."""
    if picture.cost <= share:
        return picture
    raise Damaged(f'detail "original" needs {size(picture.cost)} and this result has {size(max(share, 0))} left')


def _left_out(ordinals: Sequence[int], room: int) -> str:
    why = f"a result holds {IMAGES}" if room >= IMAGES else "no room for them here"
    return f"[images left out ({why}): {_named(ordinals)}; show them in a cell of their own]"


def _named(ordinals: Sequence[int]) -> str:
    """``display 21``, ``displays 21–24, 30``."""
    spans: list[list[int]] = []
    for ordinal in ordinals:
        if spans and ordinal == spans[-1][1] + 1:
            spans[-1][1] = ordinal
        else:
            spans.append([ordinal, ordinal])
    named = [str(a) if a == b else f"{a}–{b}" for a, b in spans[:20]]
    more = f" and {sum(b - a + 1 for a, b in spans[20:]):,} more" if len(spans) > 20 else ""
    return f"display{'s' if len(ordinals) > 1 else ''} {', '.join(named)}{more}"
