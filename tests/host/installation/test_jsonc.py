"""One entry goes into a file of JSON with comments; every other byte stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loommux_host.installation import jsonc

ENTRY = {"command": "/bin/loommux", "args": ["--spawn"]}
COMMENTED = """\
// mine
{
    // what I use
    "servers": {
        "other": { "command": "x" }, // the first
        /* the second */
        "more": {"command": "y"}   // no comma behind it
    },
    "inputs": [1, 2,],
}
"""


def test_comments_order_and_indentation_stay() -> None:
    after = jsonc.put(COMMENTED, "servers", "loommux", ENTRY)
    assert after == COMMENTED.replace(
        '"more": {"command": "y"}   // no comma behind it\n',
        '"more": {"command": "y"},   // no comma behind it\n'
        '        "loommux": {\n            "command": "/bin/loommux",\n            "args": [\n'
        '                "--spawn"\n            ]\n        }\n',
    )
    assert jsonc.entry(after, "servers", "loommux") == ENTRY


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{\n  "s": {\n    "l": 1\n  }\n}\n'),
        ("// nothing yet\n", '// nothing yet\n{\n  "s": {\n    "l": 1\n  }\n}\n'),
        ("{}", '{"s": {"l": 1}}'),
        ('{"a":1}', '{"a":1, "s": {"l": 1}}'),
        ('{\n\t"s": {}\n}', '{\n\t"s": {\n\t\t"l": 1\n\t}\n}'),
        (
            '{\r\n  "s": {\r\n    "o": 2,\r\n  },\r\n}\r\n',
            '{\r\n  "s": {\r\n    "o": 2,\r\n    "l": 1,\r\n  },\r\n}\r\n',
        ),
        ('{"s": {"l": {"x": 2}, "o": 3}}', '{"s": {"l": 1, "o": 3}}'),
        ('\ufeff{"s": {"o": 2,},}', '\ufeff{"s": {"o": 2, "l": 1},}'),
    ],
)
def test_an_entry_is_written_as_the_file_is_written(before: str, after: str) -> None:
    assert jsonc.put(before, "s", "l", 1) == after


@pytest.mark.parametrize("text", ["[]", '{"s": []}', '{"s": 1', "{'s': 1}", '{"s" 1}', '{"a": 1 "s": 2}', "{,}", "x"])
def test_what_cannot_take_an_entry_is_refused(text: str) -> None:
    with pytest.raises(jsonc.NotUnderstood):
        jsonc.put(text, "s", "l", 1)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    held=st.dictionaries(st.text(), VALUES, max_size=4),
    servers=st.dictionaries(st.text(), VALUES, max_size=3),
    indent=st.sampled_from([None, 2, 4, "\t"]),
)
def test_any_json_gets_the_entry_and_says_otherwise_what_it_said(held: Any, servers: Any, indent: Any) -> None:
    whole = {**held, "servers": servers}
    after = jsonc.put(json.dumps(whole, indent=indent), "servers", "loommux", ENTRY)
    assert jsonc.loads(after) == {**whole, "servers": {**servers, "loommux": ENTRY}}
    assert json.loads(after) == jsonc.loads(after), "plain JSON stays plain JSON"
    assert jsonc.put(after, "servers", "loommux", ENTRY) == after
