"""JSON that can always be sent: whatever text it holds, its bytes are UTF-8.

Owns the one class of all JSON answers. A kernel's output, a client's name and a refused argument
may hold lone surrogates, of which no UTF-8 can be made; they are sent as visible escapes.
"""

from __future__ import annotations

import re
from typing import Any

from starlette.responses import JSONResponse

_SURROGATES = re.compile("[\ud800-\udfff]")


class JsonAnswer(JSONResponse):
    """A JSON answer; a lone surrogate in it is sent as the six characters that escape it."""

    def render(self, content: Any) -> bytes:
        try:
            return super().render(content)
        except UnicodeEncodeError:
            return super().render(_sendable(content))


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATES.sub(lambda m: f"\\u{ord(m[0]):04x}", value)
    if isinstance(value, dict):
        return {_sendable(name): _sendable(one) for name, one in value.items()}
    return [_sendable(one) for one in value] if isinstance(value, list | tuple) else value
