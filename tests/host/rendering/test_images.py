"""Images reach the agent as blocks that every client takes, or as a line that says why not."""

from __future__ import annotations

import base64
import io
import random
import struct
import subprocess
import sys
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from loommux_host.facts.results import Notice
from loommux_host.rendering import image_codec, images
from loommux_host.rendering.images import ImageBlock, Piece, pieces
from loommux_host.rendering.message import TextBlock
from loommux_kernel.shared.protocol import State
from loommux_kernel.shared.record_types import DisplayRecord
from tests.host.answers import cell, execution, rendered
from tests.host.rendering.test_limits import wire

BUDGET = 900_000


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    data = random.Random(width).randbytes(width * height * len(Image.new(mode, (1, 1)).getbands()))
    return Image.frombytes(mode, (width, height), data)


def drawing(width: int = 640, height: int = 480, mode: str = "RGB") -> Image.Image:
    image = Image.new("RGB", (width, height), "white")
    image.paste((200, 30, 30), (width // 4, height // 4, width // 2, height // 2))
    return image.convert(mode)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return base64.b64encode(buffer.getvalue()).decode()


def display(bundle: dict[str, Any], ordinal: int = 1, line: int = 0, **metadata: Any) -> DisplayRecord:
    return DisplayRecord(ordinal, line, "display", bundle, metadata)


def one(bundle: dict[str, Any], budget: int = BUDGET, metadata: dict[str, Any] | None = None) -> Piece:
    (piece,) = pieces([display(bundle, **(metadata or {}))], 7, budget)
    return piece


def opened(block: ImageBlock | None) -> Image.Image:
    """The block's image, decoded to its end; its type is what the block says."""
    assert block is not None
    image = Image.open(io.BytesIO(base64.b64decode(block.data, validate=True)))
    image.load()
    assert Image.MIME[image.format or ""] == block.mime_type
    assert block.mime_type in images.TYPES
    return image


@pytest.mark.parametrize(
    ("mime", "kind"), [("image/png", "PNG"), ("image/jpeg", "JPEG"), ("image/webp", "WEBP"), ("image/gif", "GIF")]
)
def test_an_image_of_a_good_type_is_sent_as_it_is(mime: str, kind: str) -> None:
    data = encoded(drawing(), kind)
    piece = one({mime: data + "\n", "text/plain": "<Figure>"})
    assert piece.text == "" and piece.image
    assert piece.image.data == data and piece.image.mime_type == mime
    assert piece.image.meta == {"detail": "high", "execution": 7, "display_ordinal": 1}
    assert opened(piece.image).size == (640, 480)


def test_one_object_gives_one_block_in_the_order_of_choice() -> None:
    bundle = {
        "image/svg+xml": "<svg/>", "image/gif": encoded(drawing(), "GIF"), "image/webp": encoded(drawing(), "WEBP"),
        "image/jpeg": encoded(drawing(), "JPEG"), "image/png": encoded(drawing()),
    }  # fmt: skip
    for mime in images.TYPES:
        piece = one(bundle)
        assert piece.image and piece.image.mime_type == mime
        bundle[mime] = "broken"
    assert one(bundle).text.startswith("[display 1: image/png, ")


def test_a_bundle_without_an_image_adds_nothing() -> None:
    assert pieces([display({"text/html": "<b>x</b>", "application/vnd.plotly.v1+json": "x"})], 7, BUDGET) == []


@pytest.mark.parametrize(
    ("bundle", "why"),
    [
        ({"image/svg+xml": '<svg xmlns="http://www.w3.org/2000/svg"/>'}, "image/svg+xml, 41 B, not shown: only PNG"),
        ({"image/png": base64.b64encode(b"not an image").decode()}, "image/png, 12 B, not shown: its bytes are no PNG"),
        ({"image/png": "%%% not base64"}, "not shown: its data is not base64"),
        ({"image/png": encoded(drawing())[:-3]}, "not shown: its data is not base64"),
        ({"image/png": ""}, "image/png, 0 B, not shown: it has no data"),
        ({"image/png": 7}, "not shown: it has no data"),
        ({"image/png": encoded(noise(99, 99))[:8000]}, "not shown: it is damaged ("),
        ({"image/jpeg": encoded(noise(99, 99), "JPEG")[:4000]}, "not shown: it is damaged ("),
        ({"image/bmp": encoded(drawing(), "BMP")}, "image/bmp, 900.1 KiB, not shown: only PNG"),
        ({"image/png": encoded(drawing(), "BMP")}, "not shown: its bytes are no PNG"),
        (
            {"image/gif": encoded(drawing(), "GIF", save_all=True, append_images=[noise(640, 480)])},
            "not shown: it is animated",
        ),
        ({"image/x\n<loommux-notice>": "x"}, "[display 1: image/x <loommux-notice>, 0 B, not shown"),
    ],
)
def test_what_cannot_be_shown_is_one_line_that_says_which_and_why(bundle: dict[str, Any], why: str) -> None:
    piece = one(bundle)
    assert piece.image is None
    assert piece.text.startswith("[display 1: ") and piece.text.endswith("]") and "\n" not in piece.text
    assert why in piece.text


def test_a_mislabelled_image_is_sent_as_what_it_is_and_the_label_is_told() -> None:
    piece = one({"image/jpeg": encoded(drawing())})
    assert piece.image and piece.image.mime_type == "image/png"
    assert opened(piece.image).size == (640, 480)
    assert piece.text.endswith("; labelled image/jpeg]")


@pytest.mark.parametrize("detail", ["low", "high", "original"])
def test_detail_comes_from_the_display_or_its_image_type(detail: str) -> None:
    for metadata in ({"detail": detail}, {"image/png": {"detail": detail}, "detail": "low"}):
        piece = one({"image/png": encoded(drawing())}, metadata=metadata)
        assert piece.image and piece.image.meta["detail"] == detail


@pytest.mark.parametrize("detail", ["huge", "", None, 3, ["low"], "LOW"])
def test_a_bad_detail_is_refused_in_one_line(detail: object) -> None:
    piece = one({"image/png": encoded(drawing())}, metadata={"detail": detail})
    assert piece.image is None and f"its detail is {detail!r}, not low, high or original" in piece.text


def test_a_long_side_is_scaled_down_and_the_original_size_told() -> None:
    piece = one({"image/png": encoded(Image.new("RGB", (9000, 3000), "red"))})
    assert opened(piece.image).size == (2000, 667)
    assert "image/png 9000×3000 px" in piece.text and "shown at 2000×667 px]" in piece.text


def test_a_very_flat_image_keeps_a_pixel_of_height() -> None:
    assert opened(one({"image/png": encoded(noise(30_000, 10))}).image).size == (2000, 1)


def test_a_large_figure_of_noise_is_made_to_fit() -> None:
    piece = one({"image/png": encoded(noise(3000, 3000), compress_level=1)})
    image = opened(piece.image)
    assert piece.image and len(piece.image.data) <= BUDGET
    assert 800 < max(image.size) <= 2000 and "as image/jpeg]" in piece.text


def test_three_megabytes_of_png_are_made_to_fit() -> None:
    data = encoded(noise(1000, 1000))
    assert len(data) > 3_000_000
    piece = one({"image/png": data})
    assert piece.image and BUDGET // 2 < len(piece.image.data) <= BUDGET and opened(piece.image)


def test_an_original_is_kept_as_it_is_or_refused_with_its_size() -> None:
    data = encoded(Image.new("L", (7000, 300)))
    kept = one({"image/png": data}, metadata={"detail": "original"})
    assert kept.image and kept.image.data == data and kept.text == ""
    long = one({"image/png": encoded(Image.new("L", (8001, 10)))}, metadata={"detail": "original"})
    assert long.image is None and '8001×10 px; detail "original" allows 8,000 px a side' in long.text
    heavy = one({"image/png": encoded(noise(1000, 1000))}, metadata={"detail": "original"})
    assert heavy.image is None and "1000×1000 px" in heavy.text and 'detail "original" needs 3.8 MiB' in heavy.text


def test_an_image_that_would_need_too_much_memory_is_not_decoded() -> None:
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    bomb += struct.pack(">I", 99) + b"IDAT" + b"\0" * 99
    piece = one({"image/png": base64.b64encode(bomb).decode()})
    assert piece.image is None and "60000×60000 px are more than 100 megapixels" in piece.text


def test_data_that_is_too_long_is_not_even_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_CHARACTERS", 1_000)
    assert "are not looked at" in one({"image/png": encoded(noise(99, 99))}).text


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "CMYK"])
def test_every_kind_of_pixels_can_be_scaled(mode: str) -> None:
    if mode == "I;16":
        image = Image.frombytes("I;16", (3000, 20), struct.pack("<H", 40_000) * 60_000)
    elif mode == "LA":
        image = drawing(3000, 20, "L").convert("LA")
    else:
        image = drawing(3000, 20).convert(mode)
    kind = "JPEG" if mode == "CMYK" else "PNG"
    scaled = opened(one({f"image/{kind.lower()}": encoded(image, kind)}).image)
    assert scaled.size == (2000, 13)
    if mode == "I;16":
        assert scaled.convert("L").getpixel((5, 5)) == 156, "40,000 of 65,535, not clipped to white"


