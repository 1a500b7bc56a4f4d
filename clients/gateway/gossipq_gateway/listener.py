"""An HTTP port: uvicorn with bounds for connections, and for the time of a request."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence, Sized
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gossipq_gateway import probes
from gossipq_gateway.dialect import Place, sparing
from gossipq_gateway.manners import Bodies
from gossipq_gateway.room import Room, Share
from gossipq_gateway.seats import BODY, HEAD, IDLE, Seats

HEADER_BYTES_MAX = 1 << 16
HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)
PROBED = tuple(path.encode() for path in probes.PATHS)
HEADERS_S = 10.0  #: time until the end of the headers, from the connection or the previous answer
STALLED_S = 60.0  #: a client that reads none of an answer for this time is disconnected
KEEP_ALIVE_S = 60
PIPELINED_MAX = 256  #: requests of a connection that wait for earlier answers
GRACE_S = 5  #: running requests get this long at the end, then they are cancelled
FAREWELL_S = 5.0  #: a closing connection gets this long to read the rest
FRAME_BYTES_MAX = 17 << 20  #: of a WebSocket: a record of maximum size
FRAGMENTS_MAX = 1 << 14  #: of a message over a WebSocket
TOO_BIG, TRY_AGAIN_LATER = 1009, 1013  #: close codes
PING_S = 20.0  #: interval of pings on a WebSocket, and the time for an answer


class BoundedHttp(HttpToolsProtocol):
    """An HTTP connection with bounds.

    It is closed if the headers are incomplete after `HEADERS_S`, if headers or trailers are too
    large, if the client sends after its request was answered, sends too many requests in advance,
    or reads no answers. Unread answers share their memory limit with incomplete requests.
    """

    _patience: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _unfinished = 0  #: received bytes of headers, trailers and chunk framing

    def __init__(self, *given: Any, room: Room, seats: Seats[asyncio.BaseTransport], **named: Any) -> None:
        super().__init__(*given, **named)
        self._unread, self._seats = Share(room), seats
        self._head_bytes = 0  #: of the request line and the headers
        self._is_whole = False  #: the last request is complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self._expect()
        slowest = self._seats.enter(transport, self.client[0] if self.client else "")
        if slowest is not None:
            self._seats.leave(slowest)
            slowest.close()
        if self._seats.is_overfull:
            self.limit_concurrency = 0  # its request is refused: 503

    def data_received(self, data: bytes) -> None:
        self._unfinished += len(data)
        super().data_received(data)
        if self.cycle is not None and self.cycle.response_complete:
            self._expect()
        if self._unfinished > HEADER_BYTES_MAX and not self.transport.is_closing():
            self._refuse_head()

    def on_message_begin(self) -> None:
        self._expect()
        self._seats.put(self.transport, HEAD)
        self._head_bytes, self._is_whole = 0, False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._patience is not None:  # not a trailer: the limits of headers do not apply
            self._count_head(name, value)
            super().on_header(name, value)

    def _count_head(self, *parts: bytes) -> None:
        """Count the bytes of the head. Raises _HeadTooLarge, also for a single piece."""
        self._head_bytes += sum(map(len, parts)) + 4
        if self._head_bytes > HEADER_BYTES_MAX:
            raise _HeadTooLarge

    def send_400_response(self, msg: str) -> None:
        if self._head_bytes > HEADER_BYTES_MAX:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def _refuse_head(self) -> None:
        """Refuse the request. An answer that has begun ends there."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(HEAD_TOO_LARGE)
        self.transport.close()

    def on_headers_complete(self) -> None:
        self._calm()
        self._seats.put(self.transport, BODY)
        if self.url in PROBED:
            self.limit_concurrency = None  # probes are answered even if the gateway is full
        super().on_headers_complete()
        if len(self.pipeline) > PIPELINED_MAX:
            self.transport.close()

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._calm()
        self._is_whole = True
        self._seats.put(self.transport, None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_whole and not self.pipeline:
            self._seats.put(self.transport, IDLE)

    def pause_writing(self) -> None:
        super().pause_writing()
        if _has_room(self._unread, self.transport):
            self._look_in_a_while()

    def resume_writing(self) -> None:
        self._taken()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._calm()
        self._taken()
        self._seats.leave(self.transport)
        super().connection_lost(exc)

    def _taken(self) -> None:
        self._unread.end()
        if self._stall is not None:
            self._stall.cancel()

    def _look_in_a_while(self) -> None:
        left, loop = self.transport.get_write_buffer_size(), asyncio.get_running_loop()
        self._stall = loop.call_later(STALLED_S, self._look, left)

    def _look(self, left_before: int) -> None:
        if self.transport.get_write_buffer_size() < left_before:
            self._look_in_a_while()
        else:
            self.transport.abort()

    def _expect(self) -> None:
        """Set the deadline for the end of the headers, or of input after the answer."""
        if self._patience is None:
            self._patience = asyncio.get_running_loop().call_later(HEADERS_S, self.transport.close)

    def _calm(self) -> None:
        self._unfinished = 0
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class _HeadTooLarge(Exception):
    """The request line and the headers exceed `HEADER_BYTES_MAX`."""


class _Flow(FlowControl):
    """Stops reading while a request waits for an earlier answer."""

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if not self._waiting:
            super().resume_reading()


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket with bounds.

    It is aborted if it answers no ping. A close would wait without limit for a client that does not
    read, and keep a consumer's records. Incomplete and unread data are bounded, and pings of a
    client that does not read are not answered.
    """

    def __init__(self, *given: Any, room: Room, seats: Seats[asyncio.BaseTransport], **named: Any) -> None:
        super().__init__(*given, **named)
        self._share, self._unread, self._seats = Share(room), Share(room), seats

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._share.hold(unfinished(self.conn)):
            self._refuse(TRY_AGAIN_LATER, "too much is under way at this gateway")

    def handle_cont(self, event: Any) -> None:
        if len(self.frames) < FRAGMENTS_MAX:
            super().handle_cont(event)
        else:
            self._refuse(TOO_BIG, "too many fragments")

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def _refuse(self, code: int, reason: str) -> None:
        if not self.close_sent and not self.transport.is_closing():
            self.conn.fail(code, reason)
            self.handle_parser_exception()

    def pause_writing(self) -> None:
        super().pause_writing()
        _has_room(self._unread, self.transport)

    def resume_writing(self) -> None:
        self._unread.end()
        super().resume_writing()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        asyncio.get_running_loop().call_later(FAREWELL_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._share.end()
        self._unread.end()
        self._seats.leave(self.transport)
        super().connection_lost(exc)


def _has_room(unread: Share, transport: asyncio.Transport) -> bool:
    """Return whether unread data fit into the bounds; otherwise abort the connection."""
    if unread.hold(transport.get_write_buffer_size()):
        return True
    transport.abort()
    return False


def unfinished(wire: Any) -> int:
    """Return the bytes of an incomplete message in a `ServerProtocol` of `websockets`."""
    return len(wire.reader.buffer) + (wire.current_size or 0)


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


async def _sweep(connections: Collection[Any]) -> None:
    """Abort closing connections that do not read the rest: a close would wait without limit."""
    left = dict[Any, int]()
    while True:
        await asyncio.sleep(STALLED_S)
        ending = [each for each in connections if each.transport.is_closing()]
        before, left = left, {each: each.transport.get_write_buffer_size() for each in ending}
        for each, size in left.items():
            if each in before and size >= before[each]:
                each.transport.abort()


@asynccontextmanager
async def listening(
    app: ASGIApp, where: Place, proxies: Sequence[str] = (), **settings: Any
) -> AsyncIterator[Place]:
    """Serve HTTP and WebSockets with an ASGI application. Yields the bound address.

    `proxies` are addresses and networks whose X-Forwarded-Proto is trusted; `settings` are those of
    `uvicorn.Config`. Raises OSError if the address is in use.
    """
    listener, room, log = bound(where), Room(), logging.getLogger("uvicorn.error")
    seats = Seats[asyncio.BaseTransport](_shared_by(proxies))
    config = uvicorn.Config(
        Bodies(app, room),
        **{
            "http": partial(BoundedHttp, room=room, seats=seats),
            "ws": partial(BoundedWebSocket, room=room, seats=seats),
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
        },
    )
    server = Server(config)
    running = asyncio.create_task(server.serve([listener]))
    sweeper = asyncio.create_task(_sweep(server.server_state.connections))
    try:
        while not server.started and not running.done():
            await asyncio.sleep(0.01)
        with sparing(log):
            yield Place(where.host, listener.getsockname()[1])
    finally:
        server.should_exit = True
        await running
        sweeper.cancel()
        listener.close()
