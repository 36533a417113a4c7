"""``python -m stress.plain``: a uvicorn app that does nothing, to compare with; prints its port."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


async def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(app, log_level="warning", lifespan="off")
        await uvicorn.Server(config).serve([listener])


if __name__ == "__main__":
    asyncio.run(main())
