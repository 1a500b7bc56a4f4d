"""One connection of an HTTP port: bounds in front of the server's own protocol.

The server (uvicorn) takes a factory of asyncio protocols. `BoundedConnection` is that protocol. It
counts what a client sends with a parser of its own, and passes the bytes on.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import httptools

from gossipq_gateway.room import Room, Share
from gossipq_gateway.seats import BODY, HEAD, IDLE, Seats

HEADER_BYTES_MAX = 1 << 16
HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)
HEADERS_S = 10.0  #: time until the end of the headers, from the connection or the previous answer
STALLED_S = 60.0  #: a client that reads none of an answer for this time is disconnected
PIPELINED_MAX = 256  #: requests of a connection that wait for earlier answers
FAREWELL_S = 5.0  #: a closing WebSocket gets this long to read the rest
FRAGMENTS_MAX = 1 << 14  #: of a message over a WebSocket
PONG_BYTES_MAX = 1 << 16  #: unread answers to pings of a WebSocket
TOO_BIG, TRY_AGAIN_LATER = 1009, 1013  #: close codes of WebSockets
STATE = "gossipq.connection"  #: key of the connection in the state of an ASGI scope


class Bounds(NamedTuple):
    """The bounds that all connections of a port share."""

    room: Room
    seats: Seats["BoundedConnection"]


class BoundedConnection(asyncio.Protocol):
    """A connection that is closed if its client exceeds a bound.

    HTTP: the headers are incomplete after `HEADERS_S`, headers or trailers are too large, too many
    requests are sent in advance, data come after the answer, or answers stay unread. WebSockets:
    messages in progress, their fragments, and unread answers to pings are bounded.
    """

    _transport: asyncio.Transport

    def __init__(
        self,
        serve: Callable[..., asyncio.Protocol],
        bounds: Bounds,
        *,
        app_state: dict[str, Any],
        **named: Any,
    ) -> None:
        self._server = serve(app_state={**app_state, STATE: self}, **named)
        self._seats = bounds.seats
        self._unread, self._in_progress = Share(bounds.room), Share(bounds.room)
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        # as uvicorn does: a request that follows one with "Connection: close" is no fault
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._frames: Frames | None = None  #: after the upgrade to a WebSocket
        self._deadline: asyncio.TimerHandle | None = None
        self._progress_check: asyncio.TimerHandle | None = None
        self._unfinished = 0  #: received bytes of headers, trailers and chunk framing
        self._head_bytes = 0  #: of the request line and the headers
        self._headers = 0  #: their number
        self._unanswered = deque[int]()  #: for each request without an answer, its number of headers
        self._seat: int | None = HEAD
        self._in_head = True  #: the headers of a request are incomplete, or the first has not begun
        self._is_whole = False  #: the last request is complete
        self._is_reading = self._server_reads = True
        self._is_full = False  #: more is unread than the transport's limit
        self._pong_bytes = 0
        self.is_refused = False  #: the port is full: requests get the status 503

    # --- of asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._start_deadline()
        slowest = self._seats.enter(self, (transport.get_extra_info("peername") or ("",))[0])
        self._server.connection_made(_Line(self, transport))  # type: ignore[arg-type]
        if slowest is not None:
            self._seats.leave(slowest)
            slowest.close()
        self.is_refused = self._seats.is_overfull

    def data_received(self, data: bytes) -> None:
        if self._frames is not None:
            self._receive_frames(self._frames, data)
        elif self._is_within_bounds(data):
            self._server.data_received(data)
            if self._frames is None and (self._in_head or not self._unanswered):
                self._start_deadline()

    def eof_received(self) -> bool | None:
        keeps_open = self._server.eof_received()
        if not keeps_open:
            self._check_progress_later()
        return keeps_open

    def pause_writing(self) -> None:
        self._is_full, self._pong_bytes = True, 0
        self._server.pause_writing()
        if not self._unread.hold(self.unread_bytes):
            self._transport.abort()
        elif self._frames is None:
            self._check_progress_later()

    def resume_writing(self) -> None:
        self._is_full = False
        self._unread.end()
        if not self.is_closing:
            self._stop_progress_check()
        self._server.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        self._stop_progress_check()
        self._unread.end()
        self._in_progress.end()
        self._seats.leave(self)
        self._server.connection_lost(exc)

    # --- of the parser

    def on_message_begin(self) -> None:
        self._in_head, self._is_whole = True, False
        self._head_bytes = self._headers = 0

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # not a trailer: the limits of headers do not apply
            self._headers += 1
            self._count_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._stop_deadline()
        self._in_head = False
        self._unanswered.append(self._headers)

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0

    def on_message_complete(self) -> None:
        self._stop_deadline()
        self._is_whole = True

    def _count_head(self, size: int) -> None:
        """Count the bytes of the head. Raises _HeadTooLarge, also for a single piece."""
        self._head_bytes += size + 4
        if self._head_bytes > HEADER_BYTES_MAX:
            raise _HeadTooLarge

    def _is_within_bounds(self, data: bytes) -> bool:
        """Count data of HTTP. Return False if the connection is closed for them."""
        if self._parser is None:  # after bytes that are no HTTP, or an unknown upgrade
            return True
        self._unfinished += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:  # the server answers 400
            self._parser = None
        except httptools.HttpParserUpgrade:
            self._parser = None
        self._take_seat()
        if self._head_bytes > HEADER_BYTES_MAX or self._unfinished > HEADER_BYTES_MAX:
            if not self._unanswered:  # otherwise an answer may have begun, which ends here
                self._transport.write(HEAD_TOO_LARGE)
            self.close()
            return False
        if len(self._unanswered) > PIPELINED_MAX + 1:
            self.close()
            return False
        return True

    def _take_seat(self) -> None:
        if self._in_head:
            seat: int | None = HEAD
        elif not self._is_whole:
            seat = BODY
        else:
            seat = None if self._unanswered else IDLE
        if seat != self._seat:
            self._seat = seat
            self._seats.put(self, seat)

    # --- of the application

    @property
    def header_count(self) -> int:
        """The number of headers of the request that is being answered: more are trailers."""
        return self._unanswered[0] if self._unanswered else 0

    def end_answer(self) -> None:
        """Note that the oldest request is answered."""
        if self._unanswered:
            self._unanswered.popleft()
        self._take_seat()
        self._apply_reading()

    # --- what it holds

    @property
    def message_bytes(self) -> int:
        """Received bytes of a WebSocket message that is incomplete."""
        return self._frames.size if self._frames is not None else 0

    @property
    def unread_bytes(self) -> int:
        """Sent bytes that the client has not read, those in the kernel not counted."""
        return self._transport.get_write_buffer_size()

    @property
    def is_closing(self) -> bool:
        return self._transport.is_closing()

    # --- of the server

    def let_read(self, server_reads: bool) -> None:
        """Read from the client, or not. Nothing is read while a request waits for an earlier answer."""
        self._server_reads = server_reads
        self._apply_reading()

    def upgrade(self, protocol: asyncio.Protocol) -> None:
        """Pass the bytes to the protocol of a WebSocket from now on."""
        self._stop_deadline()
        self._seats.put(self, None)
        self._server, self._frames, self._parser = protocol, Frames(), None
        self._unanswered.clear()

    def close(self) -> None:
        self._transport.close()
        self._check_progress_later()

    def _apply_reading(self) -> None:
        reads = self._server_reads and len(self._unanswered) < 2
        if reads != self._is_reading and not self.is_closing:
            self._is_reading = reads
            (self._transport.resume_reading if reads else self._transport.pause_reading)()

    # --- of WebSockets

    def _receive_frames(self, frames: "Frames", data: bytes) -> None:
        frames.feed(data)
        if frames.fragments > FRAGMENTS_MAX:
            self._refuse_frames(TOO_BIG, b"too many fragments")
        elif not self._in_progress.hold(frames.size):
            self._refuse_frames(TRY_AGAIN_LATER, b"too much is under way at this gateway")
        else:
            before = self.unread_bytes if self._is_full else 0
            self._server.data_received(data)
            if self._is_full and before:
                self._pong_bytes += self.unread_bytes - before
                if self._pong_bytes > PONG_BYTES_MAX:
                    self._transport.abort()

    def _refuse_frames(self, code: int, reason: bytes) -> None:
        if not self.is_closing:
            self._transport.write(b"\x88%c%s%s" % (2 + len(reason), code.to_bytes(2, "big"), reason))
            self.close()

    # --- timers

    def _start_deadline(self) -> None:
        """Set the deadline for the end of the headers, or of input after the answer."""
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().call_later(HEADERS_S, self.close)

    def _stop_deadline(self) -> None:
        self._unfinished = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _check_progress_later(self) -> None:
        """Abort later if the client reads nothing: a close waits without limit for the rest."""
        self._stop_progress_check()
        left, loop = self.unread_bytes, asyncio.get_running_loop()
        wait_s = STALLED_S if self._frames is None else FAREWELL_S
        self._progress_check = loop.call_later(wait_s, self._check_progress, left)

    def _check_progress(self, left_before: int) -> None:
        if self.unread_bytes < left_before:
            self._check_progress_later()
        else:
            self._transport.abort()

    def _stop_progress_check(self) -> None:
        if self._progress_check is not None:
            self._progress_check.cancel()
            self._progress_check = None


class _HeadTooLarge(Exception):
    """The request line and the headers exceed `HEADER_BYTES_MAX`."""


class _Line:
    """The transport as the server sees it: the connection learns of closing, reading and upgrades."""

    def __init__(self, connection: BoundedConnection, transport: asyncio.Transport) -> None:
        self._connection, self._transport = connection, transport
        self.close, self.set_protocol = connection.close, connection.upgrade
        self.write, self.is_closing = transport.write, transport.is_closing  # of every answer

    def pause_reading(self) -> None:
        self._connection.let_read(False)

    def resume_reading(self) -> None:
        self._connection.let_read(True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Frames:
    """Counts the bytes and the fragments of a WebSocket message in progress, without keeping them.

    RFC 6455, section 5.2. Control frames are not counted: they have at most 125 bytes.
    """

    def __init__(self) -> None:
        self.size = self.fragments = 0
        self._head = b""  #: of a frame, if it is incomplete
        self._left = 0  #: bytes of the frame's payload that have not arrived
        self._is_control = self._is_last = False

    def feed(self, data: bytes) -> None:
        """Count received bytes, of any number of frames."""
        at = 0
        while at < len(data):
            if self._left:
                taken = min(self._left, len(data) - at)
                self._left -= taken
                self.size += 0 if self._is_control else taken
            else:
                head = self._head + data[at : at + _FRAME_HEAD_MAX]
                size = _head_size(head)
                if len(head) < size:
                    self._head = head
                    return
                taken = size - len(self._head)
                self._begin(head[:size])
            at += taken
            if not self._left and self._is_last and not self._is_control:
                self.size = self.fragments = 0

    def _begin(self, head: bytes) -> None:
        length = head[1] & 127
        self._left = length if length < 126 else int.from_bytes(head[2 : _LENGTH_END[length]], "big")
        self._is_control, self._is_last, self._head = head[0] & 8 != 0, head[0] & 128 != 0, b""
        self.fragments += not self._is_control


_FRAME_HEAD_MAX = 14
_LENGTH_END = {126: 4, 127: 10}  #: where a length that does not fit into 7 bits ends


def _head_size(head: bytes) -> int:
    """Return the size of the head of a frame, from its first bytes."""
    if len(head) < 2:
        return 2
    return _LENGTH_END.get(head[1] & 127, 2) + (4 if head[1] & 128 else 0)
