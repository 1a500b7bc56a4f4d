"""An HTTP port: uvicorn with bounds for connections, and for the time of a request."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from gossipq_gateway.connection import BoundedConnection, Bounds
from gossipq_gateway.dialect import Place, sparing
from gossipq_gateway.manners import Bodies
from gossipq_gateway.room import Room
from gossipq_gateway.seats import Seats

KEEP_ALIVE_S = 60
GRACE_S = 5  #: running requests get this long at the end, then they are cancelled
FRAME_BYTES_MAX = 17 << 20  #: of a WebSocket: a record of maximum size
PING_S = 20.0  #: interval of pings on a WebSocket, and the time for an answer


class Server(uvicorn.Server):
    """A server without signal handlers, because the gateway can have several servers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bound(where: Place) -> socket.socket:
    """Return a listening socket. Raises OSError."""
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((where.host, where.port))
        made.listen(1_024)
    except BaseException:
        made.close()
        raise
    made.setblocking(False)
    return made


def _shared_by(proxies: Sequence[str]) -> Callable[[str], bool]:
    """Return a test for addresses with many callers: loopback and proxies."""
    networks = [ip_network(proxy) for proxy in proxies]

    def is_shared(address: str) -> bool:
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        return found.is_loopback or any(found in network for network in networks)

    return is_shared


@asynccontextmanager
async def listening(
    app: ASGIApp, where: Place, proxies: Sequence[str] = (), **settings: Any
) -> AsyncIterator[Place]:
    """Serve HTTP and WebSockets with an ASGI application. Yields the bound address.

    `proxies` are addresses and networks whose X-Forwarded-Proto is trusted; `settings` are those of
    `uvicorn.Config`. Raises OSError if the address is in use.
    """
    listener, log, room = bound(where), logging.getLogger("uvicorn.error"), Room()
    bounds, bounded = Bounds(room, Seats(_shared_by(proxies))), Bodies(app, room)
    chosen: dict[str, Any] = {
        "ws": "websockets-sansio",
        "ws_max_size": FRAME_BYTES_MAX,
        "ws_ping_interval": PING_S,
        "ws_ping_timeout": PING_S,
        "ws_per_message_deflate": False,
        "lifespan": "off",
        "log_config": None,
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "proxy_headers": bool(proxies),
        "forwarded_allow_ips": list(proxies),
        "timeout_keep_alive": KEEP_ALIVE_S,
        "timeout_graceful_shutdown": GRACE_S,
        **settings,
    }
    plain = uvicorn.Config(bounded, http="httptools", **chosen)
    plain.load()
    factory: Any = partial(BoundedConnection, plain.http_protocol_class, bounds)
    server = Server(uvicorn.Config(bounded, http=factory, **chosen))
    running = asyncio.create_task(server.serve([listener]))
    try:
        while not server.started and not running.done():
            await asyncio.sleep(0.01)
        with sparing(log):
            yield Place(where.host, listener.getsockname()[1])
    finally:
        server.should_exit = True
        await running
        listener.close()
