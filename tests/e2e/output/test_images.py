"""Images in results: sound, in order, within the message; a line of text stands for any other (contract 3.6)."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest
from mcp_types import CallToolResult, ImageContent
from PIL import Image

from tests.e2e.driving import ERAS, Agent, Place, Start, text_of
from tests.e2e.http_driving import web
from tests.e2e.shown import outline, printed

pytestmark = pytest.mark.anyio

MAKE = """\
import io, os
from IPython.display import SVG, Image, clear_output, display
from PIL import Image as Pillow
def picture(width, height, kind='PNG', noise=False, frames=0):
    size, file = (width, height), io.BytesIO()
    made = Pillow.frombytes('RGB', size, os.urandom(3 * width * height)) if noise else Pillow.new('RGB', size, 'red')
    more = [Pillow.new('RGB', size, (0, 0, 9 * i)) for i in range(1, frames)]
    made.save(file, kind, **({'save_all': True, 'append_images': more} if frames else {}))
    return file.getvalue()
def show(data, kind='png', **metadata): display({f'image/{kind}': data}, raw=True, metadata=metadata)
"""
MESSAGE = 1_000_000


async def ran(agent: Agent, source: str) -> CallToolResult:
    assert await printed(agent, MAKE) == ""
    result = await agent.call("run_cell", freeform=f"%%loommux --wait 60 --silence 60\n{source}")
    assert not result.is_error, text_of(result)
    assert len(json.dumps(result.model_dump(mode="json", by_alias=True, exclude_none=True))) <= MESSAGE
    return result


def images(result: CallToolResult) -> list[ImageContent]:
    return [block for block in result.content if isinstance(block, ImageContent)]


def decoded(block: ImageContent) -> Image.Image:
    """The image, decoded to its end, of the type that the block claims."""
    image = Image.open(io.BytesIO(base64.b64decode(block.data, validate=True)))
    image.load()
    assert image.get_format_mimetype() == block.mime_type
    return image


def meta(block: ImageContent) -> dict[str, Any]:
    assert block.meta is not None
    return dict(block.meta)


async def test_figures_stand_in_order_with_the_text_around_them(agent: Agent) -> None:
    source = (
        "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show(); print('between')\n"
        "plt.plot([3, 4]); plt.show(); print('after')"
    )
    result = await ran(agent, source)
    caption = "<Figure size 640x480 with 1 Axes>"
    assert outline(result) == [caption, "<image/png>", "between", caption, "<image/png>", "after"]
    assert [meta(block)["display_ordinal"] for block in images(result)] == [1, 2]
    assert all(meta(block)["detail"] == "high" for block in images(result))
    assert all(min(decoded(block).size) > 300 for block in images(result))


@pytest.mark.case("M13")
async def test_a_figure_that_a_cell_leaves_open_is_shown_and_twelve_are_twelve(agent: Agent) -> None:
    source = "import matplotlib.pyplot as plt\nfor i in range(12): plt.subplots(figsize=(2 + i, 1))"
    result = await ran(agent, source)
    assert [meta(block)["display_ordinal"] for block in images(result)] == list(range(1, 13))


@pytest.mark.case("N12")
@pytest.mark.parametrize("inherited", ["Agg", "TkAgg", "svg", "module://matplotlib_inline.backend_inline"])
async def test_an_inherited_backend_hides_no_figure(start: Start, place: Place, inherited: str) -> None:
    place.more["MPLBACKEND"] = inherited
    async with start() as agent:
        plot = "import matplotlib.pyplot as plt\nfig, ax = plt.subplots(); ax.plot([1, 2])"
        assert len(images(await ran(agent, f"{plot}\nplt.show()"))) == 1
        assert len(images(await ran(agent, "fig"))) == 1
        assert inherited in await printed(agent, "!echo $MPLBACKEND"), "programs have it as it was"


@pytest.mark.case("N12")
async def test_of_a_backend_that_a_cell_chose_it_is_said_that_it_shows_nothing(agent: Agent) -> None:
    try:
        source = (
            "import matplotlib\nmatplotlib.use('Agg')\nfrom matplotlib.pyplot import close, plot, show as see, gcf\n"
        )
        assert await printed(agent, f"%%loommux --wait 60 --silence 60\n{source}plot([1, 2]); see()") == (
            "[1 figure is not in this result: matplotlib's backend is Agg. %matplotlib inline shows figures; so does a"
            " figure as the last value of a cell]"
        )
        assert len(images(await ran(agent, "gcf()"))) == 1
        assert await printed(agent, "gcf().savefig('saved.png'); close('all'); see()") == ""
        assert len(images(await ran(agent, "%matplotlib inline\nplot([1, 2])\nsee()"))) == 1
    finally:
        await agent.text("restart")


@pytest.mark.case("X33")
async def test_a_figure_that_a_cell_shows_twice_is_sent_once(agent: Agent) -> None:
    figure = "import matplotlib.pyplot as plt\nfig, ax = plt.subplots(figsize=(2, 1)); ax.plot([1, 2])"
    same = "[display 2: the same image as display 1]"
    for end in ("\nfig", "\nplt.show()\nfig"):
        result = await ran(agent, figure + end)
        assert len(images(result)) == 1 and text_of(result).count(same) == 1
    assert images(await agent.call("wait")) == images(result), "that is said again, not sent again"
    other = await ran(agent, f"{figure}\nplt.show()\nax.plot([3, 1])\nfig")
    assert len(images(other)) == 2 and same not in text_of(other)


async def test_images_come_with_every_later_wait_and_with_a_text_that_is_omitted(agent: Agent) -> None:
    result = await ran(agent, "print('x ' * 40_000); show(picture(9, 9))")
    assert "Output omitted" in text_of(result)
    for _ in range(2):
        assert images(await agent.call("wait")) == images(result)


async def test_of_a_display_that_was_updated_or_cleared_the_last_is_shown(agent: Agent) -> None:
    updated = "for i in range(1, 9): h.update(Image(picture(10 + i, 10)))"
    (block,) = images(await ran(agent, f"h = display(Image(picture(10, 10)), display_id=True)\n{updated}"))
    assert decoded(block).size == (18, 10)
    (block,) = images(await ran(agent, "for i in range(9): clear_output(wait=True); show(picture(20 + i, 10))"))
    assert decoded(block).size == (28, 10)


async def test_a_result_with_pictures_of_several_types_or_as_bytes_is_one_image(agent: Agent) -> None:
    source = (
        "class Both:\n    def _repr_png_(self): return picture(30, 10)\n"
        "    def _repr_jpeg_(self): return picture(40, 10, 'JPEG')\n    def __repr__(self): return 'both'\nBoth()"
    )
    result = await ran(agent, source)
    assert outline(result)[0].endswith("]: both")
    (block,) = images(result)
    assert decoded(block).size == (30, 10)
    (block,) = images(await ran(agent, "Pillow.new('RGB', (50, 10))"))
    assert decoded(block).size == (50, 10)


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "gif"])
async def test_each_type_that_models_take_is_shown_as_it_is(agent: Agent, kind: str) -> None:
    (block,) = images(await ran(agent, f"Image(picture(31, 17, {kind.upper()!r}), format={kind!r})"))
    assert (block.mime_type, decoded(block).size) == (f"image/{kind}", (31, 17))


@pytest.mark.case("M13")
async def test_what_is_too_large_is_scaled_and_its_size_is_told(agent: Agent) -> None:
    result = await ran(agent, "show(picture(9000, 90))")
    (block,) = images(result)
    assert decoded(block).size == (2000, 20)
    assert "9000×90 px" in text_of(result)
    result = await ran(agent, "show(picture(1000, 1000, noise=True))")
    (block,) = images(result)
    assert max(decoded(block).size) > 500
    assert "1000×1000 px, 2.9 MiB" in text_of(result)


async def test_detail_is_kept_and_an_original_is_as_it_is_or_refused(agent: Agent) -> None:
    (block,) = images(await ran(agent, "show(picture(3000, 20), detail='original')"))
    assert (meta(block)["detail"], decoded(block).size) == ("original", (3000, 20))
    (block,) = images(await ran(agent, "show(picture(30, 20), detail='low')"))
    assert meta(block)["detail"] == "low"
    for source, size in (("picture(9000, 20)", "9000×20 px"), ("picture(900, 900, noise=True)", "900×900 px")):
        result = await ran(agent, f"show({source}, detail='original')")
        assert not images(result)
        assert size in text_of(result)
        assert "not shown" in text_of(result)


@pytest.mark.case("M13")
async def test_no_more_than_twenty_and_the_others_are_named(agent: Agent) -> None:
    result = await ran(agent, "for i in range(23): show(picture(10 + i, 10))")
    assert [decoded(block).size[0] for block in images(result)] == list(range(10, 30))
    assert "displays 21–23" in text_of(result)


@pytest.mark.case("M13")
async def test_large_images_share_the_message(agent: Agent) -> None:
    result = await ran(agent, "for i in range(4): show(picture(500, 500, noise=True))")
    assert len(images(result)) == 4
    assert all(max(decoded(block).size) >= 250 for block in images(result))


BROKEN = {
    "an SVG": ("display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'))", "image/svg+xml"),
    "no image at all": ("Image(b'not an image', format='png')", "no PNG, JPEG, WEBP or GIF"),
    "broken base64": ("show('a!!!b')", "not base64"),
    "half an image": ("show(picture(90, 90, noise=True)[:9000])", "image/png"),
    "an animation": ("Image(picture(20, 20, 'GIF', frames=4), format='gif')", "animated"),
    "a bad detail": ("show(picture(9, 9), detail='huge')", "'huge', not low, high or original"),
    "a bomb": ("from struct import pack\nbomb = bytearray(picture(1, 1)); bomb[16:24] = pack('>II', 40000, 40000); "
        "import zlib; bomb[29:33] = pack('>I', zlib.crc32(bytes(bomb[12:29]))); show(bytes(bomb))", "megapixels"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.case("M12")
async def test_a_line_that_says_which_display_and_why_stands_for_what_cannot_be_shown(agent: Agent, kind: str) -> None:
    source, why = BROKEN[kind]
    result = await ran(agent, source)
    assert not images(result)
    (line,) = [line for line in outline(result) if "not shown" in line]
    assert line.startswith("[display 1: ")
    assert why in line


@pytest.mark.case("M12")
async def test_a_wrong_label_never_reaches_the_client(agent: Agent) -> None:
    result = await ran(agent, "Image(picture(12, 12), format='jpeg')")
    assert [decoded(block).size for block in images(result) if block.mime_type == "image/png"] == [(12, 12)]
    assert "labelled image/jpeg" in text_of(result)


PLOT = (
    "data = {{'application/vnd.plotly.v1+json': {{'data': ['x' * 3_000_000]}}, 'text/html': 'y' * 3_000_000{plain}}}\n"
    "display(data, raw=True)"
)


async def test_a_bundle_of_megabytes_costs_a_line(agent: Agent) -> None:
    shown = await printed(agent, PLOT.format(plain=""))
    assert shown == "[display 1: application/vnd.plotly.v1+json 3.0 MB, text/html 3.0 MB; no text form]"
    assert await printed(agent, PLOT.format(plain=", 'text/plain': 'Figure'")) == (
        "Figure\n[display 1: also application/vnd.plotly.v1+json 3.0 MB, text/html 3.0 MB; not shown]"
    )


async def test_a_frame_of_a_hundred_thousand_rows_is_its_short_form(agent: Agent) -> None:
    await agent.run("%%loommux --wait 60 --silence 60\nimport pandas")
    lines = (await printed(agent, "pandas.DataFrame({'a': range(100_000)})")).split("\n")
    assert lines[-1] == "[100000 rows x 1 columns]"
    assert len(lines) < 20


@pytest.mark.parametrize("mode", ERAS)
async def test_a_picture_of_three_megabytes_reaches_the_default_client_over_http(place: Place, mode: str) -> None:
    async with web(place) as server, server.agent(mode, **{"X-Loommux-Resource": "pictures"}) as agent:
        result = await ran(agent, "show(picture(1000, 1000, noise=True))")
        (block,) = images(result)
        assert max(decoded(block).size) > 500
        assert await printed(agent, "print('the session goes on')") == "the session goes on"
