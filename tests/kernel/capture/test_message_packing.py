"""Messages are packed and read as jupyter_client does it."""

from __future__ import annotations

import datetime
import warnings
from typing import Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from jupyter_client.session import Session

from loommux_kernel.capture.message_packing import QuickSession

KEY = b"a key"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def both() -> tuple[Session, QuickSession]:
    return Session(key=KEY), QuickSession(key=KEY)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.dictionaries(st.text(), JSON, max_size=2))
def test_what_one_packs_the_other_reads_the_same(content: dict[str, Any], metadata: dict[str, Any]) -> None:
    stock, quick = both()
    parent = stock.msg("parent", {})
    message = stock.msg("kind", content, parent=parent, metadata=metadata)
    packed = quick.serialize(message, ident=b"who")
    assert packed == stock.serialize(message, ident=b"who")
    _, parts = stock.feed_identities(packed)
    assert quick.deserialize(parts) == stock.deserialize(parts)


@pytest.mark.parametrize(
    "date",
    [
        datetime.datetime(2026, 11, 29, 12, 0, 0, 5, tzinfo=datetime.UTC),
        "2026-11-29T12:00:00.000005Z",
        "2026-11-29T12:00:00+02:00",
        "2026-11-29T12:00:00",
        "not a date",
        "",
        None,
        17,
    ],
)
def test_dates_are_read_as_before(date: Any) -> None:
    stock, quick = both()
    message = stock.msg("kind", {})
    message["header"]["date"] = date
    _, parts = stock.feed_identities(stock.serialize(message))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert quick.deserialize(parts)["header"]["date"] == stock.deserialize(parts)["header"]["date"]


def test_frames_of_zmq_and_buffers_are_read() -> None:
    stock, quick = both()
    _, parts = stock.feed_identities([*stock.serialize(stock.msg("kind", {"a": 1})), b"buffer"])
    message = quick.deserialize([zmq.Frame(p) for p in parts], copy=False)
    assert message["content"] == {"a": 1}
    assert [bytes(b) for b in message["buffers"]] == [b"buffer"]


def test_a_message_that_is_unsigned_forged_or_repeated_is_refused() -> None:
    stock, quick = both()
    _, parts = stock.feed_identities(stock.serialize(stock.msg("kind", {})))
    with pytest.raises(ValueError, match="Unsigned"):
        quick.deserialize([b"", *parts[1:]])
    with pytest.raises(ValueError, match="Invalid"):
        quick.deserialize([*parts[:4], b'{"forged": true}'])
    assert quick.deserialize(parts, content=False)["content"] == b"{}"
    quick.deserialize(parts)
    with pytest.raises(ValueError, match="Duplicate"):
        quick.deserialize(parts)
    with pytest.raises(TypeError, match="malformed"):
        quick.deserialize(parts[:4])


def test_what_is_no_json_is_left_to_jupyter_client() -> None:
    stock, quick = both()
    message = stock.msg("kind", {"set": {1}, "bytes": b"x"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert quick.serialize(message)[-1] == stock.serialize(message)[-1]