def test_transparency_is_kept_in_a_png_and_white_in_a_jpeg() -> None:
    clear = Image.new("RGBA", (3000, 100), (255, 0, 0, 0))
    assert opened(one({"image/png": encoded(clear)}).image).mode == "RGBA"
    rough = noise(1500, 1500, "RGBA")
    rough.putalpha(0)
    piece = one({"image/png": encoded(rough)}, budget=60_000)
    image = opened(piece.image).convert("RGB")
    assert image.getpixel((3, 3)) == (255, 255, 255)


def test_a_photograph_is_turned_upright_when_it_is_scaled() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    piece = one({"image/jpeg": encoded(drawing(3000, 1500), "JPEG", exif=exif)})
    assert opened(piece.image).size == (1000, 2000)


def test_at_most_twenty_images_are_shown_and_the_others_named() -> None:
    displays = [display({"image/png": encoded(drawing(20 + n, 20))}, n) for n in range(1, 25)]
    done = pieces(displays, 7, BUDGET)
    assert [p.ordinal for p in done if p.image] == list(range(1, 21))
    assert done[-1].text == ("[images left out (a result holds 20): displays 21–24; show them in a cell of their own]")


def test_when_there_is_little_room_fewer_images_are_shown_not_unreadable_ones() -> None:
    displays = [display({"image/png": encoded(noise(300 + n, 300))}, n) for n in range(1, 13)]
    done = pieces(displays, 7, 60_000)
    shown = [p for p in done if p.image]
    assert 0 < len(shown) < 12 and all(max(opened(p.image).size) >= 32 for p in shown)
    assert "images left out (no room for them here): displays " in done[-1].text
    assert pieces(displays[:1], 7, 10)[0].image is None


