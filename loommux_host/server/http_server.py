"""An HTTP server from its socket to its end (contract 2, 10).

Owns the listening socket, the token, the lines that a start prints, and the order of the
end: waiting calls are answered, streams closed, kernels retired. uvicorn carries the
bytes; it neither takes signals nor wakes up while nothing happens. `cli` calls `serve_http`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loommux_host.api.feed import Feed
from loommux_host.config import Config, read_token
from loommux_host.kernels.registry import Registry
from loommux_host.leases.policy import Policies, Policy
from loommux_host.mcp.sdk import unwatched
from loommux_host.server.adoption import Adoption
from loommux_host.server.handover import Known, Memory
from loommux_host.server.host import Host, Stop, ending_signals
from loommux_host.server.http_app import HttpApp, Parts
from loommux_host.server.private_server import App
from loommux_host.sessions.binding import Binder
from loommux_host.sessions.lease_enforcement import LeaseEnforcement
from loommux_host.succession.takeover import inherit, replace_stopped
from loommux_host.web.auth import Access, access, is_loopback
from loommux_host.web.uvicorn_server import WebServer

BACKLOG = 256
#: A silent peer is found out after at most this long: idle, then probes; and with unacknowledged data at once.
KEEP_ALIVE_IDLE, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_PROBES = 20, 10, 3
USER_TIMEOUT_MILLISECONDS = 50_000


class CannotListen(Exception):
    """The address cannot be bound; the message says why and what to do."""


async def serve_http(config: Config, say: Callable[[str], None]) -> None:
    """Serve until a signal comes. Raises `CannotListen` or `ConfigError` before anything listens."""
    token = read_token(config.auth_token_file) if config.auth_token_file is not None else None
    rules = access(
        None if config.uds else config.host, token, auth=config.auth,
        allowed_hosts=config.allowed_hosts, names=[socket.gethostname()],
    )  # fmt: skip
    with claimed(config, say) as listener:
        stop = Stop()
        with ending_signals(stop):
            await _serve(config, listener, rules, stop, say, lambda: _tell(config, listener, rules, token, say))


async def _serve(
    config: Config,
    listener: socket.socket,
    rules: Access,
    stop: Stop,
    say: Callable[[str], None],
    started: Callable[[], None],
) -> None:
    _listen(listener)  # whoever can has the endpoint, and is the only one to take anything over; clients wait
    inherited = await inherit(config, address(config, listener), say)
    host = Host(config, [rules.token] if rules.token else [], inherited)
    stop.tell = host.ends_by
    try:
        feed = Feed()
        leasing = LeaseEnforcement(Policies(Policy.of(config)), feed.publish)
        binders: list[Binder] = []

        def binder(registry: Registry) -> Binder:
            binders.append(Binder(registry, leasing))
            return binders[0]

        service = await host.open(binder, leasing)
        parts = Parts(feed, leasing, binders[0])
        adoption = None if inherited is None else Adoption(inherited, host, say)
        if adoption is not None:
            await adoption.recall(service, parts.binder, leasing)
            parts.sessions = adoption.callers.sessions
        app = HttpApp(config, service, parts, rules)
        if adoption is not None:
            await adoption.begin()
        if host.keeping is not None:
            known = Known(
                service.registry, service.sessions, parts.binder, leasing, host.files, app.open_sessions
            )  # fmt: skip
            memory = Memory(host.directory.path, host.identity(address(config, listener)), known)
            app.remember(memory)
            host.made_again.append(memory.write_again)

        async def private() -> App:
            return app.private(host.control)

        host.serve_private(private)
        host.publish(endpoint(config, listener))
        started()
        await run(app, listener, stop)
    finally:
        await host.close()


async def run(app: HttpApp, listener: socket.socket, stop: asyncio.Event) -> None:
    """Serve on a listening socket until `stop`; then answer what waits, close what streams, and return."""
    async with contextlib.AsyncExitStack() as running:
        await running.enter_async_context(app.run())

        async def end() -> None:
            await app.stop()
            await running.aclose()

        unwatched()
        await WebServer(app.asgi, stop, end).serve(sockets=[listener])


# -- the socket ---------------------------------------------------------------------------


@contextlib.contextmanager
def claimed(config: Config, say: Callable[[str], None]) -> Iterator[socket.socket]:
    """As `bound`; a server that is only stopped gives way when its kernels can be taken over."""
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(bound(config))
        except CannotListen:
            pid = replace_stopped(config, _wanted(config))
            if pid is None:
                raise
            say(f"the server before this (pid {pid}) was stopped, not ended; it has been ended, its kernels go on")
            listener = stack.enter_context(bound(config))
        yield listener


@contextlib.contextmanager
def bound(config: Config) -> Iterator[socket.socket]:
    """The socket of this server, bound and not listening yet. Raises `CannotListen`."""
    if config.uds is not None:
        with _bound_to_path(config.uds) as listener:
            yield listener
        return
    try:
        listener = _bound_to_port(config.host, config.port)
    except OSError as error:
        where = f"{config.host}:{config.port}"
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(
                f"another server has {where} already; stop it, or choose another --port (0 finds a free one)"
            ) from error
        raise CannotListen(f"cannot bind {where}: {error.strerror or error}") from error
    with listener:
        yield listener


def base_url(listener: socket.socket) -> str | None:
    """Where a bound socket listens; None for a unix socket, for which there is no such URL."""
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def address(config: Config, listener: socket.socket) -> str:
    """What no two servers can have at once."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    host, port = listener.getsockname()[:2]
    return f"{host}:{port}"


