"""Which text a bundle gives (contract 3.5)."""

from __future__ import annotations

from typing import Any

import pytest

from loommux_kernel.shared.bundles import bundle_text, no_text_line

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
    assert no_text_line(bundle, 2) == line