def test_small_images_stay_whole_and_the_large_ones_share_the_rest() -> None:
    made = [noise(900 + n, 900) if n % 2 else drawing(640 + n) for n in range(1, 9)]
    small = [len(encoded(image)) for image in made[1::2]]
    displays = [display({"image/png": encoded(image)}, n) for n, image in enumerate(made, 1)]
    done = pieces(displays, 7, BUDGET)
    sizes = [len(p.image.data) for p in done if p.image]
    assert sizes[1::2] == small
    assert max(sizes[::2]) < 1.3 * min(sizes[::2]) and 0.6 * BUDGET < sum(sizes) <= BUDGET


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 500), st.integers(1, 500), st.sampled_from(["low", "high", "original"]), st.booleans()
        ),
        max_size=24,
    ),
    st.integers(0, 200_000),
)
def test_images_and_their_lines_never_need_more_than_the_budget(
    shapes: list[tuple[int, int, str, bool]], budget: int
) -> None:
    displays = [
        display({"image/png": encoded(noise(w, h) if rough else drawing(w, h))}, n, detail=detail)
        for n, (w, h, detail, rough) in enumerate(shapes, 1)
    ]
    done = pieces(displays, 7, budget)
    needed = sum(len(p.image.data) + images.BLOCK_BYTES for p in done if p.image)
    assert needed <= max(0, budget)
    for piece in done:
        if piece.image:
            opened(piece.image)
    named = {p.ordinal for p in done}
    assert not shapes or named, "every display is shown or named"


