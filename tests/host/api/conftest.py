"""An HTTP server over kernels in memory, for every test that wants one."""

from __future__ import annotations

from tests.host.server.http_server import http, server

__all__ = ["http", "server"]
