"""JSON answers are UTF-8, whatever they say."""

from __future__ import annotations

import json

import pytest

from loommux_host.web.auth import matches
from loommux_host.web.json_answer import JsonAnswer


@pytest.mark.case("X13")
def test_lone_surrogates_are_sent_as_visible_escapes() -> None:
    body = JsonAnswer({"a\ud800": ["\udfff é", {"x": (1, None, "\\\ud83d")}]}).body
    assert json.loads(bytes(body).decode()) == {"a\\ud800": ["\\udfff é", {"x": [1, None, "\\\\ud83d"]}]}


@pytest.mark.case("X13")
def test_no_token_is_like_one_with_a_surrogate() -> None:
    assert not matches("\ud800", "token")
    assert matches("tok\ud800en", "token") is False