def _wanted(config: Config) -> str:
    """The address that we would have, were it free."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    host, port = _found(config.host, config.port)[3][:2]
    return f"{host}:{port}"


def endpoint(config: Config, listener: socket.socket) -> str:
    """Where MCP is served, as people are told."""
    return f"{base_url(listener)}{config.path}" if config.uds is None else f"unix:{config.uds}, MCP at {config.path}"


def _listen(listener: socket.socket) -> None:
    """Two servers that start at once may both have bound; only one can listen."""
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        raise CannotListen(f"another server was faster: {error.strerror}") from error


def _bound_to_port(host: str, port: int) -> socket.socket:
    family, kind, protocol, address = _found(host, port)
    listener = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        _find_silent_peers(listener)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


def _found(host: str, port: int) -> tuple[int, int, int, tuple[Any, ...]]:
    """Where a name or an address is on this machine. Raises `CannotListen`."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        found = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no name that a host can have"
        raise CannotListen(
            f"--host {host[:80]!r} cannot be resolved ({why}); allowed: an address of this machine, or a name of it"
        ) from None
    family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    return family, kind, protocol, address


def _find_silent_peers(listener: socket.socket) -> None:
    """Connections inherit these: a peer that vanished without a word ends its streams within a minute."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": KEEP_ALIVE_IDLE,
        "TCP_KEEPINTVL": KEEP_ALIVE_INTERVAL,
        "TCP_KEEPCNT": KEEP_ALIVE_PROBES,
        "TCP_USER_TIMEOUT": USER_TIMEOUT_MILLISECONDS,
    }
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)


@contextlib.contextmanager
def _bound_to_path(path: Path) -> Iterator[socket.socket]:
    """A unix socket that only this account can use; a stale one of a dead server gives way."""
    if sys.platform == "win32":
        raise CannotListen("--uds needs a system with unix sockets")
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise CannotListen(f"cannot bind {path}: {error.strerror}") from error
    finally:
        os.umask(mask)
    identity = path.stat()
    try:
        with listener:
            yield listener
    finally:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), identity):
                path.unlink()


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise CannotListen(f"cannot bind {path}: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISSOCK(mode):
        raise CannotListen(f"{path} exists and is no socket; remove it or choose another --uds")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise CannotListen(f"another server has {path} already; stop it, or choose another --uds")


# -- what is told ---------------------------------------------------------------


def _tell(
    config: Config, listener: socket.socket, rules: Access, given: str | None, say: Callable[[str], None]
) -> None:
    """The lines of a start that worked. A token that was given is never shown."""
    say(f"listening on {endpoint(config, listener)}")
    if rules.token is not None and given is None:
        say(f"token made for this start (Authorization: Bearer …): {rules.token}")
    if rules.token is None and config.uds is None and not is_loopback(config.host):
        say("no token is asked for (--no-auth): everybody who can reach this address can run code as you")