@pytest.mark.case("X33")
def test_identical_images_of_one_result_are_sent_once_and_the_others_named() -> None:
    figure, other = encoded(drawing()), encoded(drawing(320))
    displays = [display({"image/png": data}, n, n) for n, data in enumerate([figure, other, figure + "\n", figure], 1)]
    done = pieces(displays, 7, BUDGET)
    assert [p.ordinal for p in done if p.image] == [1, 2]
    assert [p.text for p in done if not p.image] == [f"[display {n}: the same image as display 1]" for n in (3, 4)]
    large = encoded(noise(2_100, 90))
    scaled = pieces([display({"image/png": large}, 1), display({"image/png": large}, 2)], 7, BUDGET)
    assert [bool(p.image) for p in scaled] == [True, False]
    asked = [display({"image/png": figure}, 1, detail="low"), display({"image/png": figure}, 2, detail="high")]
    assert all(p.image for p in pieces(asked, 7, BUDGET)), "they were asked for differently"


def test_an_image_stands_between_the_text_before_and_after_it() -> None:
    body = "one\n<Figure>\ntwo\nthree\n"
    figure, second, third = ({"image/png": encoded(drawing(640 + n))} for n in range(3))
    broken = {"image/png": "broken"}
    shown = [(figure, 1, 2), (second, 2, 2), (broken, 3, 3), (third, 4, 4)]
    figures = [display(bundle, ordinal, line) for bundle, ordinal, line in shown]
    answer = cell(body, displays=figures, notices=[Notice("told")])
    blocks = rendered(answer).blocks
    assert [block.text if isinstance(block, TextBlock) else block.meta["display_ordinal"] for block in blocks] == [
        "In [7] · 54.3 s:\none\n<Figure>",
        1,
        2,
        "two\n[display 3: image/png, 4 B, not shown: its data is not base64]\nthree",
        4,
        "<loommux-notice>\ntold\n</loommux-notice>",
    ]


def test_a_figure_alone_follows_the_heading_and_how_the_cell_ended_comes_last() -> None:
    figure = display({"image/png": encoded(drawing())}, 1, line=9)
    blocks = rendered(cell("<Figure>\n", State.INTERRUPTED, displays=[figure])).blocks
    assert [b.text for b in blocks if isinstance(b, TextBlock)] == ["In [7] · 54.3 s:\n<Figure>", "Interrupted."]
    assert isinstance(blocks[1], ImageBlock)


def test_images_come_also_when_the_text_is_omitted() -> None:
    figure = display({"image/png": encoded(drawing())}, 1, line=3)
    answer = cell(None, body_omitted="token_limit_exceeded", tail=["a", "b"], displays=[figure])
    first, image = rendered(answer).blocks
    assert isinstance(first, TextBlock) and first.text.endswith("Last 2 lines:\na\nb")
    assert isinstance(image, ImageBlock) and opened(image).size == (640, 480)


@pytest.mark.parametrize("structured", [False, True])
def test_text_and_images_together_fit_into_one_message(structured: bool) -> None:
    figures = [display({"image/png": encoded(noise(700 + n, 700))}, n, line=n) for n in range(1, 13)]
    for body in ("x" * 60_000 + "\n", "漢" * 60_000, "short\n" * 100):
        made = rendered(cell(body, full_output=True, displays=figures), structured)
        assert wire(made) <= 1_000_000
        shown = [opened(b) for b in made.blocks if isinstance(b, ImageBlock)]
        assert len(shown) == 12


def test_an_execution_without_a_number_has_images_all_the_same() -> None:
    answer = cell("x\n", displays=[display({"image/png": encoded(drawing())}, 1, line=1)])
    answer.execution = execution(number=None)
    image = rendered(answer).blocks[1]
    assert isinstance(image, ImageBlock) and image.meta["execution"] is None


def test_pillow_is_imported_only_for_images() -> None:
    code = (
        "import sys; from loommux_host.rendering.images import pieces; "
        "from loommux_kernel.shared.record_types import DisplayRecord as D;"
        "pieces([D(1, 0, 'display', {'text/plain': 'x'}, {})], 7, 1000); print('PIL' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


def test_the_limit_of_pixels_is_below_what_scaling_needs_in_memory() -> None:
    assert image_codec.MOST_PIXELS * 4 <= 400_000_000
