"""Which text a bundle gives (contract 3.5)."""

from __future__ import annotations

from typing import Any

import pytest

from loommux_kernel.shared.bundles import bundle_text, result_text, shown_result, shown_text

OBJECT = "<IPython.core.display.Markdown object>"


@pytest.mark.parametrize(
    ("bundle", "text"),
    [
        ({"text/plain": "4"}, "4"),
        ({"text/plain": ""}, ""),
        ({"text/plain": ["a\n", "b"]}, "a\nb"),
        ({"text/plain": 4}, "4"),
        ({"text/plain": "<Figure size 640x480 with 1 Axes>", "image/png": "…"}, "<Figure size 640x480 with 1 Axes>"),
        ({"text/plain": OBJECT, "text/markdown": "# Title"}, "# Title"),
        ({"text/plain": OBJECT, "text/latex": "$x$", "text/html": "<b>"}, "$x$"),
        ({"text/plain": OBJECT, "text/html": "<b>"}, OBJECT),
        ({"text/plain": "<__main__.Foo at 0x7f00deadbeef>", "text/markdown": "foo"}, "foo"),
        ({"text/plain": "<__main__.f.<locals>.Foo object at 0x7f00deadbeef>", "text/markdown": "foo"}, "foo"),
        ({"text/plain": "x = 3", "text/latex": "$x = 3$"}, "x = 3"),
        ({"text/plain": "<function f at the start>", "text/markdown": "foo"}, "<function f at the start>"),
        ({"text/markdown": "only"}, "only"),
        ({"text/html": "<b>"}, None),
        ({"text/plain": None, "image/png": "…"}, None),
        ({}, None),
    ],
)
def test_the_text_of_a_bundle_is(bundle: dict[str, Any], text: str | None) -> None:
    assert bundle_text(bundle) == text


@pytest.mark.parametrize(
    ("bundle", "line"),
    [
        ({"text/html": "x" * 1_234_567}, "[display 2: text/html 1.2 MB; no text form]"),
        ({"text/html": "x" * 999}, "[display 2: text/html 999 B; no text form]"),
        ({"text/html": "é" * 500}, "[display 2: text/html 1.0 kB; no text form]"),
        ({"image/png": "x" * 999_990}, "[display 2: image/png 1.0 MB; no text form]"),
        (
            {"application/json": {"a": 1}, "text/html": "\ud800"},
            "[display 2: application/json 8 B, text/html 3 B; no text form]",
        ),
        ({}, "[display 2: empty; no text form]"),
    ],
)
def test_a_bundle_without_text_is_one_line(bundle: dict[str, Any], line: str) -> None:
    assert bundle_text(bundle) is None
    assert shown_text(bundle, 2) == shown_result(bundle, 2, 7) == line


@pytest.mark.case("N21")
@pytest.mark.parametrize(
    "plain",
    [
        "\n<IPython.core.display.Markdown object>",
        "\x1b[1m<\x1b[0m\x1b[1;95mIPython.core.display.Markdown\x1b[0m\x1b[39m object\x1b[0m\x1b[1m>\x1b[0m",
        "<__main__.a_function.<locals>.ALongNameThatIsBroken\nWhereTheConsoleEnds object at 0x7f00deadbeef>",
        "<__main__.a_function.<locals>.AClass object at\n0x7f00deadbeef>\n",
    ],
)
def test_a_default_repr_is_known_whatever_a_printer_made_of_it(plain: str) -> None:
    assert bundle_text({"text/plain": plain, "text/markdown": "# x"}) == "# x"


@pytest.mark.case("X34")
def test_what_a_library_gives_for_models_is_the_text() -> None:
    bundle = {"text/plain": "<Frame>", "text/llm+plain": "3 rows: 1, 2, 3", "text/html": "x" * 9_000}
    assert bundle_text(bundle) == shown_text(bundle, 1) == "3 rows: 1, 2, 3"
    assert bundle_text({"text/plain": "4", "text/llm+plain": ["a\n", "b"]}) == "a\nb"
    assert bundle_text({"text/llm+plain": "only"}) == "only"


STYLER = "<pandas.io.formats.style.Styler at 0x7fd3deadbeef>"
VEGALITE = "application/vnd.vegalite.v6+json"
VEGA = {"$schema": "https://vega.github.io/schema/vega-lite/v6.1.0.json", "mark": {"type": "point"}}


@pytest.mark.case("N20")
@pytest.mark.parametrize(
    ("bundle", "line"),
    [
        ({"text/plain": "alt.Chart(...)", VEGALITE: VEGA}, f"also {VEGALITE} 93 B"),
        ({"text/plain": STYLER, "text/html": "x" * 1_234}, "also text/html 1.2 kB"),
        ({"text/plain": "<folium.folium.Map object at 0x7fd3deadbeef>", "text/html": "x" * 5}, "also text/html 5 B"),
        ({"text/plain": "<IPython.core.display.HTML object>", "text/html": "<b>"}, "also text/html 3 B"),
        ({"text/plain": "LinearRegression()", "text/html": "x" * 9_000}, "also text/html 9.0 kB"),
        ({"text/plain": ":Curve [x] (y)", "text/html": "x" * 50_000, "a/x": "a"}, "also text/html 50.0 kB, a/x 1 B"),
    ],
)  # fmt: skip
def test_what_stands_beside_a_text_that_says_too_little_is_named(bundle: dict[str, Any], line: str) -> None:
    plain = bundle["text/plain"]
    assert shown_text(bundle, 3) == f"{plain}\n[display 3: {line}; not shown]"
    assert shown_result(bundle, 3, 7) == f"Out[7]: {plain}\n[display 3: {line}; not shown]"


@pytest.mark.case("N20")
@pytest.mark.parametrize(
    "bundle",
    [
        {"text/plain": "   a\n0  1", "text/html": "x" * 90_000},
        {"text/plain": "<Figure size 640x480 with 1 Axes>", "image/png": "x" * 90_000},
        {"text/plain": "<Axes at 0x7fd3deadbeef>", "image/png": "x" * 9_000, "text/html": "x" * 9_000},
        {"text/plain": "x**2", "text/latex": "$x^2$"},
        {"text/plain": "<graphviz.graphs.Digraph at 0x7fd3deadbeef>", "image/svg+xml": "<svg>"},
        {"text/plain": "  0%|          | 0/10 [00:00<?, ?it/s]", "application/vnd.jupyter.widget-view+json": {"a": 1}},
        {"text/plain": "1.0 meter", "text/html": "1.0 <i>meter</i>", "text/latex": "$1.0$"},
        {"text/plain": "<IPython.core.display.Markdown object>", "text/markdown": "# Title"},
        {"text/plain": "LinearRegression()", "text/html": "x" * 1_500},
    ],
)
def test_nothing_is_named_where_the_text_says_enough_or_an_image_is_shown(bundle: dict[str, Any]) -> None:
    assert shown_text(bundle, 1) == bundle_text(bundle)


@pytest.mark.case("X22")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("4", "Out[7]: 4"),
        ("", "Out[7]: "),
        ("4\n", "Out[7]: 4\n"),
        ("   a\n0  1", "Out[7]:\n   a\n0  1"),
        ("\nlow", "Out[7]:\n\nlow"),
    ],
)
def test_a_result_of_several_lines_begins_below_its_label(text: str, shown: str) -> None:
    assert result_text(7, text) == shown
    assert shown_result({"text/plain": text}, 1, 7) == shown
