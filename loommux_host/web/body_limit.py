"""Request bodies of bounded size and time: read before the app sees the request.

Owns the reading and the discarding of a body; `auth` is the only caller. A body is
read whole because what reads it afterwards (the SDK, the API) does so too, and an
error in the middle of theirs would become a 500.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.types import Message, Receive

#: How long a client may take, in seconds, to send a body.
BODY_SECONDS = 30.0
#: How much of a refused body is read, so that its client gets to read the answer, and how long a client
#: may pause meanwhile, in seconds.
PAUSE_SECONDS = 2.0
DRAIN_BYTES = 256 * 1024 * 1024


@dataclass
class LimitedBody:
    """A body that was read; `receive` hands it on, then goes on with the connection's own."""

    first: list[Message]
    rest: Receive

    @classmethod
    async def read(cls, receive: Receive, limit: int) -> LimitedBody | None:
        """The body, or None when it has more than `limit` bytes. TimeoutError when it does not come."""
        async with asyncio.timeout(BODY_SECONDS):
            return await cls._read(receive, limit)

    @classmethod
    async def _read(cls, receive: Receive, limit: int) -> LimitedBody | None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return cls([message], receive)
            body += message.get("body", b"")
            if len(body) > limit:
                return None
            if not message.get("more_body", False):
                return cls([{"type": "http.request", "body": bytes(body), "more_body": False}], receive)

    async def receive(self) -> Message:
        return self.first.pop() if self.first else await self.rest()


async def drain(receive: Receive) -> None:
    """Discard what a client still sends.

    Closing while it sends would reset the connection, and the client would see that
    in place of the answer.
    """
    discarded = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while discarded < DRAIN_BYTES:
                async with asyncio.timeout(PAUSE_SECONDS):
                    message = await receive()
                discarded += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return
